"""Tables of the report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from slackwater.charts import style
from slackwater.ledger.schema import KINDS
from slackwater.ledger.score import MetricLabel
from slackwater.planning.plan import Plan
from slackwater.report.account import CAUSES, SERVER, Group, share_of
from slackwater.report.blocks import Block, Kilograms, Table, percent_change
from slackwater.report.comparison import PlannedVsActual
from slackwater.report.evidence import CheckedLine
from slackwater.report.standards import MEANING, BridgeStep
from slackwater.report.statement import Statement
from slackwater.units import G_PER_KG

MOST_ROWS = 200
"""Most rows of a table; further rows are summed in one row. The JSON has all of them."""


def client_name(name: str) -> str:
    """Return a client's name in reports; the server has no name in the ledger."""
    return name or SERVER


def replanned_times(count: int) -> str:
    """Return the number of re-plans as text."""
    return "re-planned once" if count == 1 else f"re-planned {count:,} times"


def preparation(statement: Statement) -> Table:
    """Show the preparer, date and period of the report."""
    run, by = statement.run, statement.preparation
    period = "nothing was charged" if by.period_start is None else f"{by.period_start} to {by.period_end}"
    return _facts(
        "",
        [
            ("kind of run", KINDS[run.kind].label),
            ("date of the report", by.prepared_on),
            ("period covered", f"{period} (the slots with a charge)"),
            ("run started", f"{run.created_at[:19].replace('T', ' ')} UTC"),
            ("organisation", by.organisation or "not given (--organisation, or [report] in the scenario)"),
            ("prepared by", by.preparer or "not given (--preparer, or [report] in the scenario)"),
            ("run", f"{run.id}, status {run.status}, made with Slackwater {run.slackwater}"),
        ],
    )


def plan_facts(statement: Statement, kg: Kilograms) -> Table:
    """Show the plan's settings, and what the planner proved."""
    run, planned = statement.run, statement.planned
    slots = int(statement.plan.slots_per_client.sum())
    rows = [
        ("budget", "none" if run.budget_kg is None else f"{run.budget_kg:.9g} kg CO2e"),
        (
            "first plan, for reference" if planned.replans else "planned",
            f"{kg(planned.first_plan_kg)} kg CO2e in {slots:,} client-slots",
        ),
        *(
            [("plans in force", f"{kg(planned.planned_kg)} kg CO2e, {replanned_times(planned.replans)}")]
            if planned.replans
            else []
        ),
        ("time", f"{run.first_slot} to {run.plan_ends_at}, slots of {run.slot_minutes} minutes"),
        (
            "rounds and slack",
            f"{run.planned_rounds:,} slots without slack, {run.slack:,} of slack, {run.fine_tune:,} of fine-tuning",
        ),
        ("fairness", f"alpha {run.alpha}"),
        *_more_plan_facts(statement.plan),
        ("proof", f"{run.plan_message} (solver: {run.solver})"),
        ("training", f"task {run.task}, aggregator {run.aggregator}, seed {run.seed}"),
    ]
    return _facts("", rows)


def _more_plan_facts(plan: Plan) -> list[tuple[str, str]]:
    """Return the facts of a plan with a quorum, prices or levels."""
    problem, facts = plan.problem, []
    if problem.min_parallel is not None:
        facts.append(("quorum", f"at least {problem.min_parallel} clients in a used slot before the window"))
    if problem.price is not None and plan.money is not None:
        most = "" if problem.budget_money is None else f", at most {problem.budget_money:,.2f}"
        weight = f"; 1 {problem.price.currency} counts as {problem.price_weight:g} kg" if problem.price_weight else ""
        said = f"{plan.money:,.2f} {problem.price.currency}{most}{weight} ({problem.price.source})"
        facts.append(("price of electricity, planned", said))
    if plan.levels is not None:
        lower = int((plan.matrix & (plan.levels > 0)).sum())
        facts.append(("below full power", f"{lower:,} client-slots, with fewer local steps"))
    return facts


def happened(statement: Statement, kg: Kilograms) -> list[Block]:
    """Show emissions by cause, line type and energy method, and failures."""
    found = statement.account
    by_cause = {group.key[0]: group for group in found.by_cause.groups}
    nothing = {cause: Group(key=(cause,), kg=0.0, energy_kwh=0.0, lines=0) for cause in CAUSES}
    ways: tuple[tuple[str, Sequence[Group]], ...] = (
        ("cause", list((nothing | by_cause).values())),
        ("line type", found.by_kind.groups),
        ("energy", found.by_method.groups),
    )
    rows = [
        (f"{way}: {CAUSES.get(group.key[0], group.key[0])}", group, _shared(groups, found.total_kg))
        for way, groups in ways
        for group in groups
    ]
    table = _table(
        "The ledger by cause, line type and energy method",
        "|>lines|>kWh|>kg CO2e|>share",
        tuple((name, *_amounts(group, total, kg)) for name, group, total in rows),
        note="Each of the three groups adds up to the total. A cause with 0 lines was not charged.",
    )
    facts = [
        (f"{one.kind}s", f"{one.lines:,} charges of {kg(one.charged_kg)} kg changed by {kg(one.kg, sign=True)} kg")
        for one in found.differences
    ]
    facts.append(("retries", f"{found.retried_lines:,} lines, {kg(found.retried_kg)} kg"))
    facts.append(("charged without a round", f"{found.slots_without_round:,} slots, {kg(found.kg_without_round)} kg"))
    if found.kg_without_energy:
        facts.append(("without energy", f"{kg(found.kg_without_energy)} kg were entered directly"))
    return [table, _facts("Corrections and failures", facts)]


def events(statement: Statement) -> Table:
    """Show warnings and errors."""
    found = statement.account
    hidden = found.event_count - len(found.events)
    return _table(
        "Warnings and errors",
        "at|level|>slot|message",
        tuple((e.at[:19], e.level, "" if e.slot is None else str(e.slot), e.message) for e in found.events),
        note=f"The last {len(found.events)} of {found.event_count:,}." if hidden else "",
    )


def clients(statement: Statement, kg: Kilograms) -> Table:
    """Show planned and realised kg by client."""
    places: dict[str, list[str]] = {}
    energy: dict[str, float] = {}
    for group in statement.account.by_client.groups:
        places.setdefault(group.key[0], []).append(group.key[1])
        energy[group.key[0]] = energy.get(group.key[0], 0.0) + group.energy_kwh
    zone_of = dict(zip(map(str, statement.plan.problem.fleet.names), statement.plan.problem.fleet.zone, strict=True))

    def row(name: str, zone: str, realised: float, planned: float | None, slots: str, kwh: float) -> tuple[str, ...]:
        return name, zone, kg(realised), *_planned(realised, planned, kg), slots, f"{kwh:,.3f}"

    both, rows = statement.planned, []
    for one in both.by_client[:MOST_ROWS]:
        zones = ", ".join(dict.fromkeys(places.get(one.name) or [str(zone_of.get(one.name, ""))]))
        slots = "" if one.realised_slots is None else f"{one.realised_slots:,} of {one.planned_slots:,}"
        kwh = energy.get(one.name, 0.0)
        rows.append(row(client_name(one.name), zones, one.realised_kg, one.planned_kg, slots, kwh))
    rest = both.by_client[MOST_ROWS:]
    if rest:
        kwh = sum(energy.get(one.name, 0.0) for one in rest)
        rows.append(row(f"{len(rest):,} more", "", sum(one.realised_kg for one in rest), _sum(rest), "", kwh))
    if both.replans and both.to_come_kg:
        rows.append(("rest of the plan", "", "", kg(both.to_come_kg), "", "", ""))
    return _table(
        "By client",
        "client|zone|>realised kg|>planned kg|>difference|>slots|>kWh",
        rows,
        total=row("total", "", both.realised_kg, both.planned_kg, "", statement.account.energy_kwh),
    )


def days(statement: Statement, kg: Kilograms) -> Table:
    """Show planned and realised kg by day, UTC."""

    def row(name: str, realised: float, planned: float | None) -> tuple[str, ...]:
        return name, kg(realised), *_planned(realised, planned, kg)

    both = statement.planned
    rows = [row(one.name, one.realised_kg, one.planned_kg) for one in both.by_day[:MOST_ROWS]]
    rest = both.by_day[MOST_ROWS:]
    if rest:
        rows.append(row(f"{len(rest):,} more", sum(one.realised_kg for one in rest), _sum(rest)))
    return _table(
        "By day (UTC)",
        "day|>realised kg|>planned kg|>difference",
        rows,
        total=row("total", both.realised_kg, both.planned_kg),
    )


def deviations(statement: Statement, kg: Kilograms) -> Table:
    """Show the client-slots that differ from the plan."""
    both = statement.planned
    count = both.client_slots_other_kg + both.client_slots_missed + both.client_slots_extra
    return _table(
        "Client-slots that differ from the plan",
        ">slot|start|client|what|>planned kg|>realised kg",
        tuple(
            (str(one.slot), one.start, client_name(one.client), one.what, kg(one.planned_kg), kg(one.realised_kg))
            for one in both.deviations
        ),
        note=f"The {len(both.deviations)} largest of {count:,}." if count > len(both.deviations) else "",
    )


def sources(statement: Statement, kg: Kilograms) -> tuple[Block, ...]:
    """Show emissions by zone, and by source of the intensity."""
    found = statement.account
    return (
        _table(
            "By zone",
            "zone|>lines|>kWh|>kg CO2e|>share|>g/kWh",
            _grouped(found.by_zone.groups, found.total_kg, kg, lambda key: (key[0] or "none",), mean=True),
            total=("total", f"{found.lines:,}", f"{found.energy_kwh:,.3f}", kg(found.total_kg), "", ""),
            note="g/kWh is the mean over the hours of use, weighted by energy.",
        ),
        _table(
            "By source of the intensity",
            "source|intensity|factor|line type|>lines|>kWh|>kg CO2e|>share",
            _grouped(found.by_source.groups, found.total_kg, kg, lambda key: key),
            total=("total", "", "", "", f"{found.lines:,}", f"{found.energy_kwh:,.3f}", kg(found.total_kg), ""),
        ),
    )


def comparison(statement: Statement, kg: Kilograms) -> Table:
    """Compare this run with its alternatives."""
    total, work, annual, budget = (
        statement.account.total_kg, statement.same_work, statement.annual, statement.same_budget,
    )  # fmt: skip
    rows = [
        (
            "this run",
            kg(total),
            "",
            f"{statement.run.client_rounds:,}",
            _score(statement.run.metric, statement.run.score),
            "the ledger",
        )
    ]
    rows.append(
        (
            "same work, no slack",
            _kg(work.kg, kg),
            "" if work.forecast else _saved(total, work.kg),
            f"{statement.run.client_rounds:,}",
            "",
            work.reason,
        )
    )
    rows.append(
        (
            "same budget, no slack",
            _kg(budget.kg, kg),
            "",
            f"{budget.client_rounds:,}" if budget.kg is not None else "",
            _score(statement.run.metric, budget.score),
            f"All clients in every slot until the budget is spent; {budget.basis}.",
        )
    )
    rows.append(
        ("at annual averages", _kg(annual.kg, kg), _saved(total, annual.kg), "", "", f"Same energy; {annual.basis}.")
    )
    return _table("", f"|>kg CO2e|>this run against it|>client-rounds|>{statement.run.metric.heading}|how", rows)


def bridge(statement: Statement, kg: Kilograms) -> Table:
    """Show each step from the ledger's lines to SCI as a row; the shown figures add up."""
    score, before = statement.sci, 0.0
    rows: list[tuple[str, ...]] = []
    sums: list[int] = []
    between: list[BridgeStep] = []
    for step in statement.bridge:
        if not step.is_total:
            between.append(step)
            continue
        shown = kg.adding_up([one.kg for one in between], step.kg, since=before)
        rows += [(one.name, text, one.note) for one, text in zip(between, shown, strict=True)]
        sums.append(len(rows))
        rows.append((step.name, kg(step.kg), step.note))
        before, between = step.kg, []
    rows.append((f"SCI = (O + M) / {score.units:,g}", f"{score.score_g:,.4f}", f"g CO2e per {score.functional_unit}"))
    sums.append(len(rows) - 1)
    return _table(
        "From the ledger to SCI",
        "|>kg CO2e|",
        rows,
        sums=tuple(sums),
        note="Bold rows sum the rows above. The last row is divided by R, in grams.",
    )


def sci(statement: Statement, kg: Kilograms) -> Table:
    """Show the parts of the score."""
    found = statement.sci
    embodied = "not given" if found.embodied_kg is None else f"{kg(found.embodied_kg)} kg CO2e"
    return _facts(
        "SCI",
        [
            ("E, energy", f"{found.energy_kwh:,.3f} kWh"),
            ("O = E x I, by the hour", f"{kg(found.operational_kg)} kg CO2e"),
            ("M, embodied", embodied),
            ("R", f"{found.units:,g} x {found.functional_unit}"),
            ("SCI = (O + M) per R", f"{found.score_g:,.4f} g CO2e per {found.functional_unit}"),
            *((f"SCI per {one.unit}", f"{one.score_g:.4g} g CO2e, R = {one.units:,.9g}") for one in found.per),
        ],
    )


def scope2(statement: Statement, kg: Kilograms) -> Table:
    """Show the direct figure first if there is one, then the ledger's own and the annual one."""
    found = statement.scope2
    rows = [(f"hourly, {found.factor} (the ledger)", _kg(found.hourly_kg, kg, " kg CO2e"))]
    if found.factor != "direct":
        rows.insert(0 if found.direct_kg is not None else 1, ("hourly, direct", _kg(found.direct_kg, kg, " kg CO2e")))
    name, value = rows[0]
    if found.reported_kg is not None:
        rows[0] = (f"reported: {name}", value)
    rows.append((f"at annual averages, {found.factor}", _kg(found.annual_kg, kg, " kg CO2e")))
    return _facts("", rows)


def uncertainty(statement: Statement, kg: Kilograms) -> Table:
    """Show the basis of the charges."""
    found = statement.uncertainty
    charged = sum(found.charged_kg_by_intensity.values())
    rows = [
        (f"intensity: {kind}", kg(amount), share_of(amount, charged), MEANING.get(kind, ""))
        for kind, amount in found.charged_kg_by_intensity.items()
    ]
    meaning = {"modelled": "power x time, from the scenario", "measured": "read from a meter or a counter"}
    rows += [
        (f"energy: {method}", kg(amount), share_of(amount, charged), meaning.get(method, ""))
        for method, amount in found.charged_kg_by_method.items()
    ]
    return _table("Basis of the charges", "|>kg CO2e|>share|meaning", tuple(rows))


def energy_factors(statement: Statement) -> Table:
    """Show the energy of a round, from the scenario."""
    fleet, costs = statement.plan.problem.fleet, statement.plan.problem.costs
    count = min(len(fleet), MOST_ROWS)
    pue = "Energy includes PUE" + (", except that of the network." if costs.network_kwh.any() else ".")
    sleeping = bool(costs.sleeps.any())
    rows = tuple(
        (
            str(fleet.names[i]),
            str(fleet.zone[i]),
            " / ".join(f"{float(kwh):,.4g}" for kwh in costs.level_kwh[i, : costs.levels(i)]),
            f"{float(costs.idle_kwh[i] + costs.up_kwh[i]):,.4g}",
            *([f"{float(costs.startup_kwh[i]):,.4g}"] if sleeping else []),
            f"{float(fleet.pue[i]):g}",
        )
        for i in range(count)
    )
    return _table(
        "Energy as planned",
        f"client|zone|>kWh a round{' (by level)' if fleet.levels else ''}|>idle kWh a slot"
        f"{'|>kWh a start' if sleeping else ''}|>PUE",
        rows,
        note=f"The first {count} of {len(fleet):,} clients." if len(fleet) > count else pue,
    )


def provenance(statement: Statement) -> Table:
    """Show every intensity series of the plan."""
    rows = tuple(
        (
            one.zone,
            one.source,
            "yes" if one.synthetic else "no",
            _hours(one.filled_hours),
            *(f"{G_PER_KG * value:.1f}" for value in (one.low_kg_per_kwh, one.mean_kg_per_kwh, one.high_kg_per_kwh)),
        )
        for one in statement.series
    )
    return _table(
        "",
        "zone|source|synthetic|filled hours|>lowest g/kWh|>mean|>highest",
        rows,
        note=f"{statement.run.factor} intensity over the plan's horizon; filled hours were missing and are interpolated.",
    )


def data_sources(statement: Statement) -> Table:
    """Show the intensity values of the ledger by source: attribution, licence and hash."""
    return _table(
        "Intensity data in the ledger",
        "source|kind|>values|slots from|attribution|licence|SHA-256 of the values",
        tuple(
            (
                one.source,
                one.kind,
                f"{one.values:,}",
                f"{one.first[:16]} to {one.last[:16]}",
                one.attribution,
                one.licence,
                one.sha256,
            )
            for one in statement.sources[:MOST_ROWS]
        ),
        note=f"The first {MOST_ROWS} of {len(statement.sources):,}; all are in the JSON."
        if len(statement.sources) > MOST_ROWS
        else "Values are means over a slot, as charged or settled.",
    )


def checked(found: CheckedLine) -> Table:
    """Show one number from its source to the ledger."""
    later = f", changed by {', '.join(map(str, found.changed_by))}" if found.changed_by else ""
    difference = found.kg - found.product_kg
    agrees = abs(difference) <= 1e-9 * max(abs(found.kg), 1.0)
    row = f"{client_name(found.client)} in {found.zone}, slot from {found.slot_start}, {CAUSES.get(found.cause, found.cause)}"
    return _facts(
        "",
        [
            ("line of the ledger", f"{found.line}{later}: {row}"),
            ("source row", f"{found.zone}, {found.slot_start}: {found.intensity_kg_per_kwh!r} kg/kWh"),
            ("source", f"{found.source}, {found.kind} intensity"),
            ("energy", f"{found.energy_kwh!r} kWh"),
            ("energy x intensity", f"{found.product_kg:.9f} kg CO2e"),
            ("the ledger has", f"{found.kg:.9f} kg CO2e"),
            ("result", "they agree" if agrees else f"they differ by {difference:+.9f} kg CO2e"),
        ],
    )


def _planned(realised: float, planned: float | None, kg: Kilograms) -> tuple[str, str]:
    """Return planned kg, and the difference of the realised kg."""
    return ("not recorded", "") if planned is None else (kg(planned), kg(realised - planned, sign=True))


def _sum(rows: Sequence[PlannedVsActual]) -> float | None:
    return None if any(one.planned_kg is None for one in rows) else sum(one.planned_kg or 0.0 for one in rows)


def _table(title: str, columns: str, rows: Iterable[tuple[str, ...]], **more: Any) -> Table:
    """Return a table; its columns are separated by |, and > marks those that hold numbers."""
    names = columns.split("|")
    right = tuple(name.startswith(">") for name in names)
    return Table(title=title, columns=tuple(name.lstrip(">") for name in names), right=right, rows=tuple(rows), **more)


def _facts(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    return _table(title, "|", rows)


def _shared(groups: Sequence[Group], total: float) -> float | None:
    """Return the total that shares refer to; None if groups cancel, such as charges at a bound and their settlements."""
    return None if any(group.kg < 0 for group in groups) else total


def _amounts(group: Group, total: float | None, kg: Kilograms) -> tuple[str, ...]:
    return (f"{group.lines:,}", f"{group.energy_kwh:,.3f}", kg(group.kg), share_of(group.kg, total))


def _grouped(
    groups: Sequence[Group],
    total: float,
    kg: Kilograms,
    name: Callable[[tuple[str, ...]], tuple[str, ...]],
    *,
    mean: bool = False,
) -> tuple[tuple[str, ...], ...]:
    rows = []
    shared = _shared(groups, total)
    for group in groups[:MOST_ROWS]:
        row = (*name(group.key), *_amounts(group, shared, kg))
        if mean:
            row = (*row, f"{G_PER_KG * group.kg / group.energy_kwh:.1f}" if group.energy_kwh else "")
        rows.append(row)
    rest = groups[MOST_ROWS:]
    if rest:
        more = Group(
            key=(),
            kg=sum(g.kg for g in rest),
            energy_kwh=sum(g.energy_kwh for g in rest),
            lines=sum(g.lines for g in rest),
        )
        blanks = ("",) * (len(rows[0]) - 5 - mean)
        rows.append((f"{len(rest):,} more", *blanks, *_amounts(more, shared, kg), *([""] if mean else [])))
    return tuple(rows)


def _kg(value: float | None, kg: Kilograms, unit: str = "") -> str:
    return "not known" if value is None else f"{kg(value)}{unit}"


def _saved(total: float, other: float | None) -> str:
    return percent_change(total, other) if other else ""


def _score(metric: MetricLabel, value: float | None) -> str:
    return "" if value is None else " ".join(style.score(metric, value)).strip()


def _hours(filled: Sequence[str]) -> str:
    shown = ", ".join(filled[:4])
    return f"{len(filled)}: {shown}{', ..' if len(filled) > 4 else ''}" if filled else "none"
