"""How `slackwater forecast` shows forecasts and back-tests: tables, a small chart in the terminal and one for a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slackwater.carbon import Traces
from slackwater.forecasting.backtest import BackTest
from slackwater.forecasting.forecast import Forecast
from slackwater.forecasting.naive import slots_per_day
from slackwater.report import style
from slackwater.report.canvas import new_figure, tidy
from slackwater.units import G_PER_KG, iso

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]

_BARS = "▁▂▃▄▅▆▇█"
_MOST_PANELS = 12
_PAST_DAYS = 2
_SHARES = {"one-shot": "once", "daily": "daily", "hourly": "hourly"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shown:
    """A forecast beside what led to it and what came."""

    history: Traces
    forecast: Forecast
    actual: Floats
    """[zone, slot], NaN where it is not known."""


def to_dict(shown: Shown) -> dict[str, Any]:
    """Return the forecast for JSON, kg CO2e/kWh."""
    one = shown.forecast
    return {
        "start": iso(one.start),
        "slot_minutes": one.slot_minutes,
        "factor": one.factor,
        "source": one.source,
        "coverage": one.coverage,
        "synthetic": shown.history.synthetic,
        "zones": [
            {
                "zone": zone,
                "mean_kg_per_kwh": one.mean[row].tolist(),
                "low_kg_per_kwh": one.low[row].tolist(),
                "high_kg_per_kwh": one.high[row].tolist(),
            }
            for row, zone in enumerate(one.zones)
        ],
    }


def forecast_table(shown: Sequence[Shown], width: int) -> RenderableType:
    """Show mean, interval and the cleanest hour by zone and day; then a line of bars for each zone."""
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("zone", "day", "mean", "low", "high", "cleanest hour"):
        table.add_column(name, justify="left" if name in ("zone", "cleanest hour") else "right", no_wrap=True)
    for one in shown:
        for row, zone in enumerate(one.forecast.zones):
            _add_days(table, one.forecast, row, zone)
    first = shown[0]
    notes = [
        Text(
            f"g CO2e/kWh, {first.forecast.factor}, UTC; low to high: {first.forecast.coverage:.0%} interval, mean over the "
            "day.",
            style="dim",
        ),
        *(Text(f"by {source}", style="dim") for source in dict.fromkeys(one.forecast.source for one in shown)),
    ]
    if any(one.history.synthetic for one in shown):
        notes.append(style.synthetic_note())
    bars = [_bars(one.forecast, row, width) for one in shown for row in range(len(one.forecast.zones))]
    return Group(table, "", *bars, "", *notes)


def _add_days(table: Table, forecast: Forecast, row: int, zone: str) -> None:
    day = 1440 // forecast.slot_minutes
    for number, first in enumerate(range(0, forecast.slots, day)):
        part = slice(first, min(first + day, forecast.slots))
        cleanest = first + int(np.argmin(forecast.mean[row, part]))
        moment = forecast.start + timedelta(minutes=forecast.slot_minutes) * cleanest
        figures = [
            f"{G_PER_KG * values[row, part].mean():.0f}" for values in (forecast.mean, forecast.low, forecast.high)
        ]
        lowest = f"{G_PER_KG * forecast.mean[row, cleanest]:.0f}"
        name = Text(style.shortened(zone, 16)) if number == 0 else ""
        table.add_row(name, str(number + 1), *figures, f"{iso(moment)}  {lowest}")


def _bars(forecast: Forecast, row: int, width: int) -> Text:
    """Return the mean as a line of bars, as many slots to a bar as the width needs."""
    values = forecast.mean[row]
    room = max(width - 30, 12)
    per_bar = -(-len(values) // room)
    means = np.array([values[first : first + per_bar].mean() for first in range(0, len(values), per_bar)])
    low, high = float(means.min()), float(means.max())
    height = (means - low) / (high - low) if high > low else np.zeros_like(means)
    text = "".join(_BARS[min(int(level * len(_BARS)), len(_BARS) - 1)] for level in height)
    zone = style.shortened(forecast.zones[row], 12)
    return Text(f"{zone:12} {G_PER_KG * low:4.0f} {text} {G_PER_KG * high:.0f}")


def backtest_table(tests: Sequence[BackTest], synthetic: bool) -> RenderableType:
    """Compare the methods by their mean over the zones; then show the first of them zone by zone."""
    methods = list(dict.fromkeys(test.method for test in tests))
    days = tests[0].mape.shape[1]
    summary = _shares_table("method", days)
    for method in methods:
        mine = [test for test in tests if test.method == method]
        summary.add_row(Text(method), *_figures(mine, slice(None)))
    by_zone = _shares_table("zone", days)
    own = [test for test in tests if test.method == methods[0]]
    for test in own:
        for row, zone in enumerate(test.zones):
            by_zone.add_row(Text(style.shortened(zone, 16)), *_figures([test], slice(row, row + 1)))
    first = tests[0]
    windows = sorted({test.windows for test in tests})
    count = f"{windows[0]}" if len(windows) == 1 else f"{windows[0]} to {windows[-1]}"
    notes = [
        f"{count} windows a zone; the task is {first.take} of {first.window} slots. MAPE by day ahead; inside: share of actuals "
        "in the interval; oracle: what knowing the future saves; once, daily, hourly: share of that saved by planning "
        "on the forecast, by how often it is re-planned."
    ]
    undefined = sum(int(np.isnan(test.mape).any(axis=1).sum()) for test in own)
    if undefined:
        notes.append(
            f"-: not defined where the intensity is 0 or never changes ({undefined} zones); left out of the means."
        )
    parts: list[RenderableType] = [Text("Mean over the zones", style="bold"), summary]
    if sum(len(test.zones) for test in own) > 1:
        parts += ["", Text(f"{methods[0]}, by zone", style="bold"), by_zone]
    parts += ["", *(Text(note, style="dim") for note in notes)]
    if synthetic:
        parts.append(style.synthetic_note())
    return Group(*parts)


def _shares_table(first: str, days: int) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column(first, no_wrap=True)
    for name in (*(f"day {day + 1}" for day in range(days)), "inside", "oracle", *_SHARES.values()):
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _figures(tests: Sequence[BackTest], rows: slice) -> list[str]:
    mape = np.concatenate([test.mape[rows] for test in tests])
    inside = np.concatenate([test.coverage[rows] for test in tests])
    oracle = np.concatenate([test.oracle[rows] for test in tests])
    shares = [np.concatenate([test.share(name)[rows] for test in tests]) for name in _SHARES]
    columns = [*mape.T, inside.mean(axis=1), oracle, *shares]
    return [_percent(column) for column in columns]


def _percent(values: Floats) -> str:
    known = values[~np.isnan(values)]
    return style.percent(float(known.mean())) if len(known) else "-"


def forecast_chart(shown: Sequence[Shown]) -> Figure:
    """Draw a panel for each zone: the last two days, the forecast with its interval, and the actuals that are known."""
    panels = [(one, row) for one in shown for row in range(len(one.forecast.zones))]
    drawn = panels[:_MOST_PANELS]
    across = 1 if len(drawn) == 1 else 2
    down = -(-len(drawn) // across)
    figure = new_figure(style.TEXT_IN if across > 1 else 0.75 * style.TEXT_IN, 1.45 * down + 0.75)
    axes = figure.subplots(down, across, squeeze=False, sharex=len(shown) == 1).ravel()
    for spare in axes[len(drawn) :]:
        spare.set_axis_off()
    for panel, (one, row) in zip(axes, drawn, strict=False):
        _draw(panel, one, row)
    for panel in axes[max(len(drawn) - across, 0) : len(drawn)]:
        panel.tick_params(labelbottom=True)  # the lowest of each column, also where the last line is not full
    for panel in axes[::across]:
        panel.set_ylabel("g CO$_2$e/kWh", fontsize=style.FONT_PT)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=style.FONT_PT)
    synthetic = any(one.history.synthetic for one in shown)
    left = len(panels) - len(drawn)
    notes = [style.SYNTHETIC] * synthetic + [f"{left} more zones are not drawn"] * (left > 0)
    if notes:
        colour = style.WARNING if synthetic else style.MUTED
        figure.suptitle("; ".join(notes), fontsize=style.FONT_PT, color=colour)
    return figure


def _draw(panel: Axes, shown: Shown, row: int) -> None:
    from matplotlib.dates import ConciseDateFormatter, DayLocator

    one = shown.forecast
    step = timedelta(minutes=one.slot_minutes)
    times: Any = [one.start + step * slot for slot in range(one.slots)]
    past = min(_PAST_DAYS * slots_per_day(shown.history), shown.history.slots)
    before: Any = [one.start - step * (past - slot) for slot in range(past)]
    colour = style.SERIES[0]
    panel.plot(
        before, G_PER_KG * shown.history.intensity[row, -past:], color=style.INTENSITY, linewidth=1.0, label="past"
    )
    panel.fill_between(
        times,
        G_PER_KG * one.low[row],
        G_PER_KG * one.high[row],
        color=colour,
        alpha=0.2,
        linewidth=0,
        label=f"{one.coverage:.0%} interval",
    )
    panel.plot(times, G_PER_KG * one.mean[row], color=colour, linewidth=1.3, label="forecast")
    if np.isfinite(shown.actual[row]).any():
        panel.plot(
            times, G_PER_KG * shown.actual[row], color=style.INK, linewidth=0.9, linestyle=":", label="what came"
        )
    panel.axvline(one.start, color=style.MUTED, linewidth=0.6)  # type: ignore[arg-type]
    panel.set_title(style.shortened(one.zones[row], 20), fontsize=style.TITLE_PT, loc="left", parse_math=False)
    panel.set_ylim(bottom=0)
    days = (one.slots + past) * one.slot_minutes // 1440
    locator = DayLocator(interval=max(1, days // 6))  # type: ignore[no-untyped-call]
    panel.xaxis.set_major_locator(locator)
    panel.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    panel.xaxis.get_offset_text().set_fontsize(style.FONT_PT)
    tidy(panel, grid="y")
