"""The forecast command: forecast the coming hours, and test past forecasts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slackwater.charts import style
from slackwater.charts.style import headline, new_figure, tidy
from slackwater.cli.options import (
    ListOf,
    Time,
    chart_option,
    console,
    data_option,
    draw,
    factor_option,
    fill_option,
    json_option,
    option,
    print_json,
    say,
)
from slackwater.errors import ScenarioError
from slackwater.intensity.forecast.archive import ForecastArchive, read_archive
from slackwater.intensity.forecast.base import Forecast, Forecaster, Persistence, SameHourMean, slots_per_day
from slackwater.intensity.forecast.forecasters import NEED_ARCHIVE, NEED_TRUTH, forecaster
from slackwater.intensity.forecast.skill import BackTest, backtest, window_starts
from slackwater.intensity.load import load_traces
from slackwater.intensity.traces import Factor, Traces
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
    """A forecast with its history and the actual values."""

    history: Traces
    forecast: Forecast
    actual: Floats
    """[zone, slot] in kg CO2e/kWh, NaN where unknown."""


def to_dict(shown: Shown) -> dict[str, Any]:
    """Return the forecast for JSON, in kg CO2e/kWh."""
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
    """Return a table of mean, interval and cleanest hour by zone and day, and a line of bars for each zone."""
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
    """Return the mean as a line of bars that fits the width."""
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
    """Return a table of all methods, averaged over the zones, and one of the first method by zone."""
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
        f"{count} windows per zone; each trains {first.take} of {first.window} slots. day N: MAPE of that day ahead. inside: "
        "share of actual values in the interval. oracle: savings with perfect foresight. once, daily, hourly: share of "
        "these savings when planning on the forecast, by how often to re-plan."
    ]
    undefined = sum(int(np.isnan(test.mape).any(axis=1).sum()) for test in own)
    if undefined:
        notes.append(f"-: undefined, because the intensity is 0 or constant ({undefined} zones); the means exclude it.")
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
    """Draw a panel for each zone: the last two days, the forecast with its interval, and known actual values."""
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
        panel.tick_params(labelbottom=True)  # the lowest panel of each column has labels
    for panel in axes[::across]:
        panel.set_ylabel("g CO$_2$e/kWh", fontsize=style.FONT_PT)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=style.FONT_PT)
    left = len(panels) - len(drawn)
    synthetic = [style.SYNTHETIC] if any(one.history.synthetic for one in shown) else []
    headline(figure, _cleanest(drawn), *synthetic, *[f"{left} more zones are not drawn."] * (left > 0))
    return figure


def _cleanest(drawn: Sequence[tuple[Shown, int]]) -> str:
    """Return where and when the least intensity is expected."""
    one, row = min(drawn, key=lambda panel: float(panel[0].forecast.mean[panel[1]].min()))
    mean, start = one.forecast.mean[row], one.forecast.start
    at = start + timedelta(minutes=one.forecast.slot_minutes) * int(mean.argmin())
    zone = style.shortened(one.forecast.zones[row], 20).replace("$", r"\$")
    return f"Least expected: {G_PER_KG * mean.min():.0f} g CO$_2$e/kWh in {zone} at {iso(at)}"


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
        panel.plot(times, G_PER_KG * shown.actual[row], color=style.INK, linewidth=0.9, linestyle=":", label="actual")
    panel.axvline(one.start, color=style.MUTED, linewidth=0.6)  # type: ignore[arg-type]
    panel.set_title(style.shortened(one.zones[row], 20), fontsize=style.TITLE_PT, loc="left", parse_math=False)
    panel.set_ylim(bottom=0)
    days = (one.slots + past) * one.slot_minutes // 1440
    locator = DayLocator(interval=max(1, days // 6))  # type: ignore[no-untyped-call]
    panel.xaxis.set_major_locator(locator)
    panel.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    panel.xaxis.get_offset_text().set_fontsize(style.FONT_PT)
    tidy(panel, grid="y")


_OWN, _PROVIDER = "ridge", "provider"
_TAKE = 24


@click.command()
@click.argument("zones", type=ListOf(str, "zone"), required=False)
@option("--hours", type=click.IntRange(1), default=96, help="Hours to forecast.")
@option(
    "--method",
    metavar="NAME",
    help="Forecaster: persistence, same-hour-mean, ridge or an installed one; with --forecasts also provider and blend. "
    "Default: ridge, or blend with --forecasts.",
)
@option(
    "--at",
    type=Time(),
    metavar="TIME",
    help="Time of the forecast, such as 2022-06-01T00:00Z. Default: the end of the data.",
)
@option(
    "--forecasts",
    metavar="FILE_OR_FOLDER",
    help="CSV files with a provider's forecasts and actual values (<ZONE>_<provider>_forecast.csv).",
)
@option(
    "--backtest",
    "test",
    is_flag=True,
    help="Test past forecasts: error by day ahead, and share of the possible savings.",
)
@option(
    "--repeat", type=click.IntRange(1), default=12, help="Number of windows of the back-test, spread over the data."
)
@chart_option("the forecast with its interval")
@data_option
@factor_option
@fill_option
@json_option
def forecast(
    zones: list[str] | None,
    hours: int,
    method: str | None,
    at: datetime | None,
    forecasts: str | None,
    test: bool,
    repeat: int,
    chart: Path | None,
    data: str | None,
    factor: Factor,
    fill_hours: int | None,
    as_json: bool,
) -> None:
    """Forecast the carbon intensity of ZONES, with an interval.

    ZONES is a list such as DE,FR. Default: all zones of the data. With --backtest, the command tests past forecasts: their
    error, and the share of the possible savings that planning on them reaches. The plan trains in 24 of the hours, or in
    a quarter of them if there are fewer than 96.
    """
    archive = None if forecasts is None else read_archive(forecasts, zones, factor=factor)
    if archive is None:
        traces = load_traces(data or "typical", zones=zones, factor=factor, fill_hours=fill_hours or 0)
        sources = [traces]
    elif data is not None:
        raise ScenarioError("Give --data or --forecasts, not both: a forecast file has its own actual values.")
    else:
        sources = [archive.actuals[zone] for zone in archive.zones]  # each has its own time
    if test:
        if chart is not None:
            raise ScenarioError("A back-test has no chart. Leave out --chart or --backtest.")
        tests = _tests(sources, archive, method, hours, repeat)
        if as_json:
            print_json({"factor": factor, "synthetic": sources[0].synthetic, "tests": [one.to_dict() for one in tests]})
        else:
            console().print(backtest_table(tests, sources[0].synthetic))
        return
    shown = [_forecast(source, _forecaster(method, archive), at, hours, archive) for source in sources]
    draw(chart, lambda: forecast_chart(shown))
    if as_json:
        print_json([to_dict(one) for one in shown])
    else:
        screen = console()
        screen.print(forecast_table(shown, screen.width))


def _forecaster(method: str | None, archive: ForecastArchive | None) -> Forecaster:
    name = (method or (_OWN if archive is None else "blend")).strip().lower()
    if name in NEED_TRUTH:
        raise ScenarioError(f"The method {name!r} knows the future. Use it with: slackwater backtest --forecast {name}")
    if archive is None and name in (_PROVIDER, *NEED_ARCHIVE):
        raise ScenarioError(f"The method {name!r} needs a provider's forecasts. Name them with --forecasts.")
    if archive is not None and name == _PROVIDER:
        return archive
    return forecaster(name, archive=archive) if name in NEED_ARCHIVE else forecaster(name)


def _forecast(
    traces: Traces, method: Forecaster, at: datetime | None, hours: int, archive: ForecastArchive | None
) -> Shown:
    moment = at or (traces.end if archive is None else _last_issue(traces, archive))
    slots = round((moment - traces.start) / timedelta(minutes=traces.slot_minutes))
    if not 0 < slots <= traces.slots or traces.start + slots * timedelta(minutes=traces.slot_minutes) != moment:
        raise ScenarioError(
            f"--at {iso(moment)} is not a full hour of the data. Give a full hour after {iso(traces.start)}, at the latest "
            f"{iso(traces.end)}."
        )
    history = traces.window(traces.start, slots)
    ahead = hours * 60 // traces.slot_minutes
    known = min(ahead, traces.slots - slots)
    actual = np.full((len(traces.zones), ahead), np.nan)
    actual[:, :known] = traces.intensity[:, slots : slots + known]
    return Shown(history=history, forecast=method.forecast(history, ahead), actual=actual)


def _last_issue(traces: Traces, archive: ForecastArchive) -> datetime:
    """Return the first full hour at which the newest forecast is known, at most the end of the history."""
    last = max(archive.of(zone).issued[-1] for zone in traces.zones)
    return min(datetime.fromtimestamp(-(-last // 1) * 3600, tz=traces.start.tzinfo), traces.end)


def _tests(
    sources: Sequence[Traces], archive: ForecastArchive | None, method: str | None, hours: int, repeat: int
) -> list[BackTest]:
    """Test the method and its rivals over the same windows."""
    chosen = _forecaster(method, archive)
    rivals: list[Forecaster] = [Persistence(), SameHourMean()]
    if archive is not None:
        rivals += [forecaster(_OWN), archive]
    methods = [chosen, *(one for one in rivals if one.name != chosen.name)]
    take = _TAKE if hours >= 96 else max(hours // 4, 1)
    tests = []
    for source in sources:
        starts = _starts(source, archive, hours, repeat)
        say(f"{', '.join(source.zones[:3])}{' ...' if len(source.zones) > 3 else ''}: {len(starts)} windows")
        tests += [backtest(one, source, starts, window=hours, take=take) for one in methods]
    return tests


def _starts(source: Traces, archive: ForecastArchive | None, hours: int, repeat: int) -> list[int]:
    every = slots_per_day(source)
    starts = np.array(window_starts(source, window=hours, every=every))
    if archive is not None:
        missing = archive.missing[source.zones[0]]
        starts = np.array([start for start in starts if not missing[start : start + hours].any()], dtype=np.int64)
        if not len(starts):
            raise ScenarioError(
                f"Zone {source.zones[0]} has no window of {hours} hours without gaps after its first four weeks."
            )
    picked = np.unique(np.linspace(0, len(starts) - 1, min(repeat, len(starts))).round().astype(np.int64))
    return [int(start) for start in starts[picked]]
