"""Views of plans, advice, traces and results for a notebook: HTML, figures and data frames."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from html import escape
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from slackwater.charts import result_charts, style
from slackwater.charts.figures import advice_chart
from slackwater.charts.schedule_chart import has_times, schedule_chart
from slackwater.charts.style import headline, kilograms, new_figure, printable, tidy
from slackwater.charts.terminal import ADVICE, advice_cells, advice_notes, answer_lines
from slackwater.errors import SlackwaterError
from slackwater.intensity.traces import Traces
from slackwater.ledger.schema import KINDS
from slackwater.planning.advice import Advice, AdviceRow
from slackwater.planning.plan import Plan
from slackwater.units import G_PER_KG, iso, local_text, utc

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from slackwater.training.loop import Result

_MOST_ROWS = 30
_MOST_LINES = 8
_DOTS = 150  # per inch


def html(shown: Plan | Advice | Traces | Result) -> str:
    """Return what a notebook shows of an object; names of the user are escaped."""
    if isinstance(shown, Plan):
        return _plan_html(shown)
    if isinstance(shown, Advice):
        return _advice_html(shown)
    if isinstance(shown, Traces):
        return _traces_html(shown)
    return _result_html(shown)


def figure(shown: Plan | Advice | Traces | Result) -> Figure:
    """Return a matplotlib figure of an object, which a notebook displays."""
    if isinstance(shown, Plan):
        return displayed(schedule_chart(shown))
    if isinstance(shown, Advice):
        return displayed(advice_chart(shown))
    if isinstance(shown, Traces):
        return displayed(_traces_figure(shown))
    return displayed(result_charts.score_chart({"run": shown}))


def frame(shown: Plan | Advice | Traces | Result) -> Any:
    """Return the rows of an object as a data frame of pandas, else of polars.

    A plan has a row for each client and slot in which it trains, advice one for each pair of budget and slack, traces one
    for each slot, a result one for each round.
    """
    if isinstance(shown, Plan):
        return as_frame(_plan_columns(shown))
    if isinstance(shown, Advice):
        return as_frame(_advice_columns(shown))
    if isinstance(shown, Traces):
        times = [iso(time) for time in shown.slot_starts()]
        return as_frame({"start": times} | dict(zip(shown.zones, shown.intensity.tolist(), strict=True)))
    return as_frame(_result_columns(shown))


def as_frame(columns: Mapping[str, Sequence[Any]]) -> Any:
    """Return columns as a data frame.

    Raises:
        SlackwaterError: Neither pandas nor polars is installed.
    """
    if find_spec("pandas") is not None:
        import pandas  # type: ignore[import-not-found, import-untyped, unused-ignore]

        return pandas.DataFrame(dict(columns))
    if find_spec("polars") is not None:
        import polars  # type: ignore[import-not-found, unused-ignore]

        return polars.DataFrame(dict(columns), strict=False)
    raise SlackwaterError("to_frame() needs pandas or polars. Install one: pip install pandas")


def displayed(figure: Figure) -> Figure:
    """Let a notebook show a figure that was made without pyplot."""

    def png() -> bytes:
        out = io.BytesIO()
        figure.savefig(out, format="png", dpi=_DOTS)
        return out.getvalue()

    figure._repr_png_ = png  # type: ignore[attr-defined]
    return figure


def table(columns: str, rows: Iterable[Sequence[object]]) -> str:
    """Return an HTML table; its columns are separated by |, and > marks those that hold numbers."""
    names = columns.split("|")
    right = ["text-align:right" if name.startswith(">") else "text-align:left" for name in names]

    def line(cells: Sequence[object], tag: str) -> str:
        return "".join(
            f'<{tag} style="{side}">{escape(printable(str(cell)))}</{tag}>'
            for cell, side in zip(cells, right, strict=True)
        )

    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    return f"<table><thead><tr>{line([name.lstrip('>') for name in names], 'th')}</tr></thead><tbody>{body}</tbody></table>"


def paragraph(*sentences: str) -> str:
    """Return sentences as a paragraph."""
    return f"<p>{escape(printable(' '.join(sentences)))}</p>"


def picture(drawn: Figure) -> str:
    """Return a figure as an image inside HTML."""
    out = io.BytesIO()
    drawn.savefig(out, format="png", dpi=_DOTS)
    return (
        f'<img style="max-width:100%" alt="" src="data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}">'
    )


def synthetic_sentence(synthetic: bool) -> str:
    """Return the note of everything that rests on synthetic intensity."""
    return f"{style.SYNTHETIC}: typical profiles, not measured." if synthetic else ""


def _plan_html(plan: Plan) -> str:
    problem, trained = plan.problem, plan.slots_per_client
    head = "".join(paragraph(f"{name}: {said}") for name, said in answer_lines(plan))
    head += paragraph(plan.message, synthetic_sentence(problem.traces.synthetic))
    kg = plan.emissions.client_kg
    rows = [
        (name, zone, int(trained[i]), f"{plan.metrics.pi[i]:.3f}", f"{kg[i]:.3f}")
        for i, (name, zone) in enumerate(zip(problem.fleet.names, problem.fleet.zone, strict=True))
        if i < _MOST_ROWS
    ]
    more = (
        ""
        if len(problem.fleet) <= _MOST_ROWS
        else paragraph(f"... and {len(problem.fleet) - _MOST_ROWS:,} more clients.")
    )
    drawn = picture(schedule_chart(plan)) if find_spec("matplotlib") is not None else ""
    return f"{head}{drawn}{table('client|zone|>slots|>pi|>kg', rows)}{more}"


def _plan_columns(plan: Plan) -> dict[str, list[Any]]:
    problem, costs, work = plan.problem, plan.problem.costs, plan.work
    client, slot = np.nonzero(plan.matrix)
    levels = None if plan.levels is None else plan.levels[client, slot].astype(np.intp)
    kwh = costs.energy_kwh[client] if levels is None else costs.level_kwh[client, levels]
    intensity = costs.intensity[costs.row[client], slot]
    names, zones = [str(name) for name in problem.fleet.names], [str(zone) for zone in problem.fleet.zone]
    return {
        "client": [names[i] for i in client],
        "zone": [zones[i] for i in client],
        "slot": slot.tolist(),
        "start": [iso(problem.slot_start(int(t))) if has_times(problem) else None for t in slot],
        "in_window": [int(t) in plan.window for t in slot],
        "work": work[client, slot].tolist(),
        "kwh": kwh.tolist(),
        "kg_per_kwh": intensity.tolist(),
        "kg": (kwh * intensity).tolist(),
    }


def _advice_html(advice: Advice) -> str:
    rows = [
        (f"{slack:,}", local_text(utc(by), advice.time_zone), *line)
        for (slack, by), lines in advice_cells(advice).items()
        for line in lines
    ]
    columns = "|".join([">slack", "finish by", *(name.replace("\n", " ") for name in ADVICE.split("|"))])
    drawn = picture(advice_chart(advice)) if find_spec("matplotlib") is not None else ""
    notes = paragraph(*advice_notes(advice), synthetic_sentence(advice.synthetic))
    return f"{paragraph(f'Recommended: {advice.why}')}{drawn}{table(columns, rows)}{notes}"


def _advice_columns(advice: Advice) -> dict[str, list[Any]]:
    plain = [field.name for field in fields(AdviceRow) if field.name != "expected"]
    columns = {name: [getattr(row, name) for row in advice.rows] for name in plain}
    for bound in ("missing", "low", "high"):
        columns[f"below_full_{bound}"] = [getattr(row.expected, bound) for row in advice.rows]
    return columns | {"recommended": [row == advice.recommended for row in advice.rows]}


def _traces_html(traces: Traces) -> str:
    grams = traces.intensity * G_PER_KG
    head = paragraph(
        f"Carbon intensity ({traces.factor}) of {len(traces.zones)} zones, {iso(traces.start)} to {iso(traces.end)}, "
        f"{traces.slots:,} slots of {traces.slot_minutes} minutes.",
        synthetic_sentence(traces.synthetic),
    )
    rows = [
        (zone, f"{grams[i].min():.0f}", f"{grams[i].mean():.0f}", f"{grams[i].max():.0f}")
        for i, zone in enumerate(traces.zones[:_MOST_ROWS])
    ]
    more = "" if len(traces.zones) <= _MOST_ROWS else paragraph(f"... and {len(traces.zones) - _MOST_ROWS} more zones.")
    return f"{head}{table('zone|>least g/kWh|>mean g/kWh|>most g/kWh', rows)}{more}"


def _traces_figure(traces: Traces) -> Figure:
    drawn = new_figure(style.TEXT_IN, 2.6)
    axes = drawn.subplots()
    times = np.array([time.replace(tzinfo=None) for time in traces.slot_starts()], dtype="datetime64[m]")
    for number, zone in enumerate(traces.zones[:_MOST_LINES]):
        axes.plot(
            times, traces.intensity[number] * G_PER_KG, linewidth=1.0, color=style.SERIES[number % len(style.SERIES)],
            label=printable(zone).replace("$", r"\$"),
        )  # fmt: skip
    tidy(axes, grid="y", xlabel="UTC", ylabel=f"g CO$_2$e/kWh, {traces.factor}")
    axes.set_ylim(bottom=0)
    style.time_axis(axes)
    drawn.legend(
        loc="outside lower center", ncols=min(len(traces.zones), _MOST_LINES), frameon=False, fontsize=style.FONT_PT
    )
    mean = traces.intensity.mean(axis=1) * G_PER_KG
    low, high = int(mean.argmin()), int(mean.argmax())
    finding = f"{printable(traces.zones[low])} is cleanest: {mean[low]:.0f} g/kWh on average"
    if low != high:
        finding += f", against {mean[high]:.0f} of {printable(traces.zones[high])}"
    headline(drawn, finding.replace("$", r"\$"), warning=style.SYNTHETIC if traces.synthetic else "")
    return drawn


def _result_html(result: Result) -> str:
    metric = result.metric
    head = paragraph(
        f"{metric.title} {metric.text(result.score)}{metric.direction} after {len(result.history)} rounds with "
        f"{kilograms(result.emissions_kg)} of {kilograms(result.budget_kg)} kg CO2e.",
        KINDS[result.kind].sentence,
        synthetic_sentence(result.synthetic),
    )
    scored = [record for record in result.history if record.accuracy is not None]
    rows = [
        (record.number + 1, iso(record.slot_start), len(record.participants), f"{record.spent_kg:.3f}", f"{record.loss:.4g}",
         metric.number(record.accuracy))
        for record in scored[-_MOST_ROWS:]
    ]  # fmt: skip
    notes = "".join(paragraph(note) for note in result.notes)
    return f"{head}{table(f'>round|slot|>clients|>kg so far|>loss|>{metric.column}', rows)}{notes}"


def _result_columns(result: Result) -> dict[str, list[Any]]:
    history = result.history
    return {
        "round": [record.number + 1 for record in history],
        "slot": [record.slot for record in history],
        "start": [iso(record.slot_start) for record in history],
        "in_window": [record.in_window for record in history],
        "clients": [", ".join(record.participants) for record in history],
        "loss": [record.loss for record in history],
        result.metric.name: [record.accuracy for record in history],
        "test_loss": [record.test_loss for record in history],
        "spent_kg": [record.spent_kg for record in history],
    }
