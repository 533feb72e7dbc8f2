"""Measure forecasts for planning, real ones and our own: error by day ahead and share of the oracle's savings.

    python -m slackwater.lab forecasts archives --forecasts ../shared/data/forecasts     provider, ridge, blend; 24 of 96 h
    python -m slackwater.lab forecasts limits --forecasts ../shared/data/forecasts       the blend, the next hours known
    python -m slackwater.lab forecasts actuals --data ../shared/data/ci                  our own forecasters, 24 of 96 h
    python -m slackwater.lab forecasts errors --data ../shared/data/ci                   MAPE by day ahead, every zone
    python -m slackwater.lab forecasts table
    python -m slackwater.lab forecasts weights --data ... --forecasts ...                fit the pooled weights again

The regressions shrink to weights fitted on the first half of each archive's time (`blend_prior.csv`) and on every second
zone (`ridge_prior.csv`). So each row names its half, and the held-out rows count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from slackwater.atomic import write_whole
from slackwater.intensity.forecast import blend as blending
from slackwater.intensity.forecast import ridge as ridging
from slackwater.intensity.forecast.archive import ForecastArchive, hours_since_1970, read_archive
from slackwater.intensity.forecast.base import Forecast, Forecaster
from slackwater.intensity.forecast.blend import Blend
from slackwater.intensity.forecast.forecasters import ErrorModel, forecaster
from slackwater.intensity.forecast.ridge import EDGES_H
from slackwater.intensity.forecast.ridge import FEATURES as HISTORY_FEATURES
from slackwater.intensity.forecast.skill import REPLANNING, BackTest, backtest, window_starts
from slackwater.intensity.load import available_zones, load_traces
from slackwater.intensity.traces import Traces
from slackwater.lab.store import RESULTS, Row, Store, sweep
from slackwater.lab.tables import line, under

MEASURES = ("archives", "limits", "actuals", "errors")
WARM_UP_DAYS = 14
"""Half of the files have only 184 days."""
CHOSEN, HELD_OUT = "chosen on", "held out"

results_option = click.option("--results", type=click.Path(path_type=Path), default=RESULTS / "forecasts.jsonl")
zones_option = click.option("--zones", default=None, help="Separated by commas. Default: all.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One method on one zone or group of zones; its row holds a list of rows, one per zone and half."""

    measure: str
    group: str
    method: str


@click.group()
def main() -> None:
    """Forecast errors, and savings of plans made on forecasts."""


@main.command()
@click.option("--forecasts", required=True, help="Folder of forecast files.")
@zones_option
@click.option("--every", default=1, show_default=True, help="Use every n-th daily window.")
@results_option
def archives(forecasts: str, zones: str | None, every: int, results: Path) -> None:
    """Measure a provider's forecasts on one zone, 24 of 96 hours: raw, blended, our own, and the error model."""
    archive = read_archive(forecasts, zones.split(",") if zones else None)
    methods = ("provider", "blend", "ridge", "persistence", "same-hour-mean", "error-model")

    def measure(cell: Cell) -> list[Row]:
        truth = archive.actuals[cell.group]
        made = _method(cell.method, truth, archive)  # the same in both halves, so that the fit is used again
        halves = _halves(archive, cell.group, every)
        return [
            {"half": half, **_row(backtest(made, truth, starts), 0, cell.method)} for half, starts in halves if starts
        ]

    _sweep("archives", archive.zones, methods, measure, results)


@main.command()
@click.option("--data", default="typical", show_default=True)
@zones_option
@click.option("--windows", default=12, show_default=True, help="Windows per zone, spread over the year.")
@results_option
def actuals(data: str, zones: str | None, windows: int, results: Path) -> None:
    """Measure our own forecasters on one zone of actual values, 24 of 96 hours."""
    groups = _groups(data, zones)

    def measure(cell: Cell) -> list[Row]:
        group = groups[cell.group]
        starts = np.array(window_starts(group))
        starts = starts[np.linspace(0, len(starts) - 1, windows).round().astype(np.int64)]
        test = backtest(_method(cell.method, group, None), group, [int(start) for start in starts])
        return [_row(test, row, cell.method) for row in range(len(group.zones))]

    _sweep("actuals", groups, ("ridge", "persistence", "same-hour-mean", "error-model"), measure, results)


@main.command()
@click.option("--data", default="typical", show_default=True)
@zones_option
@click.option("--every", default=101, show_default=True, help="Hours between origins.")
@results_option
def errors(data: str, zones: str | None, every: int, results: Path) -> None:
    """Measure the MAPE by day ahead of our own forecasters, after four weeks of history; zones with gaps are skipped."""
    groups = _groups(data, zones)

    def measure(cell: Cell) -> list[Row]:
        group = groups[cell.group]
        starts = window_starts(group, every=every)  # not every 24 h, so that origins fall on all hours of the day
        test = backtest(_method(cell.method, group, None), group, starts, replanning=())
        return [_row(test, row, cell.method) for row in range(len(group.zones))]

    _sweep("errors", groups, ("ridge", "persistence", "same-hour-mean"), measure, results)


@main.command()
@click.option("--forecasts", required=True, help="Folder of forecast files.")
@zones_option
@click.option("--every", default=4, show_default=True, help="Use every n-th daily window.")
@results_option
def limits(forecasts: str, zones: str | None, every: int, results: Path) -> None:
    """Measure what limits the blend: its share with hourly re-planning and exact next hours, on the held-out half."""
    archive = read_archive(forecasts, zones.split(",") if zones else None)

    def measure(cell: Cell) -> list[Row]:
        truth, (_, starts) = archive.actuals[cell.group], _halves(archive, cell.group, every)[1]
        rows = []
        for hours in (0, 1, 6, 12, 24, 48):
            test = backtest(_Knowing(Blend(archive), truth, hours), truth, starts, replanning=("hourly",))
            rows.append({"half": HELD_OUT, "zone": cell.group, "method": f"next {hours} h known", "windows": test.windows,
                         "share_hourly": round(float(test.share("hourly")[0]), 4)})  # fmt: skip
        return rows

    _sweep("limits", archive.zones, ("knowing",), measure, results)


class _Knowing:
    """A forecaster that knows the next hours exactly."""

    name = "knowing"

    def __init__(self, blend: Blend, truth: Traces, hours: int) -> None:
        self.blend, self.truth, self.hours = blend, truth, hours

    def forecast(self, history: Traces, slots: int) -> Forecast:
        made = self.blend.forecast(history, slots)
        mean = self.means(self.truth, [history.slots], slots)[0]
        return replace(made, mean=mean, low=np.minimum(made.low, mean), high=np.maximum(made.high, mean))

    def means(self, truth: Traces, origins: Sequence[int], slots: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        made = self.blend.means(truth, origins, slots)
        for number, origin in enumerate(origins):
            told = truth.intensity[:, origin : origin + self.hours]
            made[number, :, : told.shape[1]] = told
        return made


@main.command()
@results_option
def table(results: Path) -> None:
    """Print the tables of docs/research/forecasts.md from the stored cells."""
    stored = Store(results, Cell).rows()
    for measure in MEASURES:
        rows = [row for cell in stored if cell["measure"] == measure for row in cell["rows"]]
        if not rows:
            continue
        seen = _seen({row["zone"] for row in rows})
        groups: dict[tuple[str, str], list[Row]] = {}
        for row in rows:
            half = row.get("half", CHOSEN if row["zone"] in seen else HELD_OUT)
            groups.setdefault((row["method"], half), []).append(row)
        figures = [key for key in rows[0] if key.startswith(("mape", "share", "oracle", "inside"))]
        click.echo(f"\nforecast_{measure}: mean over the zones")
        click.echo(line("method", "part", "zones", *figures))
        click.echo(under(3 + len(figures)))
        for (method, half), members in groups.items():
            click.echo(line(method, half, len(members), *(_mean(row[key] for row in members) for key in figures)))


@main.command()
@click.option("--data", required=True)
@click.option("--forecasts", required=True)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for the two files.")
def weights(data: str, forecasts: str, out: Path) -> None:
    """Fit the pooled weights: on every second zone, and on the first half of the 96 h archives."""
    zones = _whole_zones(data)
    found = ridging.fit_pooled(load_traces(data, zones=_seen(zones)))
    _write_weights(out / "ridge_prior.csv", HISTORY_FEATURES, found)
    archive = read_archive(forecasts)
    long = {zone: issues for zone, issues in archive.issues.items() if issues.values.shape[1] >= 96}
    kept = ForecastArchive(long, actuals=archive.actuals, missing=archive.missing)
    _write_weights(out / "blend_prior.csv", blending.FEATURES, blending.fit_pooled(kept, 0.5))


def _write_weights(path: Path, names: Sequence[str], found: np.ndarray[Any, np.dtype[np.float64]]) -> None:
    lines = [",".join(["from_hour", *names])]
    lines += [
        ",".join([str(edge), *(f"{value:.3f}" for value in row)]) for edge, row in zip(EDGES_H, found, strict=True)
    ]
    write_whole(path, "\n".join(lines) + "\n")


def _method(name: str, truth: Traces, archive: ForecastArchive | None) -> Forecaster:
    if archive is not None and name in ("provider", "blend"):
        return archive if name == "provider" else Blend(archive)
    return ErrorModel(truth) if name == "error-model" else forecaster(name)


def _halves(archive: ForecastArchive, zone: str, every: int) -> list[tuple[str, list[int]]]:
    """Return daily windows without gaps and with later issues, in two halves of the time."""
    truth, missing = archive.actuals[zone], archive.missing[zone]
    begin = (24 - truth.start.hour) % 24
    last = int(archive.of(zone).issued[-1] - hours_since_1970(truth.start)) - 72
    starts = [
        start
        for start in range(begin + 24 * WARM_UP_DAYS, min(truth.slots - 96, last) + 1, 24)
        if not missing[start : start + 96].any()
    ]
    middle = truth.slots // 2
    first = [start for start in starts if start + 96 <= middle][::every]
    return [(CHOSEN, first), (HELD_OUT, [start for start in starts if start >= middle][::every])]


def _whole_zones(data: str) -> list[str]:
    """Return the zones with life-cycle values and no gap, over the period that most of them have."""
    infos = [info for info in available_zones(data) if info.missing_hours.get("lifecycle", 1) == 0]
    spans = [(info.first, info.last) for info in infos]
    usual = max(set(spans), key=spans.count)
    return [info.zone for info in infos if (info.first, info.last) == usual]


def _seen(zones: Iterable[str]) -> list[str]:
    """Return the zones on which the pooled weights are fitted: every second one by name."""
    return sorted(zones)[1::2]


def _groups(data: str, zones: str | None) -> dict[str, Traces]:
    """Return all zones without gaps in groups of 20, by number: fast, and small enough to store."""
    wanted = zones.split(",") if zones else _whole_zones(data)
    firsts = range(0, len(wanted), 20)
    return {f"{i:02}": load_traces(data, zones=wanted[first : first + 20]) for i, first in enumerate(firsts)}


def _row(test: BackTest, row: int, method: str) -> dict[str, Any]:
    found: dict[str, Any] = {"zone": test.zones[row], "method": method, "windows": test.windows}
    for day in range(test.mape.shape[1]):
        found[f"mape_day{day + 1}"] = round(float(test.mape[row, day]), 5)
    found["inside"] = round(float(test.coverage[row].mean()), 4)
    if test.saved:
        found["oracle"] = round(float(test.oracle[row]), 5)
        for name in REPLANNING:
            found[f"share_{name}"] = round(float(test.share(name)[row]), 4)
    return found


def _mean(values: Iterable[float]) -> str:
    known = [value for value in values if not np.isnan(value)]
    return f"{100 * sum(known) / len(known):.1f}" if known else "-"


def _sweep(
    name: str, groups: Iterable[str], methods: Sequence[str], measure: Callable[[Cell], list[Row]], results: Path
) -> None:
    """Measure every method on every group that is not stored yet."""
    cells = [Cell(measure=name, group=group, method=method) for group in groups for method in methods]
    for row in sweep(cells, lambda cell: {"rows": measure(cell)}, Store(results, Cell)):
        click.echo(f"stored {row['measure']} {row['group']} {row['method']}", err=True)
