"""From a statement to the blocks of its report: what is said, in which order, with which digits."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import accumulate

from slackwater.accounting.model_card import model_card
from slackwater.accounting.statement import Statement
from slackwater.report import style
from slackwater.report.emissions import tables
from slackwater.report.emissions.blocks import Block, Charts, Code, Document, Figure, Figures, Notes, Paragraph, Section
from slackwater.report.emissions.drawing import Bar, Drawing, bars, progress
from slackwater.report.emissions.numbers import Kilograms, percent_change
from slackwater.units import G_PER_KG, utc

_MOST_BARS = 20


def document(statement: Statement) -> Document:
    """The report of a statement."""
    run, kg = statement.run, Kilograms.for_total(statement.account.total_kg)
    unfinished = "" if run.status == "done" else f" The run is not done ({run.status}): this is what it emitted so far."
    synthetic = "Synthetic intensity: typical profiles, not measured. This report shows the method, not real emissions."
    return Document(
        title="Emissions report",
        subtitle=f"{run.task}, {run.clients:,} clients in {len(run.zones):,} zones, {run.first_slot} to {run.plan_ends_at}",
        warning=f"{synthetic if run.synthetic else ''}{unfinished}".strip(),
        sections=(
            Section(title="At a glance", blocks=(_glance(statement, kg), Charts(drawings=_charts(statement, kg)))),
            Section(title="What was planned", blocks=(tables.plan_facts(statement, kg),)),
            Section(title="What happened", blocks=_happened(statement, kg)),
            Section(title="Planned against realised", blocks=_beside(statement, kg)),
            Section(title="Where the emissions are from", blocks=tables.sources(statement, kg)),
            Section(title="Comparison", blocks=_comparison(statement, kg)),
            Section(title="Software Carbon Intensity (ISO/IEC 21031)", blocks=_sci(statement, kg)),
            Section(title="GHG Protocol scope 2, location-based", blocks=_scope2(statement, kg)),
            Section(title="Uncertainty", blocks=_uncertainty(statement, kg)),
            Section(title="Method and factors", blocks=_method(statement)),
            Section(title="Provenance of the intensity", blocks=(tables.provenance(statement),)),
            Section(title="For a model card", blocks=_card(statement)),
        ),
        closing=f"Run {run.id} in {run.folder}, begun {run.created_at}, with Slackwater {run.slackwater}. "
        "Rows are rounded one by one; totals are the ledger's.",
    )


def _glance(statement: Statement, kg: Kilograms) -> Figures:
    run, total = statement.run, statement.account.total_kg
    budget = "no budget was set"
    if run.budget_kg is not None:
        budget = f"{style.percent(total / run.budget_kg)} of the budget of {run.budget_kg:.9g} kg"
    items = [Figure(name="Emitted", value=kg(total), unit="kg CO2e", note=budget)]
    if statement.same_work.kg:
        change = percent_change(total, statement.same_work.kg)
        items.append(
            Figure(
                name="Against no slack",
                value=change,
                unit="",
                note=f"the same work at once: {kg(statement.same_work.kg)} kg",
            )
        )
    items.append(
        Figure(
            name="SCI",
            value=f"{statement.sci.score_g:,.4g}",
            unit=f"g per {style.shortened(statement.sci.functional_unit, 40)}",
            note="embodied included" if statement.sci.embodied_kg is not None else "without embodied emissions",
        )
    )
    direct = statement.scope2.direct_kg
    strict = f"{kg(direct)} kg at direct intensity" if direct is not None else "see below"
    hourly = statement.scope2.hourly_kg
    items.append(
        Figure(
            name="Scope 2, hourly",
            value="none" if hourly is None else kg(hourly),
            unit="" if hourly is None else "kg CO2e",
            note="location-based, direct"
            if statement.scope2.factor == "direct"
            else f"{statement.scope2.factor}; {strict}",
        )
    )
    if run.accuracy is not None:
        note = f"on the test set; {run.client_rounds:,} client-rounds in {run.rounds:,} rounds"
        items.append(Figure(name="Accuracy", value=style.percent(run.accuracy), unit="", note=note))
    return Figures(items=tuple(items))


def _charts(statement: Statement, kg: Kilograms) -> tuple[Drawing, ...]:
    planned = list(accumulate(a for a, _ in statement.planned.kg_by_slot))
    realised = list(accumulate(b for _, b in statement.planned.kg_by_slot))[: statement.planned.reached_slots]
    slots, total = len(planned), statement.account.total_kg
    course = progress(
        "Spent over time",
        f"Planned and realised sum of emissions over {slots} slots; realised ends at {kg(total)} kg.",
        planned=planned,
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
        "Realised emissions by client, with the planned ones as a mark.",
        [
            Bar(name=tables.client_name(one.name), value=one.realised_kg, text=kg(one.realised_kg), mark=one.planned_kg)
            for one in shown
        ],
        legend=(("realised", "realised"), ("ink", "planned")),
    )
    return course, clients


def _ticks(statement: Statement, slots: int) -> list[tuple[float, str]]:
    """Up to six marks on the axis of time, at whole days where there are several."""
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
    blocks: list[Block] = [Paragraph(text=text), *tables.happened(statement, kg)]
    if found.event_count:
        blocks.append(tables.events(statement))
    return tuple(blocks)


def _beside(statement: Statement, kg: Kilograms) -> tuple[Block, ...]:
    both = statement.planned
    blocks: list[Block] = [
        Paragraph(
            text=f"Planned: {kg(both.planned_kg)} kg until the end, of which {kg(both.planned_kg_until_now)} kg until the "
            f"last slot reached ({both.reached_slots:,} of {both.planned_slots:,}). Realised: {kg(both.realised_kg)} kg. "
            f"Of {both.client_slots_planned:,} planned client-slots {both.client_slots_as_planned:,} came as planned, "
            f"{both.client_slots_other_kg:,} at other kg, {both.client_slots_missed:,} were missed; "
            f"{both.client_slots_extra:,} were not in the plan."
        ),
        tables.clients(statement, kg),
        tables.days(statement, kg),
    ]
    if both.deviations:
        blocks.append(tables.deviations(statement, kg))
    return tuple(blocks)


def _comparison(statement: Statement, kg: Kilograms) -> tuple[Block, ...]:
    total, annual, work = statement.account.total_kg, statement.annual.kg, statement.same_work.kg
    items = [Bar(name="this run", value=total, text=kg(total))]
    if work is not None:
        items.append(Bar(name="same work, no slack", value=work, text=kg(work), role="other"))
    if annual is not None:
        items.append(Bar(name="at annual averages", value=annual, text=kg(annual), role="other"))
    drawing = bars(
        "The same energy otherwise, kg CO2e",
        "This run beside the same work without slack and at annual averages.",
        items,
    )
    return (
        Charts(drawings=(drawing,)),
        tables.comparison(statement, kg),
        Paragraph(
            text="The annual figure differs for two reasons that it does not tell apart: the hours that were chosen, and "
            "the season of the run. Only the first is the planner's doing."
        ),
    )


def _sci(statement: Statement, kg: Kilograms) -> tuple[Block, ...]:
    return (tables.sci(statement, kg), Notes(items=statement.sci.boundary))


def _scope2(statement: Statement, kg: Kilograms) -> tuple[Block, ...]:
    return (tables.scope2(statement, kg), Notes(items=statement.scope2.notes))


def _uncertainty(statement: Statement, kg: Kilograms) -> tuple[Block, ...]:
    found = statement.uncertainty
    range_text = "Range of the total: not quantified."
    if found.relative is not None and found.low_kg is not None and found.high_kg is not None:
        range_text = f"Range of the total: {kg(found.low_kg)} to {kg(found.high_kg)} kg (± {found.relative:.1%})."
        settings = statement.settings
        if settings.energy_uncertainty is None or settings.intensity_uncertainty is None:
            missing = "energy" if settings.energy_uncertainty is None else "intensity"
            range_text += f" It leaves out how sure the {missing} is: the true range is wider."
    return (
        tables.uncertainty(statement, kg),
        Paragraph(text=range_text),
        Notes(items=found.sentences),
    )


def _method(statement: Statement) -> tuple[Block, ...]:
    run = statement.run
    return (
        Paragraph(
            text="kg CO2e = energy (kWh) x intensity (kg/kWh), for each client and each slot of "
            f"{run.slot_minutes} minutes, booked before the slot is trained and never changed: a correction is a further "
            "line. Training is charged on top of idle draw; idle draw in every slot until the end, where the scenario "
            "gives it; the server in every slot in which anyone trains. PUE, where given, is in the energy."
        ),
        Paragraph(
            text=f"Intensity: {run.factor} emissions of the grid's mix in the client's zone, averaged over the slot, "
            "location-based. "
            + (
                "Life-cycle values include building power stations and supplying fuel."
                if run.factor == "lifecycle"
                else "Direct values count what the power stations emit, and nothing upstream."
                if run.factor == "direct"
                else "Read its source for what it counts."
            )
        ),
        tables.energy_factors(statement),
    )


def _card(statement: Statement) -> tuple[Block, ...]:
    grams = G_PER_KG * statement.account.total_kg
    return (
        Paragraph(text=f"Metadata for the Hugging Face Hub, which counts in grams ({grams:,.3f} g):"),
        Code(text=model_card(statement)),
    )
