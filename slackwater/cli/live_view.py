"""A live run's status on the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slackwater.ledger.kinds import KINDS
from slackwater.ledger.queries import Figures
from slackwater.live.rehearsal import Rehearsal
from slackwater.live.status import LiveStatus
from slackwater.report.style import kilograms, printable, shortened, synthetic_note, table
from slackwater.units import iso

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
    """Show everything on one screen: the budget, the next rounds, the clients, the last errors."""
    words, style = _STANDS[status.stands]
    head = Text.assemble((status.folder, "bold"), "  ", (words, style), f"  ({KINDS[status.kind].label} run)")
    accuracy = "" if status.accuracy is None else f", accuracy {status.accuracy:.2%}"
    plans = f", planned anew {status.replans} times" if status.replans else ""
    parts: list[RenderableType] = [head, _budget(status), Text(f"{status.rounds} rounds done{accuracy}{plans}")]
    if status.figures is not None and status.stands != "done":
        parts.append(Text(_expected(status.figures)))
    if status.kind != "live":
        parts.append(Text(KINDS[status.kind].sentence, style="yellow"))
    if status.synthetic:
        parts.append(synthetic_note())
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


def _expected(figures: Figures) -> str:
    """Show what the run is expected to emit, and what the first plan expected if it was re-planned."""
    first = f"; the first plan expected {kilograms(figures.first_plan_kg)} kg" if figures.replans else ""
    rest = f"{kilograms(figures.to_come_kg)} kg of it still to come"
    return f"expected at the end: {kilograms(figures.expected_kg)} kg, {rest}{first}"


def _coming(status: LiveStatus) -> Table:
    rows = table("next rounds|>slot|clients")
    for one in status.coming:
        rows.add_row(f"{one.at:%Y-%m-%d %H:%M:%S}Z", str(one.slot), Text(_names(one.clients)))
    return rows


def _clients(status: LiveStatus) -> Table:
    seen = sorted({outcome for found in status.clients.values() for outcome in found} - {"done"})
    rows = table("|>".join(["client", "done", *seen]))
    for client, found in status.clients.items():
        rows.add_row(Text(shortened(client, 20)), *(str(found.get(name, 0)) for name in ("done", *seen)))
    return rows


def _names(names: tuple[str, ...]) -> str:
    shown = ", ".join(shortened(name, 20) for name in names[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more"


def rehearsal_view(found: Rehearsal) -> RenderableType:
    """Return what would have happened, beside perfect foresight."""
    rows = table("|>rehearsed|>perfect foresight")
    best = found.foresight

    def row(name: str, mine: str, theirs: str = "") -> None:
        rows.add_row(name, mine, theirs if best else "")

    row("kg CO2e", kilograms(found.emissions_kg), kilograms(best.emissions_kg) if best else "")
    row("rounds", str(found.rounds), str(best.rounds) if best else "")
    row("client-slots trained", str(found.client_slots), str(best.client_slots) if best else "")
    if found.lost_client_slots:
        row("client-slots lost, but charged", str(found.lost_client_slots))
    if found.share is not None:
        row("share of the objective", f"{found.share:.1%}", "100%")
    if found.accuracy is not None:
        row("accuracy", f"{found.accuracy:.2%}")
    row("re-plans", str(found.replans))
    row("reserve, first and largest (kg)", f"{kilograms(found.reserve_kg)}, {kilograms(found.largest_reserve_kg)}")
    kept = "kept" if found.emissions_kg <= found.budget_kg else "EXCEEDED"
    head = (
        f"Rehearsal of {iso(found.start)} to {iso(found.end)} on the forecast {found.forecast!r}: it would have emitted "
        f"{kilograms(found.emissions_kg)} of {kilograms(found.budget_kg)} kg (budget {kept})."
    )
    report = f"Full report: slackwater report {found.folder} --html report.html"
    return Group(Text(head, style="bold"), rows, Text(report, style="dim"))
