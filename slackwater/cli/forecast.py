"""The command that looks at the coming hours, and at how good such looks were: forecast."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import click
import numpy as np

from slackwater.carbon import Factor, Traces, load_traces
from slackwater.cli import forecast_view as view
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
from slackwater.forecasting.backtest import BackTest, backtest, window_starts
from slackwater.forecasting.files import ForecastArchive, read_archive
from slackwater.forecasting.forecast import Forecaster
from slackwater.forecasting.naive import Persistence, SameHourMean, slots_per_day
from slackwater.forecasting.registry import NEED_ARCHIVE, NEED_TRUTH, forecaster
from slackwater.units import iso

_OWN, _PROVIDER = "ridge", "provider"
_TAKE = 24


@click.command()
@click.argument("zones", type=ListOf(str, "zone"), required=False)
@option("--hours", type=click.IntRange(1), default=96, help="Hours to forecast.")
@option(
    "--method",
    metavar="NAME",
    help="persistence, same-hour-mean, ridge or an installed one; with --forecasts also provider and blend. "
    "ridge unless told, blend with --forecasts.",
)
@option(
    "--at", type=Time(), metavar="TIME", help="When to forecast, like 2022-06-01T00:00Z; the data's end unless told."
)
@option(
    "--forecasts",
    metavar="FILE_OR_FOLDER",
    help="A provider's forecasts beside actuals (<ZONE>_<provider>_forecast.csv), to blend with.",
)
@option("--backtest", "test", is_flag=True, help="How good it was: error by day ahead, share of the oracle's savings.")
@option("--repeat", type=click.IntRange(1), default=12, help="Windows of the back-test, spread over the data.")
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
    """Intensity of the coming hours in ZONES (separated by commas; all there are by default), with an interval.

    With --backtest: how far off such forecasts were, and how much of what knowing the future would save is saved by
    planning on them (24 of the hours, or a quarter of them if fewer than 96), planned once, daily and hourly.
    """
    archive = None if forecasts is None else read_archive(forecasts, zones, factor=factor)
    if archive is None:
        traces = load_traces(data or "typical", zones=zones, factor=factor, fill_hours=fill_hours or 0)
        sources = [traces]
    elif data is not None:
        raise ScenarioError("Give --data or --forecasts, not both: a forecast file has its own actuals.")
    else:
        sources = [archive.actuals[zone] for zone in archive.zones]  # each has its own time
    if test:
        if chart is not None:
            raise ScenarioError("There is no chart of a back-test; leave out --chart or --backtest.")
        tests = _tests(sources, archive, method, hours, repeat)
        if as_json:
            print_json({"factor": factor, "synthetic": sources[0].synthetic, "tests": [one.to_dict() for one in tests]})
        else:
            console().print(view.backtest_table(tests, sources[0].synthetic))
        return
    shown = [_forecast(source, _forecaster(method, archive), at, hours, archive) for source in sources]
    draw(chart, lambda: view.forecast_chart(shown))
    if as_json:
        print_json([view.to_dict(one) for one in shown])
    else:
        screen = console()
        screen.print(view.forecast_table(shown, screen.width))


def _forecaster(method: str | None, archive: ForecastArchive | None) -> Forecaster:
    name = (method or (_OWN if archive is None else "blend")).strip().lower()
    if name in NEED_TRUTH:
        raise ScenarioError(f"The method {name!r} knows the future; it is for back-tests from Python only.")
    if archive is None and name in (_PROVIDER, *NEED_ARCHIVE):
        raise ScenarioError(f"The method {name!r} needs a provider's forecasts; name them with --forecasts.")
    if archive is not None and name == _PROVIDER:
        return archive
    return forecaster(name, archive=archive) if name in NEED_ARCHIVE else forecaster(name)


def _forecast(
    traces: Traces, method: Forecaster, at: datetime | None, hours: int, archive: ForecastArchive | None
) -> view.Shown:
    moment = at or (traces.end if archive is None else _last_issue(traces, archive))
    slots = round((moment - traces.start) / timedelta(minutes=traces.slot_minutes))
    if not 0 < slots <= traces.slots or traces.start + slots * timedelta(minutes=traces.slot_minutes) != moment:
        raise ScenarioError(
            f"--at {iso(moment)} must be a full hour after {iso(traces.start)}, where the data starts, and not after "
            f"{iso(traces.end)}, where it ends."
        )
    history = traces.window(traces.start, slots)
    ahead = hours * 60 // traces.slot_minutes
    came = min(ahead, traces.slots - slots)
    actual = np.full((len(traces.zones), ahead), np.nan)
    actual[:, :came] = traces.intensity[:, slots : slots + came]
    return view.Shown(history=history, forecast=method.forecast(history, ahead), actual=actual)


def _last_issue(traces: Traces, archive: ForecastArchive) -> datetime:
    """Return the first full hour at which the newest forecast is known, if there is history for it."""
    last = max(archive.of(zone).issued[-1] for zone in traces.zones)
    return min(datetime.fromtimestamp(-(-last // 1) * 3600, tz=traces.start.tzinfo), traces.end)


def _tests(
    sources: Sequence[Traces], archive: ForecastArchive | None, method: str | None, hours: int, repeat: int
) -> list[BackTest]:
    """Test the method and what it must beat, over the same windows."""
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
            raise ScenarioError(f"Zone {source.zones[0]} has no window of {hours} hours without gaps after four weeks.")
    picked = np.unique(np.linspace(0, len(starts) - 1, min(repeat, len(starts))).round().astype(np.int64))
    return [int(start) for start in starts[picked]]
