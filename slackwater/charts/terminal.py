"""Plans, studies and data as rich renderables, which the command line prints.

Users' names go into `Text`, never into markup: a client called "[red]" is shown as "[red]".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slackwater.charts.schedule_chart import has_times, plan_heatmap
from slackwater.charts.style import SYNTHETIC, kilograms, percent, printable, shortened, synthetic_note, table
from slackwater.errors import InfeasibleError
from slackwater.intensity.load import ZoneInfo
from slackwater.intensity.traces import FACTORS, Provenance, Traces
from slackwater.planning.advice import Advice, same_work_kg
from slackwater.planning.auto import CALIBRATION_BAND, FULL_ROUNDS
from slackwater.planning.goals import about_goal
from slackwater.planning.plan import Plan, Recommendation
from slackwater.planning.planner import WhatIf
from slackwater.planning.savings import SavingsStudy
from slackwater.planning.schedule import no_slack_plan
from slackwater.units import G_PER_KG, iso, local_text, time_zone, utc

__all__ = [
    "compare_table",
    "plan_answer",
    "plan_heatmap",
    "plan_summary",
    "recommendation",
    "savings_table",
    "zones_table",
]

MOST_ROWS = 20
_NAMED = 3
_ALL_NAMED = 8
"""Up to so many clients, all are named."""
_DAY = 24
_NOTHING = 5e-4
"""A saved share below this is shown as nothing."""
_LONGEST_NAME = 24
_COLUMNS = Text(
    "before, window: slots of training before and in the fine-tuning window; pi: share of the slots before it; "
    "absence: longest run of slots before it without the client.",
    style="dim",
)
UNDEFINED = "not defined"
NETWORK_NOT_COUNTED = "not counted: the scenario has no model_mb"


def answer_lines(plan: Plan) -> list[tuple[str, str]]:
    """Return what the plan saves, when it ends and who trains how often, each with its name."""
    lines = [("Saves", _saves(plan)), ("Ends", _ends(plan)), ("Trains", _trains(plan))]
    if (about := about_goal(plan)) is not None:
        lines.append(("Rounds", about))
    return lines


def plan_answer(plan: Plan) -> RenderableType:
    """Show `answer_lines`, a line each, what was chosen, then warnings."""
    lines = answer_lines(plan)
    if plan.recommended is not None:
        lines.append(("Chosen", _chosen(plan, plan.recommended)))
    facts = Table.grid(padding=(0, 1))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in lines:
        facts.add_row(name, Text(value))
    return Group(facts, *_warnings(plan))


def _saves(plan: Plan) -> str:
    """Say what slack saves against the same work at once."""
    at_once = same_work_kg(plan)
    saved, budget = at_once - plan.emissions_kg, plan.problem.budget_kg
    of = f" of {kilograms(budget)}" if math.isfinite(budget) else ""
    emits = f"{kilograms(plan.emissions_kg)}{of} kg CO2e"
    if at_once <= 0:
        return f"nothing to save: the run emits {emits}."
    same = f"the run emits {emits}; the same work at once emits {kilograms(at_once)} kg."
    if abs(saved) < _NOTHING * at_once:
        said = f"nothing: {same}"
    elif saved < 0:
        said = f"nothing: {same} Waiting costs {kilograms(-saved)} kg here."
    else:
        said = f"{kilograms(saved)} kg ({percent(saved / at_once)}): {same}"
    return f"{said} {_without_slack(plan)}"


def _without_slack(plan: Plan) -> str:
    """Say how much training all clients at once get from the same budget."""
    try:
        slots = int(no_slack_plan(plan.problem).slots_per_client.sum())
    except InfeasibleError:
        return "Without slack the budget pays no round."
    return f"Without slack the budget pays {slots:,} client-rounds, here {int(plan.slots_per_client.sum()):,}."


def _ends(plan: Plan) -> str:
    """Say when the run ends, in the scenario's time zone, and how long before the latest end."""
    problem = plan.problem
    left = problem.horizon - problem.rounds - plan.end
    if not has_times(problem):
        return f"after slot {problem.rounds + plan.end} of {problem.horizon}."
    ends = local_text(plan.ends_at, problem.time_zone)
    hours = left * problem.slot_hours
    early = f"{hours / _DAY:.1f} days" if hours >= 2 * _DAY else f"{hours:.4g} h"
    if hours < 1:
        early = f"{60 * hours:.3g} min"
    return f"{ends}, {early} before the latest end." if left else f"{ends}, the latest end."


def _trains(plan: Plan) -> str:
    """Say how many rounds are held, and which clients train most and least often."""
    slots, names = plan.slots_per_client, plan.problem.fleet.names
    order = np.argsort(-slots, kind="stable")
    few = order if len(order) <= _ALL_NAMED else [*order[:_NAMED], *order[-_NAMED:]]
    each = [f"{shortened(names[i], _LONGEST_NAME)} {slots[i]:,}" for i in few]
    if len(order) > len(few):
        each.insert(_NAMED, "..")
    return f"{plan.rounds_held:,} rounds, {int(slots.sum()):,} client-rounds: {', '.join(each)}."


def _chosen(plan: Plan, recommended: Recommendation) -> str:
    problem = plan.problem
    free = [name for name in ("fine_tune", "recall", "alpha") if name in problem.free]
    settings = "".join(f", {name} = {recommended.settings[name]}" for name in free)
    return (
        f"end time s = {plan.end}{settings}, aggregator {recommended.aggregator}, for the least predicted error. Why: --details. "
        "As the paper plans: --paper."
    )


def plan_summary(plan: Plan) -> RenderableType:
    """Show status, certificate, metrics and a table of the clients."""
    parts: list[RenderableType] = [
        Text(plan.message, style="bold green" if plan.status == "optimal" else "bold yellow")
    ]
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in [*_certificate(plan), *_metrics(plan), *_data(plan.problem.traces)]:
        facts.add_row(name, Text(value))
    parts += [facts, "", _clients_table(plan)]
    if len(plan.problem.fleet) > MOST_ROWS:
        parts.append(Text(f"... and {len(plan.problem.fleet) - MOST_ROWS:,} more clients. By zone:"))
        parts.append(_by_zone_table(plan))
    return Group(*parts, _COLUMNS)


def recommendation(recommended: Recommendation) -> RenderableType:
    """Show the recommended aggregator and settings, with the reasons."""
    chosen = ", ".join(f"{key} {value}" for key, value in recommended.settings.items())
    return Group("", _bold(f"Recommended: aggregator {recommended.aggregator} ({chosen})"), *map(Text, recommended.why))


def savings_table(study: SavingsStudy) -> RenderableType:
    """Show savings by zone, the largest first, and for groups of the cleanest zones."""
    zones = table("zone|>mean saved|>std|>10 %|>90 %|>kg saved")
    spread = study.client
    order = np.argsort(np.where(np.isnan(spread.mean), np.inf, -spread.mean), kind="stable")
    for zone in order:
        shares = [spread.mean[zone], spread.std[zone], spread.q10[zone], spread.q90[zone]]
        kg = f"{study.saved_kg.mean[zone]:.3f}"
        zones.add_row(_text(study.zones[zone]), *(UNDEFINED if math.isnan(s) else percent(s) for s in shares), kg)
    groups = table(">N|>mean saved|>10 %|>90 %")
    count = len(study.group.mean)
    for n in sorted({n for n in (1, 2, 5, 10, 15, 20, 30, 50, 75, 100) if n < count} | {count}):
        shares = [study.group.mean[n - 1], study.group.q10[n - 1], study.group.q90[n - 1]]
        groups.add_row(str(n), *(UNDEFINED if math.isnan(s) else percent(s) for s in shares))
    starts = len(study.starts)
    drawn = f"{starts} starts, seed {study.seed}" if starts > 1 else f"From {iso(study.starts[0])}"
    notes = [Text(f"{drawn}. {study.factor} intensity, {study.power_w:g} W a client.", style="dim")]
    if np.isnan(spread.mean).any():
        notes.append(Text("Savings are not defined where nothing is emitted without slack.", style="dim"))
    if study.synthetic:
        notes.append(_synthetic(study.provenance))
    title = f"Savings of {study.slack} h of slack on {study.hours} h of training"
    return Group(_bold(f"{title}, by zone"), zones, "", _bold("The same for the N cleanest zones"), groups, "", *notes)


def compare_table(points: Sequence[WhatIf]) -> RenderableType:
    """Show a line for each what-if, and why some are infeasible."""
    rows = table(">alpha|>slack|>budget kg|status|>s|>kg|>saved kg|>slots|>error %|>objective|>rho_H")
    for p in points:
        style = {"optimal": "green", "infeasible": "red"}.get(p.status, "yellow")
        settings: list[RenderableType] = [
            _text(p.alpha),
            str(p.slack),
            kilograms(p.budget_kg),
            Text(p.status, style=style),
        ]
        if p.objective is None or p.emissions_kg is None or p.saved_kg is None or p.slots is None:
            rows.add_row(*settings, *["-"] * 7)
            continue
        error = "-" if p.remaining_error is None else f"{100 * p.remaining_error:.1f}"
        figures = [str(p.end), kilograms(p.emissions_kg), kilograms(p.saved_kg), f"{p.slots:,}", error]
        rows.add_row(*settings, *figures, f"{p.objective:.6g}", _number(p.rho_h))
    # Neither alpha nor a smaller budget makes a plan feasible, so one sentence for each slack is enough.
    reasons = {p.slack: p for p in sorted(points, key=lambda p: p.budget_kg) if p.status == "infeasible"}
    notes = [Text(f"Infeasible with a slack of {slack}: {printable(p.message)}") for slack, p in reasons.items()]
    if len(points) > 1:
        notes.append(Text("error: predicted remaining error, a ranking score and not an accuracy.", style="dim"))
    scales = ["alpha"] * (len({p.alpha for p in points}) > 1) + ["slack"] * (len({p.g_max_kg for p in points}) > 1)
    if scales:
        notes.append(Text(f"Compare objectives only between lines of the same {' and '.join(scales)}.", style="dim"))
    if any(p.synthetic for p in points):
        notes.append(synthetic_note())
    return Group(rows, *notes)


ADVICE = ">budget\nkg|>kg|>saved\n%|>slots\n(no slack)|ends|>error %\n(no slack)|>below\nfull %|"


def advice_cells(advice: Advice) -> dict[tuple[int, str], list[list[str]]]:
    """Return the cells of `ADVICE` for each pair, by slack and the time by which it finishes."""
    cells: dict[tuple[int, str], list[list[str]]] = {}
    for row in advice.rows:
        saved = "-" if row.saved_share is None else f"{100 * row.saved_share:.0f}"
        without = "-" if row.no_slack_error is None else f"{100 * row.no_slack_error:.0f}"
        marks = {"advised": row == advice.recommended, "yours": row.own, "knee": row.knee}
        ends = utc(row.ends_at).astimezone(time_zone(advice.time_zone))
        cells.setdefault((row.slack, row.finish_by), []).append(
            [
                kilograms(row.budget_kg), kilograms(row.emissions_kg), saved, f"{row.slots:,} ({row.no_slack_slots:,})",
                f"{ends:%d %b %H:%M}", f"{100 * row.remaining_error:.0f} ({without})", f"{100 * row.expected.missing:.1f}",
                ", ".join(mark for mark, on in marks.items() if on),
            ]
        )  # fmt: skip
    return cells


def advice_notes(advice: Advice) -> list[str]:
    """Return what the columns of advice mean, and what it does not know."""
    notes = [
        "saved: against the same client-slots at once. no slack: all clients at once, on the same budget.",
        "error: predicted remaining error, a ranking score and not an accuracy.",
        f"below full: how far the gain in score should be below full training's ({FULL_ROUNDS} rounds of all clients), "
        f"{100 * CALIBRATION_BAND[0]:+.1f} to {100 * CALIBRATION_BAND[1]:+.1f} points on tasks that were not fitted.",
        "knee: the smallest budget of its slack that trains nearly as well as the best.",
        "On tables of few, very different sites, long slacks trained worse than predicted. Train the plan once: "
        "`slackwater train` compares it with the baseline.",
    ]
    if advice.infeasible:
        pairs = "1 pair of the grid has" if advice.infeasible == 1 else f"{advice.infeasible} pairs of the grid have"
        notes.append(f"{pairs} no plan.")
    if advice.not_planned:
        pairs = "1 pair of the grid was" if advice.not_planned == 1 else f"{advice.not_planned} pairs of the grid were"
        notes.append(f"Stopped: {pairs} not planned.")
    return notes


def advice_table(advice: Advice) -> RenderableType:
    """Show the recommended pair and why, then a line for each pair, by slack."""
    cells = advice_cells(advice)
    widths = [
        max(map(cell_len, column)) for column in zip(*(row for rows in cells.values() for row in rows), strict=True)
    ]
    parts: list[RenderableType] = [Text(f"Recommended: {advice.why}", style="bold")]
    for number, ((slack, by), lines) in enumerate(cells.items()):
        shown = table(ADVICE, show_header=number == 0)
        for column, width in zip(shown.columns, widths, strict=True):  # the same in all tables
            column.min_width = max(width, *map(len, str(column.header).split("\n")))
        for line in lines:
            shown.add_row(*line)
        parts += [Text(f"slack {slack:,}: finish by {local_text(utc(by), advice.time_zone)}", style="bold"), shown]
    notes = [Text(note, style="dim") for note in advice_notes(advice)]
    if advice.synthetic:
        notes.append(synthetic_note())
    return Group(*parts, *notes)


def zones_table(zones: Iterable[ZoneInfo]) -> RenderableType:
    """Show the zones of a source: hours, mean intensity and gaps."""
    zones = list(zones)
    sources = {info.source for info in zones}
    rows, synthetic = Table(box=None, header_style="bold", pad_edge=False), False
    for name in ("zone", "from", "to", *FACTORS, "missing h", *(["source"] if len(sources) > 1 else [])):
        rows.add_column(name, justify="right" if name in (*FACTORS, "missing h") else "left", no_wrap=name != "source")
    for info in zones:
        means = [
            f"{info.mean_kg_per_kwh[factor] * G_PER_KG:.0f}" if factor in info.factors else "-" for factor in FACTORS
        ]
        missing = [info.missing_hours[factor] for factor in info.factors]
        gaps = str(missing[0]) if len(set(missing)) == 1 else " / ".join(map(str, missing))
        source = [_text(info.source)] if len(sources) > 1 else []
        rows.add_row(_text(info.zone), iso(info.first), iso(info.last), *means, gaps, *source)
        synthetic = synthetic or info.synthetic
    notes = [Text("direct, lifecycle: mean intensity, g CO2e/kWh. Hours are UTC.", style="dim")]
    if len(sources) == 1:
        notes.append(Text(f"source: {sources.pop()}", style="dim"))
    if synthetic:
        notes.append(synthetic_note())
    return Group(rows, *notes)


def _certificate(plan: Plan) -> list[tuple[str, str]]:
    problem, out = plan.problem, plan.emissions
    timed = has_times(problem)
    facts = [
        (
            "emissions",
            f"{kilograms(plan.emissions_kg)} of {kilograms(problem.budget_kg)} kg CO2e "
            f"({percent(plan.emissions_kg / problem.budget_kg)})",
        )
    ]
    by_cause = out.by_cause_kg
    if any(kg for cause, kg in by_cause.items() if cause != "training"):
        shown = [cause for cause, kg in by_cause.items() if kg or cause in ("training", "idle", "server")]
        facts.append(("of which", ", ".join(f"{cause} {kilograms(by_cause[cause])} kg" for cause in shown)))
    if problem.model_mb is None:
        facts.append(("network", NETWORK_NOT_COUNTED))
    if problem.price is not None and plan.money is not None:
        most = "" if problem.budget_money is None else f" of {problem.budget_money:,.2f}"
        facts.append(("price of electricity", f"{plan.money:,.2f}{most} {problem.price.currency}"))
    if plan.levels is not None:
        lower = int(np.count_nonzero(plan.matrix & (plan.levels > 0)))
        facts.append(("below full power", f"{lower:,} of {int(plan.slots_per_client.sum()):,} client-slots"))
    facts += [
        ("objective", f"{plan.objective:.9g} (alpha {problem.alpha})"),
        ("upper bound", f"{plan.upper_bound:.9g}, gap {plan.gap:.2g}"),
    ]
    if plan.level is not None:
        facts.append(("least utility", f"{plan.level:.6g} kg"))
    at = f", {iso(plan.ends_at)}" if timed else ""
    facts.append(("end", f"s = {plan.end} of {problem.horizon - problem.rounds}{at}"))
    if plan.window:
        slots = f"{len(plan.window)} slot{'s' * (len(plan.window) > 1)}"
        opens = f", from {iso(problem.slot_start(plan.before))}" if timed else ""
        facts.append(("fine-tuning window", f"{slots} after {plan.before}{opens}"))
    facts.append(("solver", f"{plan.solver}, {plan.seconds:.2f} s"))
    return facts


def _metrics(plan: Plan) -> list[tuple[str, str]]:
    metrics = plan.metrics
    rho_h = _number(metrics.rho_h)
    if math.isinf(metrics.rho_h):
        rho_h = (
            f"infinite: {_names(plan, metrics.never)} never train{'s' * (len(metrics.never) == 1)} before the window"
        )
    return [
        ("heterogeneity rho_H", rho_h),
        ("bias of FedAvg (TV)", _number(metrics.tv_distance)),
        ("correlation in time rho_T", _number(metrics.rho_t)),
        ("between clients rho_S", _number(metrics.rho_s)),
        ("jointly rho_TS", _number(metrics.rho_ts)),
        ("effective updates", f"{metrics.effective_updates:,.1f}"),
        ("slots with one client", percent(metrics.lone_slots)),
    ]


def _data(traces: Traces) -> list[tuple[str, str]]:
    sources = list(dict.fromkeys(p.source for p in traces.provenance))
    more = f" and {len(sources) - _NAMED} more" if len(sources) > _NAMED else ""
    facts = [
        ("intensity", f"{traces.factor}, {', '.join(printable(s) for s in sources[:_NAMED]) or 'source unknown'}{more}")
    ]
    filled = [f"{printable(p.zone)} {len(p.filled_hours)} h" for p in traces.provenance if p.filled_hours]
    return facts + ([("filled gaps", ", ".join(filled))] if filled else [])


def _warnings(plan: Plan) -> list[Text]:
    warnings = []
    if never := plan.metrics.never:
        one, window = len(never) == 1, plan.problem.fine_tune > 0
        where = f"train{'s' * one} only in the fine-tuning window" if window else f"never train{'s' * one}"
        total = plan.problem.goal == "work"  # with rounds_each, every client trains
        change = "Ask for rounds_each" if total else "Raise the budget, lower alpha,"
        warnings.append(
            Text(
                f"Warning: {_names(plan, never)} {where}; the model learns {'little' if window else 'nothing'} from "
                f"{'it' if one else 'them'}. {change} or set required = true.",
                style="bold yellow",
            )
        )
    if plan.problem.traces.synthetic:
        warnings.append(_synthetic(plan.problem.traces.provenance))
    return warnings


def _clients_table(plan: Plan) -> Table:
    fleet, metrics, total = plan.problem.fleet, plan.metrics, plan.emissions_kg or 1.0
    client_kg, rows = plan.emissions.client_kg, table("client|zone|>before|>window|>pi|>kg|>share|>absence")
    for i in range(min(len(fleet), MOST_ROWS)):
        before = round(float(metrics.pi[i]) * plan.before)
        kg = float(client_kg[i])
        counts = [str(before), str(int(plan.slots_per_client[i]) - before), f"{metrics.pi[i]:.3f}"]
        absence = str(int(metrics.longest_absence[i]))
        name = _text(shortened(fleet.names[i], _LONGEST_NAME))
        rows.add_row(name, _text(fleet.zone[i]), *counts, f"{kg:.3f}", percent(kg / total), absence)
    return rows


def _by_zone_table(plan: Plan) -> RenderableType:
    fleet, row, total = plan.problem.fleet, plan.problem.costs.row, plan.emissions_kg or 1.0
    zones = sorted(set(fleet.zone))  # the costs number them in this order
    kg = np.bincount(row, weights=plan.emissions.client_kg)
    slots, clients = np.bincount(row, weights=plan.slots_per_client), np.bincount(row)
    rows = table("zone|>clients|>slots|>kg|>share")
    order = np.argsort(-kg, kind="stable") if len(zones) > MOST_ROWS else np.arange(len(zones))
    for z in order[:MOST_ROWS]:
        rows.add_row(_text(zones[z]), f"{clients[z]:,}", f"{slots[z]:,.0f}", f"{kg[z]:.3f}", percent(kg[z] / total))
    rest = order[MOST_ROWS:]
    if len(rest):
        sums = [f"{clients[rest].sum():,}", f"{slots[rest].sum():,.0f}", f"{kg[rest].sum():.3f}"]
        rows.add_row(f"{len(rest):,} more zones", *sums, percent(kg[rest].sum() / total), style="dim")
    return rows


def _bold(title: str) -> Text:
    return Text(title, style="bold")


def _text(value: object) -> Text:
    return Text(printable(str(value)), overflow="fold")


def _names(plan: Plan, clients: Sequence[int]) -> str:
    named = ", ".join(printable(plan.problem.fleet.names[i]) for i in clients[:_NAMED])
    return named + (f" and {len(clients) - _NAMED:,} more" if len(clients) > _NAMED else "")


def _number(value: float | None) -> str:
    return UNDEFINED if value is None else "infinite" if math.isinf(value) else f"{value:.3f}"


def _synthetic(provenance: Sequence[Provenance]) -> Text:
    zones = [printable(p.zone) for p in provenance if p.synthetic]
    which = "all zones" if len(zones) == len(provenance) else ", ".join(zones)
    return Text(f"{SYNTHETIC} ({which}): typical profiles, not measured", style="bold yellow")
