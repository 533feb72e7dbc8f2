"""A live run's status on the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slackwater.live.status import LiveStatus
from slackwater.report.style import SYNTHETIC, kilograms, printable, shortened

_BAR = 40
_NAMED = 6
_STANDS = {
    "prepared": ("prepared, not begun", "dim"),
    "running": ("running", "green"),
    "interrupted": ("interrupted: no process runs it; go on with `slackwater resume`", "yellow"),
    "stopped": ("stopped; go on with `slackwater resume`", "yellow"),
    "diverged": ("diverged; the events say when", "red"),
    "failed": ("failed; see below, then go on with `slackwater resume`", "red"),
    "done": ("done", "green"),
}


def status_view(status: LiveStatus) -> RenderableType:
    """Everything on one screen: the budget, the next rounds, the clients, the last troubles."""
    words, style = _STANDS[status.stands]
    head = Text.assemble((status.folder, "bold"), "  ", (words, style))
    accuracy = "" if status.accuracy is None else f", accuracy {status.accuracy:.2%}"
    plans = f", planned anew {status.replans} times" if status.replans else ""
    parts: list[RenderableType] = [head, _budget(status), Text(f"{status.rounds} rounds done{accuracy}{plans}")]
    if status.synthetic:
        parts.append(Text(f"{SYNTHETIC}: typical profiles, not measured", style="bold yellow"))
    if status.training:
        parts.append(Text(f"training now (slot {status.training_slot}): {_names(status.training)}", style="green"))
    if status.coming and status.stands != "done":
        parts.append(_coming(status))
    if status.clients:
        parts.append(_clients(status))
    parts += [
        Text(f"{at[:19]}  {level}: {printable(message)}", style="yellow" if level == "warning" else "red")
        for at, level, message in status.events
    ]
    return Group(*parts)


def _budget(status: LiveStatus) -> Text:
    share = status.spent_kg / status.budget_kg if status.budget_kg else 0.0
    full = min(_BAR, round(_BAR * share))
    held = f", of which {kilograms(status.held_kg)} kg at an upper bound" if status.held_kg else ""
    return Text.assemble(
        ("█" * full, "green" if share <= 1 else "red"),
        ("░" * (_BAR - full), "dim"),
        f" {kilograms(status.spent_kg)} of {kilograms(status.budget_kg)} kg ({share:.1%}){held}; "
        f"{kilograms(status.left_kg)} kg left",
    )


def _coming(status: LiveStatus) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("next rounds", "slot", "clients"):
        table.add_column(name, justify="right" if name == "slot" else "left")
    for one in status.coming:
        table.add_row(f"{one.at:%Y-%m-%d %H:%M:%S}Z", str(one.slot), Text(_names(one.clients)))
    return table


def _clients(status: LiveStatus) -> Table:
    seen = sorted({outcome for found in status.clients.values() for outcome in found} - {"done"})
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("client")
    for name in ("done", *seen):
        table.add_column(name, justify="right")
    for client, found in status.clients.items():
        table.add_row(Text(shortened(client, 20)), *(str(found.get(name, 0)) for name in ("done", *seen)))
    return table


def _names(names: tuple[str, ...]) -> str:
    shown = ", ".join(shortened(name, 20) for name in names[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more"
