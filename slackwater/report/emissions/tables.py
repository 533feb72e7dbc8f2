"""Tables of the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slackwater.accounting.account import SERVER, Group
from slackwater.accounting.statement import Statement
from slackwater.accounting.uncertainty import MEANING
from slackwater.report import style
from slackwater.report.emissions.blocks import Block, Table
from slackwater.report.emissions.numbers import Kilograms, percent_change
from slackwater.units import G_PER_KG

MOST_ROWS = 200
"""Of a table; what is beyond it is added up in one row, and is all in the JSON."""


def client_name(name: str) -> str:
    """What a report calls a client; the server has no name in the ledger."""
    return name or SERVER


def plan_facts(statement: Statement, kg: Kilograms) -> Table:
    """What was asked for, and what the planner proved."""
    run, planned = statement.run, statement.planned
    rows = [
        ("budget", "none" if run.budget_kg is None else f"{run.budget_kg:.9g} kg CO2e"),
        ("planned", f"{kg(planned.planned_kg)} kg CO2e in {planned.client_slots_planned:,} client-slots"),
        ("time", f"{run.first_slot} to {run.plan_ends_at}, slots of {run.slot_minutes} minutes"),
        (
            "rounds and slack",
            f"{run.planned_rounds:,} slots needed, {run.slack:,} more allowed, fine-tuning {run.fine_tune:,}",
        ),
        ("fairness", f"alpha {run.alpha}"),
        ("proof", f"{run.plan_message} (solver: {run.solver})"),
        ("training", f"task {run.task}, aggregator {run.aggregator}, seed {run.seed}"),
    ]
    return _facts("", rows)


def happened(statement: Statement, kg: Kilograms) -> list[Block]:
    """By cause, by how it was booked and known, and what went wrong."""
    found = statement.account
    rows = [(f"cause: {group.key[0]}", group) for group in found.by_cause.groups]
    rows += [(f"booked as: {group.key[0]}", group) for group in found.by_kind.groups]
    rows += [(f"energy: {group.key[0]}", group) for group in found.by_method.groups]
    table = Table(
        title="The ledger by cause, kind and method",
        columns=("", "lines", "kWh", "kg CO2e", "share"),
        right=(False, True, True, True, True),
        rows=tuple((name, *_amounts(group, found.total_kg, kg)) for name, group in rows),
        note="Each of the three adds up to the total.",
    )
    facts = [
        (f"{one.kind}s", f"{one.lines:,} charges of {kg(one.charged_kg)} kg changed by {kg(one.kg, sign=True)} kg")
        for one in found.differences
    ]
    facts.append(("tried again", f"{found.retried_lines:,} lines, {kg(found.retried_kg)} kg"))
    facts.append(("charged without a round", f"{found.slots_without_round:,} slots, {kg(found.kg_without_round)} kg"))
    if found.kg_without_energy:
        facts.append(("without energy", f"{kg(found.kg_without_energy)} kg were given as such"))
    return [table, _facts("Corrections and failures", facts)]


def events(statement: Statement) -> Table:
    """Warnings and errors."""
    found = statement.account
    hidden = found.event_count - len(found.events)
    return Table(
        title="Warnings and errors",
        columns=("at", "level", "slot", "message"),
        right=(False, False, True, False),
        rows=tuple((e.at[:19], e.level, "" if e.slot is None else str(e.slot), e.message) for e in found.events),
        note=f"The last {len(found.events)} of {found.event_count:,}." if hidden else "",
    )


def clients(statement: Statement, kg: Kilograms) -> Table:
    """Planned and realised by client."""
    places: dict[str, list[str]] = {}
    energy: dict[str, float] = {}
    for group in statement.account.by_client.groups:
        places.setdefault(group.key[0], []).append(group.key[1])
        energy[group.key[0]] = energy.get(group.key[0], 0.0) + group.energy_kwh
    zone_of = dict(zip(map(str, statement.plan.problem.fleet.names), statement.plan.problem.fleet.zone, strict=True))

    def row(name: str, zone: str, realised: float, planned: float, slots: str, kwh: float) -> tuple[str, ...]:
        return name, zone, kg(realised), kg(planned), kg(realised - planned, sign=True), slots, f"{kwh:,.3f}"

    both, rows = statement.planned, []
    for one in both.by_client[:MOST_ROWS]:
        zones = ", ".join(dict.fromkeys(places.get(one.name) or [str(zone_of.get(one.name, ""))]))
        slots = "" if one.realised_slots is None else f"{one.realised_slots:,} of {one.planned_slots:,}"
        kwh = energy.get(one.name, 0.0)
        rows.append(row(client_name(one.name), zones, one.realised_kg, one.planned_kg, slots, kwh))
    rest = both.by_client[MOST_ROWS:]
    if rest:
        realised, planned = sum(one.realised_kg for one in rest), sum(one.planned_kg for one in rest)
        rows.append(
            row(f"{len(rest):,} more", "", realised, planned, "", sum(energy.get(one.name, 0.0) for one in rest))
        )
    return Table(
        title="By client",
        columns=("client", "zone", "realised kg", "planned kg", "difference", "slots", "kWh"),
        right=(False, False, True, True, True, True, True),
        rows=tuple(rows),
        total=row("total", "", both.realised_kg, both.planned_kg, "", statement.account.energy_kwh),
    )


def days(statement: Statement, kg: Kilograms) -> Table:
    """Planned and realised by day, UTC."""

    def row(name: str, realised: float, planned: float) -> tuple[str, ...]:
        return name, kg(realised), kg(planned), kg(realised - planned, sign=True)

    both = statement.planned
    rows = [row(one.name, one.realised_kg, one.planned_kg) for one in both.by_day[:MOST_ROWS]]
    rest = both.by_day[MOST_ROWS:]
    if rest:
        realised, planned = sum(one.realised_kg for one in rest), sum(one.planned_kg for one in rest)
        rows.append(row(f"{len(rest):,} more", realised, planned))
    return Table(
        title="By day (UTC)",
        columns=("day", "realised kg", "planned kg", "difference"),
        right=(False, True, True, True),
        rows=tuple(rows),
        total=row("total", both.realised_kg, both.planned_kg),
    )


def deviations(statement: Statement, kg: Kilograms) -> Table:
    """Client-slots that came otherwise."""
    both = statement.planned
    count = both.client_slots_other_kg + both.client_slots_missed + both.client_slots_extra
    return Table(
        title="Client-slots that came otherwise than planned",
        columns=("slot", "start", "client", "what", "planned kg", "realised kg"),
        right=(True, False, False, False, True, True),
        rows=tuple(
            (str(one.slot), one.start, client_name(one.client), one.what, kg(one.planned_kg), kg(one.realised_kg))
            for one in both.deviations
        ),
        note=f"The {len(both.deviations)} largest of {count:,}." if count > len(both.deviations) else "",
    )


def sources(statement: Statement, kg: Kilograms) -> tuple[Block, ...]:
    """By zone, and by source of the intensity."""
    found = statement.account
    return (
        Table(
            title="By zone",
            columns=("zone", "lines", "kWh", "kg CO2e", "share", "g/kWh"),
            right=(False, True, True, True, True, True),
            rows=_grouped(found.by_zone.groups, found.total_kg, kg, lambda key: (key[0] or "none",), mean=True),
            total=("total", f"{found.lines:,}", f"{found.energy_kwh:,.3f}", kg(found.total_kg), "", ""),
            note="g/kWh is the mean of the hours in which energy was drawn, weighted by it.",
        ),
        Table(
            title="By source of the intensity",
            columns=("source", "intensity", "factor", "booked as", "lines", "kWh", "kg CO2e", "share"),
            right=(False, False, False, False, True, True, True, True),
            rows=_grouped(found.by_source.groups, found.total_kg, kg, lambda key: key),
            total=("total", "", "", "", f"{found.lines:,}", f"{found.energy_kwh:,.3f}", kg(found.total_kg), ""),
        ),
    )


def comparison(statement: Statement, kg: Kilograms) -> Table:
    """This run, and what it could have been."""
    total, work, annual, budget = (
        statement.account.total_kg, statement.same_work, statement.annual, statement.same_budget,
    )  # fmt: skip
    rows = [
        ("this run", kg(total), "", f"{statement.run.client_rounds:,}", _accuracy(statement.run.accuracy), "the ledger")
    ]
    rows.append(
        (
            "same work, no slack",
            _kg(work.kg, kg),
            _saved(total, work.kg),
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
            _accuracy(budget.accuracy),
            f"Everyone in every slot until the budget is spent; {budget.basis}.",
        )
    )
    rows.append(
        ("at annual averages", _kg(annual.kg, kg), _saved(total, annual.kg), "", "", f"Same energy; {annual.basis}.")
    )
    return Table(
        title="",
        columns=("", "kg CO2e", "this run is", "client-rounds", "accuracy", "how"),
        right=(False, True, True, True, True, False),
        rows=tuple(rows),
    )


def sci(statement: Statement, kg: Kilograms) -> Table:
    """The parts of the score."""
    found = statement.sci
    embodied = "not given" if found.embodied_kg is None else f"{kg(found.embodied_kg)} kg CO2e"
    return _facts(
        "",
        [
            ("E, energy", f"{found.energy_kwh:,.3f} kWh"),
            ("O = E x I, by the hour", f"{kg(found.operational_kg)} kg CO2e"),
            ("M, embodied", embodied),
            ("R", f"{found.units:,g} x {found.functional_unit}"),
            ("SCI = (O + M) per R", f"{found.score_g:,.4f} g CO2e per {found.functional_unit}"),
        ],
    )


def scope2(statement: Statement, kg: Kilograms) -> Table:
    """Hourly first, annual beside it."""
    found = statement.scope2
    return _facts(
        "",
        [
            (f"hourly, {found.factor} (the ledger)", _kg(found.hourly_kg, kg, " kg CO2e")),
            ("hourly, direct", _kg(found.direct_kg, kg, " kg CO2e")),
            (f"at annual averages, {found.factor}", _kg(found.annual_kg, kg, " kg CO2e")),
        ],
    )


def uncertainty(statement: Statement, kg: Kilograms) -> Table:
    """What the charges rest on."""
    found = statement.uncertainty
    charged = sum(found.charged_kg_by_intensity.values()) or 1.0
    rows = [
        (f"intensity: {kind}", kg(amount), style.percent(amount / charged), MEANING.get(kind, ""))
        for kind, amount in found.charged_kg_by_intensity.items()
    ]
    meaning = {"modelled": "power x time, as given", "measured": "read from a meter or a counter"}
    rows += [
        (f"energy: {method}", kg(amount), style.percent(amount / charged), meaning.get(method, ""))
        for method, amount in found.charged_kg_by_method.items()
    ]
    return Table(
        title="What the charges rest on",
        columns=("", "kg CO2e", "share", "meaning"),
        right=(False, True, True, False),
        rows=tuple(rows),
    )


def energy_factors(statement: Statement) -> Table:
    """Energy of a round as the scenario gives it."""
    fleet, costs = statement.plan.problem.fleet, statement.plan.problem.costs
    count = min(len(fleet), MOST_ROWS)
    rows = tuple(
        (
            str(fleet.names[i]),
            str(fleet.zone[i]),
            f"{float(costs.energy_kwh[i]):,.4g}",
            f"{float(costs.idle_kwh[i]):,.4g}",
            f"{float(fleet.pue[i]):g}",
        )
        for i in range(count)
    )
    return Table(
        title="Energy as planned",
        columns=("client", "zone", "kWh a round", "idle kWh a slot", "PUE"),
        right=(False, False, True, True, True),
        rows=rows,
        note=f"The first {count} of {len(fleet):,} clients." if len(fleet) > count else "PUE is in the energy.",
    )


def provenance(statement: Statement) -> Table:
    """Every series that the plan holds."""
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
    return Table(
        title="",
        columns=("zone", "source", "synthetic", "filled hours", "lowest g/kWh", "mean", "highest"),
        right=(False, False, False, False, True, True, True),
        rows=rows,
        note=f"{statement.run.factor} intensity over the plan's horizon; filled hours were missing and are interpolated.",
    )


def _facts(title: str, rows: Sequence[tuple[str, str]]) -> Table:
    return Table(title=title, columns=("", ""), right=(False, False), rows=tuple(rows))


def _amounts(group: Group, total: float, kg: Kilograms) -> tuple[str, ...]:
    return (
        f"{group.lines:,}",
        f"{group.energy_kwh:,.3f}",
        kg(group.kg),
        style.percent(group.kg / total) if total else "",
    )


def _grouped(
    groups: Sequence[Group],
    total: float,
    kg: Kilograms,
    name: Callable[[tuple[str, ...]], tuple[str, ...]],
    *,
    mean: bool = False,
) -> tuple[tuple[str, ...], ...]:
    rows = []
    for group in groups[:MOST_ROWS]:
        row = (*name(group.key), *_amounts(group, total, kg))
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
        rows.append((f"{len(rest):,} more", *blanks, *_amounts(more, total, kg), *([""] if mean else [])))
    return tuple(rows)


def _kg(value: float | None, kg: Kilograms, unit: str = "") -> str:
    return "not known" if value is None else f"{kg(value)}{unit}"


def _saved(total: float, other: float | None) -> str:
    return percent_change(total, other) if other else ""


def _accuracy(value: float | None) -> str:
    return "" if value is None else style.percent(value)


def _hours(filled: Sequence[str]) -> str:
    shown = ", ".join(filled[:4])
    return f"{len(filled)}: {shown}{', ..' if len(filled) > 4 else ''}" if filled else "none"
