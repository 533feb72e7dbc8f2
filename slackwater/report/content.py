"""Turn a statement into the blocks of its report: texts, their order and digits."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import accumulate

from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from slackwater.charts import style
from slackwater.ledger.schema import KINDS
from slackwater.report import tables
from slackwater.report.account import share_of
from slackwater.report.blocks import (
    Block,
    Charts,
    Code,
    Document,
    Figure,
    Figures,
    Kilograms,
    Notes,
    Paragraph,
    Section,
    Table,
    percent_change,
)
from slackwater.report.drawing import Bar, Drawing, bars, progress
from slackwater.report.evidence import RECOMPUTE
from slackwater.report.exports import model_card
from slackwater.report.statement import Statement
from slackwater.units import G_PER_KG, utc

_MOST_BARS = 20
_OWN_METRICS = 4  # of an app's own numbers that the first page shows


def _period(statement: Statement) -> str:
    """Return the charged period; before the first charge, the plan's."""
    by, run = statement.preparation, statement.run
    return f"{by.period_start or run.first_slot} to {by.period_end or run.plan_ends_at}"


def document(statement: Statement) -> Document:
    """Return the report of a statement."""
    run, kg = statement.run, Kilograms.for_total(statement.account.total_kg)
    words = KINDS[run.kind]
    unfinished = (
        "" if run.status == "done" else f" The run is not finished ({run.status}); these are its figures so far."
    )
    held = [f"{one.client} in slot {one.slot}" for one in statement.account.quarantined]
    false = f" Energy reports that are too large and not confirmed: {', '.join(held)}." if held else ""
    synthetic = "Synthetic intensity: typical profiles, not measured. This report shows the method, not real emissions."
    return Document(
        title=f"Emissions report: {words.label} run",
        kind=words.sentence,
        date=statement.preparation.prepared_on,
        subtitle=f"{run.task}, {run.clients:,} clients in {len(run.zones):,} zones, {_period(statement)}",
        warning=f"{synthetic if run.synthetic else ''}{unfinished}{false}".strip(),
        sections=(
            Section("At a glance", (_glance(statement, kg), Charts(_charts(statement, kg)))),
            Section("About this report", (tables.preparation(statement),)),
            Section("What was planned", (tables.plan_facts(statement, kg),)),
            Section("What happened", _happened(statement, kg)),
            Section("Planned against realised", _beside(statement, kg)),
            Section("Emissions by zone and source", tables.sources(statement, kg)),
            Section("Comparison", _comparison(statement, kg)),
            Section("Software Carbon Intensity (ISO/IEC 21031)", _sci(statement, kg)),
            Section("GHG Protocol scope 2, location-based", _scope2(statement, kg)),
            Section("Uncertainty", _uncertainty(statement, kg)),
            Section("Method and factors", _method(statement)),
            Section("Check one number", _checked(statement)),
            Section(
                "Provenance of the intensity",
                (tables.provenance(statement), tables.data_sources(statement), *_recomputed()),
            ),
            Section("For a model card", _card(statement)),
        ),
        closing=f"{words.title} {run.id} in {run.folder}, started {run.created_at}, with Slackwater {run.slackwater}. "
        "Each row is rounded; totals come from the ledger.",
    )


def _glance(statement: Statement, kg: Kilograms) -> Figures:
    run, total = statement.run, statement.account.total_kg
    budget = "no budget was set"
    if run.budget_kg is not None:
        share = share_of(total, run.budget_kg)
        budget = f"{share}{' of ' if share else ''}the budget of {run.budget_kg:.9g} kg"
    items = [Figure(KINDS[run.kind].emitted, kg(total), "kg CO2e", budget)]
    if run.status != "done":
        note = "spent, plus the rest of the plan"
        items.append(Figure("Expected at the end", kg(statement.figures.expected_kg), "kg CO2e", note))
    if statement.same_work.kg and (change := percent_change(total, statement.same_work.kg)):
        without = f"same work without slack: {kg(statement.same_work.kg)} kg"
        if statement.same_work.forecast:  # what came differs from the forecasts by more than slack saves
            change, without = "not known", f"{without} by the first plan's forecasts, which cannot be compared"
        items.append(Figure("Against no slack", change, "", without))
    items.append(
        Figure(
            "SCI",
            f"{statement.sci.score_g:,.4g}",
            f"g per {style.shortened(statement.sci.functional_unit, 40)}",
            "with embodied emissions" if statement.sci.embodied_kg is not None else "without embodied emissions",
        )
    )
    items.append(_scope2_figure(statement, kg))
    if statement.figures.money is not None:
        note = "at the scenario's prices, for all energy in the ledger"
        items.append(Figure("Electricity", f"{statement.figures.money:,.2f}", str(statement.figures.currency), note))
    if run.score is not None:
        note = f"on the test set{run.metric.direction}; {run.client_rounds:,} client-rounds in {run.rounds:,} rounds"
        items.append(Figure(run.metric.title, *style.score(run.metric, run.score), note))
    for name, value in list(run.metrics.items())[:_OWN_METRICS]:
        items.append(
            Figure(style.shortened(name, 40), f"{value:.4g}", "", "the app's own number, after the last round")
        )
    return Figures(tuple(items))


def _scope2_figure(statement: Statement, kg: Kilograms) -> Figure:
    """Return the scope 2 figure to report, with its emission factor."""
    found = statement.scope2
    if found.reported_kg is None:
        return Figure("Scope 2, hourly", "none", "", f"the intensity is {found.factor}")
    note = f"location-based, {found.reported_factor}"
    if found.factor == "lifecycle":
        hourly = "" if found.hourly_kg is None else kg(found.hourly_kg)
        note += f"; life-cycle, as in the ledger: {hourly} kg" if found.direct_kg is not None else "; no direct figure"
    return Figure("Scope 2, hourly", kg(found.reported_kg), "kg CO2e", note)


def _charts(statement: Statement, kg: Kilograms) -> tuple[Drawing, ...]:
    both, total = statement.planned.kg_by_slot, statement.account.total_kg
    planned = [] if any(a is None for a, _ in both) else list(accumulate(a or 0.0 for a, _ in both))
    realised = list(accumulate(b for _, b in both))[: statement.planned.reached_slots]
    first: list[float] = []
    if statement.planned.replans:
        plan = statement.plan
        first = list(accumulate(plan.kg_by_slot[: plan.problem.rounds + plan.end].tolist()))
    slots = max(len(both), len(first))
    course = progress(
        "Emissions over time",
        f"Cumulative planned and realised emissions over {slots} slots; realised ends at {kg(total)} kg.",
        planned=planned,
        first_plan=first,
        realised=realised,
        budget=statement.run.budget_kg,
        ticks=_ticks(statement, slots),
        slots=slots,
    )
    shown = statement.planned.by_client[:_MOST_BARS]
    more = (
        f", the {len(shown)} largest of {len(statement.planned.by_client):,}"
        if len(statement.planned.by_client) > len(shown)
        else ""
    )
    clients = bars(
        f"By client{more}, kg CO2e",
        "Realised emissions by client; a mark shows the planned ones.",
        [
            Bar(name=tables.client_name(one.name), value=one.realised_kg, text=kg(one.realised_kg), mark=one.planned_kg)
            for one in shown
        ],
        legend=(("realised", "realised"), ("ink", "planned")),
    )
    return course, clients


def _ticks(statement: Statement, slots: int) -> list[tuple[float, str]]:
    """Return the ticks of the time axis, at whole days if there are several."""
    start, minutes = utc(statement.run.first_slot), statement.run.slot_minutes
    days = slots * minutes / 1440
    if days < 2.5:
        hours = next(step for step in (1, 2, 3, 6, 12) if days * 24 / step <= 5 or step == 12)
        step, form = timedelta(hours=hours), "%d %b %H:%M"
    else:
        step, form = timedelta(days=max(1, round(days / 5))), "%d %b"
    anchor = datetime(start.year, start.month, start.day, tzinfo=start.tzinfo)
    found = []
    for number in range(200):
        slot = (anchor + number * step - start).total_seconds() / 60 / minutes
        if 0 <= slot <= 0.96 * slots:
            found.append((slot, (anchor + number * step).strftime(form)))
    return found[:7]


def _happened(statement: Statement, kg: Kilograms) -> tuple[Block, ...]:
    found, run = statement.account, statement.run
    text = (
        f"{run.rounds:,} rounds and {run.client_rounds:,} client-rounds are recorded; the run is {run.status}. "
        f"The ledger has {found.lines:,} lines, {found.energy_kwh:,.3f} kWh and {kg(found.total_kg)} kg CO2e."
    )
    blocks: list[Block] = [Paragraph(text), *tables.happened(statement, kg)]
    if found.event_count:
        blocks.append(tables.events(statement))
    return tuple(blocks)


def _beside(statement: Statement, kg: Kilograms) -> tuple[Block, ...]:
    both = statement.planned
    compared = (
        f"Of {both.client_slots_planned:,} planned client-slots, {both.client_slots_as_planned:,} ran as planned, "
        f"{both.client_slots_other_kg:,} ran with other kg and {both.client_slots_missed:,} were missed. "
        f"{both.client_slots_extra:,} ran without being planned."
    )
    if not both.noted:
        compared = (
            "Only participation is compared, because an older version of Slackwater re-planned the run without "
            f"recording the expected kg of each slot. Of {both.client_slots_planned:,} requested client-slots, "
            f"{both.client_slots_missed:,} were missed."
        )
    to_come = "" if statement.run.status == "done" else f" Expected at the end: {kg(both.expected_kg)} kg."
    blocks: list[Block] = [
        Paragraph(
            f"Planned: {kg(both.planned_kg)} kg for the whole run, {kg(both.planned_kg_until_now)} kg up to the "
            f"last slot reached ({both.reached_slots:,} of {both.planned_slots:,}). Realised: {kg(both.realised_kg)} kg."
            f"{to_come} {compared}"
        ),
        *([Paragraph(_replanned(statement, kg))] if both.replans else []),
        tables.clients(statement, kg),
        tables.days(statement, kg),
    ]
    if both.deviations:
        blocks.append(tables.deviations(statement, kg))
    return tuple(blocks)


def _replanned(statement: Statement, kg: Kilograms) -> str:
    both = statement.planned
    return (
        f"The run was {tables.replanned_times(both.replans)}. A slot's planned kg come from the plan in force when the "
        f"slot was decided. The first plan expected {kg(both.first_plan_kg)} kg for the whole run."
    )


def _checked(statement: Statement) -> tuple[Block, ...]:
    found = statement.checked
    if found is None:
        return (Paragraph("No line of the ledger has both energy and intensity, so no product can be checked."),)
    return (
        Paragraph(
            "This is the largest training charge in the ledger, recomputed from its source. You can check every "
            "other line in the same way from the columns of --csv."
        ),
        tables.checked(found),
    )


def _recomputed() -> tuple[Block, ...]:
    return (
        Paragraph(
            "The SHA-256 of a source covers its ledger lines 'zone,slot_start,intensity_kg_per_kwh': distinct, sorted, "
            "each ended by a line feed. This Python code recomputes it from the file that --csv writes:"
        ),
        Code(RECOMPUTE),
    )


def _comparison(statement: Statement, kg: Kilograms) -> tuple[Block, ...]:
    total, annual, work = statement.account.total_kg, statement.annual.kg, statement.same_work.kg
    items = [Bar(name="this run", value=total, text=kg(total))]
    if work is not None:
        name = "same work, no slack (forecast)" if statement.same_work.forecast else "same work, no slack"
        items.append(Bar(name=name, value=work, text=kg(work), role="other"))
    if annual is not None:
        items.append(Bar(name="at annual averages", value=annual, text=kg(annual), role="other"))
    drawing = bars(
        "This run and its alternatives, kg CO2e",
        "This run, the same work without slack, and the same energy at annual averages.",
        items,
    )
    return (
        Charts((drawing,)),
        tables.comparison(statement, kg),
        Paragraph(
            "The annual figure mixes two effects: the chosen hours and the season of the run. Only the first is due "
            "to the planner."
        ),
    )


def _sci(statement: Statement, kg: Kilograms) -> tuple[Block, ...]:
    return (tables.bridge(statement, kg), tables.sci(statement, kg), Notes(statement.sci.boundary))


def _scope2(statement: Statement, kg: Kilograms) -> tuple[Block, ...]:
    return (tables.scope2(statement, kg), Notes(statement.scope2.notes))


def _uncertainty(statement: Statement, kg: Kilograms) -> tuple[Block, ...]:
    found = statement.uncertainty
    range_text = "Range of the total: not quantified."
    if found.relative is not None and found.low_kg is not None and found.high_kg is not None:
        range_text = f"Range of the total: {kg(found.low_kg)} to {kg(found.high_kg)} kg (± {found.relative:.1%})."
        settings = statement.settings
        if settings.energy_uncertainty is None or settings.intensity_uncertainty is None:
            missing = "energy" if settings.energy_uncertainty is None else "intensity"
            range_text += f" It leaves out the uncertainty of the {missing}, so the true range is wider."
    return (tables.uncertainty(statement, kg), Paragraph(range_text), Notes(found.sentences))


_SLEEPING = (
    "Clients with a start-up or a minimum block are off between blocks: they draw idle power only while they are up, and "
    "every start is charged. "
)


def _method(statement: Statement) -> tuple[Block, ...]:
    run = statement.run
    return (
        Paragraph(
            "kg CO2e = energy (kWh) x intensity (kg/kWh), for each client and each slot of "
            f"{run.slot_minutes} minutes. A charge is written before its slot is trained and never changed; a correction "
            "adds a line. Training is charged on top of idle draw. Idle draw is charged in every slot until the end, "
            "the server in every slot with training. "
            + (_SLEEPING if statement.plan.problem.costs.sleeps.any() else "")
            + "Idle draw, communication (network) and evaluation are charged if "
            "the scenario gives them. Causes are named after the phases of arXiv 2602.00343. Energy includes PUE, "
            "if given."
        ),
        Paragraph(
            f"Intensity: {run.factor} emissions of the grid's mix in the client's zone, averaged over the slot, "
            "location-based. "
            + (
                "Life-cycle values include building power stations and supplying fuel."
                if run.factor == "lifecycle"
                else "Direct values count the power stations' emissions and nothing upstream."
                if run.factor == "direct"
                else "Its source says what it counts."
            )
        ),
        tables.energy_factors(statement),
    )


def _card(statement: Statement) -> tuple[Block, ...]:
    grams = G_PER_KG * statement.account.total_kg
    return (
        Paragraph(f"Metadata for the Hugging Face Hub, which counts in grams ({grams:,.3f} g):"),
        Code(model_card(statement)),
    )


_MOST_ROWS = 15
_LONGEST = 34


def summary(statement: Statement) -> RenderableType:
    """Return the summary for the terminal."""
    kg = Kilograms.for_total(statement.account.total_kg)
    shown = document(statement)
    glance = shown.sections[0].blocks[0]
    parts: list[RenderableType] = [
        Text(shown.title, style="bold"),
        Text(shown.kind),
        Text(style.printable(shown.subtitle), style="dim"),
    ]
    if shown.warning:
        parts.append(Text(shown.warning, style="bold yellow"))
    if isinstance(glance, Figures):
        parts.append(_figures(glance))
    zones, sources = tables.sources(statement, kg)
    causes = tables.happened(statement, kg)[0]
    for table in (tables.clients(statement, kg), tables.days(statement, kg), zones, sources, causes):
        if isinstance(table, Table):
            parts += [Text(""), _table(table)]
    parts += [Text(""), Text("Full report: --html, --pdf, --csv, --codecarbon or --json.", style="dim")]
    return Group(*parts)


def _figures(block: Figures) -> RichTable:
    table = RichTable(box=None, show_header=False, pad_edge=False)
    for item in block.items:
        value = style.printable(f"{item.value} {item.unit}".strip())
        table.add_row(Text(item.name), Text(value, style="bold"), Text(style.printable(item.note), style="dim"))
    return table


def _table(table: Table) -> RichTable:
    made = RichTable(
        title=table.title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim"
    )
    for name, right in zip(table.columns, table.right, strict=True):
        made.add_column(name, justify="right" if right else "left", no_wrap=right)
    for row in table.rows[:_MOST_ROWS]:
        made.add_row(*(Text(style.shortened(cell, _LONGEST)) for cell in row))
    if len(table.rows) > _MOST_ROWS:
        made.add_row(Text(f"and {len(table.rows) - _MOST_ROWS:,} more", style="dim"))
    if table.total is not None:
        made.add_row(*(Text(cell, style="bold") for cell in table.total))
    return made
