"""The door from the grid to a plan: for any horizon, history and reach there is one answer, with its origin told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from slackwater.errors import DataError
from slackwater.intensity.feed import SHORTEST, ProviderFeed, archive_of, traces_of
from slackwater.intensity.load import load_traces
from slackwater.intensity.providers.cache import Cache, Issue, Place, issue_of
from slackwater.intensity.providers.provider_errors import ProviderError
from slackwater.intensity.providers.readings import Answer, Asked, Reading
from slackwater.intensity.traces import INTERPOLATED
from slackwater.units import iso

HOUR = timedelta(hours=1)
NOW = datetime(2022, 6, 15, 9, tzinfo=UTC)
ZONES = ("DE", "FR")
TRUTH = load_traces("typical", zones=list(ZONES), start=NOW - timedelta(days=60), hours=24 * 100)


@dataclass(kw_only=True)
class Grid:
    """A provider of hourly values: so many hours of history and of forecast, late by `lag` hours."""

    now: datetime = NOW
    history_h: int = 24 * 50
    reach_h: int = 72
    lag_h: int = 1
    bias: float = 1.0
    missing: set[datetime] = field(default_factory=set)
    down: tuple[Asked, ...] = ()
    minutes: int = 60

    def fetch(self, zones: Sequence[str], start: datetime, end: datetime, kind: Asked) -> Answer:
        if kind in self.down:
            return Answer(failures={zone: ProviderError(f"nobody answers for {zone}") for zone in zones})
        if kind == "actual":
            first, last = max(start, self.now - self.history_h * HOUR), min(end, self.now - self.lag_h * HOUR)
        else:
            first, last = max(start, self.now), min(end, self.now + self.reach_h * HOUR)
        step = timedelta(minutes=self.minutes)
        starts = [first + i * step for i in range(max(0, (last - first) // step))]
        return Answer(
            readings=tuple(
                Reading(
                    zone=zone, start=at, end=at + step, kind=kind, factor="lifecycle", source="the grid",
                    kg_per_kwh=self.value(zone, at) * (self.bias if kind == "forecast" else 1.0), fetched_at=self.now,
                )
                for zone in zones
                for at in starts
                if kind == "forecast" or at not in self.missing
            ),
            failures={} if starts else {zone: ProviderError(f"nothing for {zone}") for zone in zones},
        )  # fmt: skip

    def value(self, zone: str, at: datetime) -> float:
        return float(TRUTH.intensity[TRUTH.index(zone), (at - TRUTH.start) // HOUR])


def feed(grid: Grid, **more: object) -> ProviderFeed:
    return ProviderFeed(grid, ZONES, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("reach", [24, 48, 72])
@pytest.mark.parametrize("history", [24 * 50, 24])
def test_a_horizon_of_two_weeks_is_covered_whatever_the_forecast_reaches(reach: int, history: int) -> None:
    made = feed(Grid(reach_h=reach, history_h=history)).traces(NOW + HOUR, NOW + 337 * HOUR, NOW)
    assert (made.start, made.slots) == (NOW + HOUR, 336)
    assert np.isfinite(made.intensity).all()
    assert made.forecast_zones() == list(ZONES)
    for known in made.provenance:
        assert [(one.source, one.kind, one.hours) for one in known.origins] == [
            ("the grid", "forecast", reach - 1),
            ("ridge", "forecast", 337 - reach),
        ]
        assert known.origins[0].issued_at == iso(NOW)
    # No step where the provider's forecast ends: what it differs by there is in our own forecast, too.
    jumps = np.abs(np.diff(made.intensity, axis=1))
    assert np.all(jumps[:, reach - 2] <= 1.5 * np.sort(jumps, axis=1)[:, -5])


def test_hours_that_are_over_are_actual_and_the_others_forecast() -> None:
    made = feed(Grid()).traces(NOW - 10 * HOUR, NOW + 14 * HOUR, NOW)
    known = made.provenance[0]
    assert [known.origin(NOW + i * HOUR, NOW + (i + 1) * HOUR)[1] for i in (-10, -2, -1, 0, 13)] == [
        "actual", "actual", "forecast", "forecast", "forecast",
    ]  # fmt: skip
    assert np.allclose(made.intensity[0, :9], [Grid().value("DE", NOW + i * HOUR) for i in range(-10, -1)])


def test_a_short_history_is_continued_by_the_typical_profile_and_said() -> None:
    asked = feed(Grid(history_h=24))
    known = asked.until(NOW)
    assert known.end == NOW - HOUR
    assert known.end - known.start >= SHORTEST
    measured = asked.measured(known)
    assert measured is not None
    assert measured.slots == 23
    first, _ = asked.notes()
    assert "Only 23 h of actual intensity are known for DE" in first
    assert "the typical profile of DE, scaled" in first
    assert asked.origin("FR", NOW - 5 * HOUR) == ("the grid", "actual")
    assert asked.origin("FR", NOW - 50 * HOUR) == ("the typical profile of FR, scaled", "estimated")
    asked.until(NOW)
    assert asked.notes() == [], "it is said once"
    # At the level of what is known.
    assert known.intensity.mean() == pytest.approx(measured.intensity.mean(), rel=0.5)
    made = asked.forecast(known, 100)
    assert np.all(made.high >= 1.23 * made.mean - 1e-12), "nothing is known of errors, so the stated interval counts"


def test_zones_that_the_typical_year_does_not_have_borrow_a_profile() -> None:
    class Elsewhere(Grid):
        def value(self, zone: str, at: datetime) -> float:
            return super().value("DE", at)

    asked = ProviderFeed(Elsewhere(history_h=5), ["Atlantis"])
    known = asked.until(NOW)
    assert known.end - known.start >= SHORTEST
    assert "the typical profile of DE, scaled" in asked.notes()[0]
    assert known.intensity.max() > 1.2 * known.intensity.min(), "upper bounds need rises to look at"


def test_without_actuals_a_plan_stands_on_forecasts_alone() -> None:
    grid = Grid(down=("actual",))
    with pytest.raises(DataError, match="nobody answers"):
        feed(grid).until(NOW)
    made = feed(grid).traces(NOW + HOUR, NOW + 100 * HOUR, NOW)
    assert made.slots == 99
    assert made.provenance[0].origins[0].source == "the grid"
    with pytest.raises(DataError, match="nobody answers"):
        feed(Grid(down=("actual", "forecast"))).traces(NOW + HOUR, NOW + 100 * HOUR, NOW)


def test_a_gap_is_waited_for_and_then_interpolated() -> None:
    gap = NOW - 4 * HOUR
    asked = feed(grid := Grid(missing={gap, gap - HOUR}))
    assert asked.until(NOW).end == gap - HOUR, "it may still come"
    grid.now = NOW + 6 * HOUR
    known = asked.until(grid.now)
    assert known.end == grid.now - HOUR
    assert asked.origin("DE", gap) == (INTERPOLATED, "estimated")
    assert known.provenance[0].filled_hours == (iso(gap - HOUR), iso(gap))
    here = (gap - known.start) // HOUR
    assert (
        min(known.intensity[0, [here - 2, here + 1]])
        <= known.intensity[0, here]
        <= max(known.intensity[0, [here - 2, here + 1]])
    )
    assert feed(Grid(missing={gap}), fill_hours=1).until(NOW).end == NOW - HOUR
    assert asked.origin("DE", NOW + 100 * HOUR) == (INTERPOLATED, "estimated")


def test_one_zone_that_is_late_holds_all_back() -> None:
    class Late(Grid):
        def fetch(self, zones: Sequence[str], start: datetime, end: datetime, kind: Asked) -> Answer:
            whole = super().fetch(zones, start, end, kind)
            kept = tuple(
                r for r in whole.readings if r.zone == "DE" or r.kind == "forecast" or r.start < NOW - 7 * HOUR
            )
            return Answer(readings=kept)

    asked = feed(Late())
    assert asked.until(NOW).end == NOW - 7 * HOUR
    made = asked.forecast(asked.until(NOW), 60)
    assert made.start == NOW - 7 * HOUR
    sources = [one.source for one in made.traces().provenance[0].origins]
    assert sources == ["ridge", "the grid"], "what was issued since the last actual is used"


def test_the_bias_of_a_provider_is_learned_as_the_run_goes_on() -> None:
    grid = Grid(now=NOW - timedelta(days=6), bias=2.0)
    asked = feed(grid)
    errors = []
    while grid.now < NOW:
        known = asked.until(grid.now)
        made = asked.forecast(known, 25)
        true = TRUTH.window(known.end, 25).intensity
        errors.append(float(np.abs(made.mean / true - 1).mean()))
        grid.now += 3 * HOUR
    assert np.mean(errors[-16:]) < 0.3, "twice too high is seen through"
    assert np.mean(errors[-16:]) <= np.mean(errors[:16]) + 0.02


@pytest.mark.parametrize("minutes", [15, 30, 120, 1440])
def test_slots_of_other_lengths(minutes: int) -> None:
    start = NOW.replace(hour=0) + timedelta(days=1)
    grid = Grid(minutes=min(minutes, 60) if minutes < 60 else 60)
    made = feed(grid, slot_minutes=minutes).traces(start, start + timedelta(days=5), NOW)
    assert (made.start, made.slots) == (start, 5 * 1440 // minutes)
    assert made.forecast_zones() == list(ZONES)


def test_forecasts_are_kept_as_they_were_issued(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache.sqlite")
    place = Place(source="the grid", zone="DE", factor="lifecycle", asked="forecast")
    for hours in (0, 1, 1, 2):
        grid = Grid(now=NOW + hours * HOUR, reach_h=5)
        issue = issue_of(grid.fetch(["DE"], grid.now, grid.now + 9 * HOUR, "forecast").readings)
        assert issue is not None
        cache.keep_issue(place, issue)
    kept = cache.issues("DE", "lifecycle", NOW + HOUR)
    assert [one.issued_at for one in kept] == [NOW, NOW + HOUR], "by then, and once each"
    assert kept[0].start == NOW
    assert np.allclose(kept[0].kg_per_kwh, [Grid().value("DE", NOW + i * HOUR) for i in range(5)])
    archive = archive_of({"DE": kept, "FR": []}, "lifecycle")
    assert archive.zones == ("DE",)
    assert archive.source("DE") == "the grid"
    cache.clear(zone="DE")
    assert cache.issues("DE", "lifecycle", NOW + 9 * HOUR) == []


def test_half_hours_of_an_issue_become_hours() -> None:
    readings = [
        Reading(zone="GB", start=NOW + i * HOUR / 2, end=NOW + (i + 1) * HOUR / 2, kind="forecast", factor="direct",
                source="x", kg_per_kwh=0.1 * i, fetched_at=NOW)
        for i in (0, 1, 4)
    ]  # fmt: skip
    issue = issue_of(readings)
    assert issue is not None
    assert issue.kg_per_kwh[[0, 2]].tolist() == pytest.approx([0.05, 0.4])
    assert np.isnan(issue.kg_per_kwh[1])
    assert issue_of([]) is None
    assert isinstance(issue, Issue)


def test_files_that_end_before_a_coming_run_are_continued_and_old_ones_are_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    until = TRUTH.window(TRUTH.start, 24 * 40)
    for zone, row in zip(until.zones, until.intensity, strict=True):
        lines = [
            f"{at:%Y-%m-%dT%H:%M}Z,,{1000 * value:.6f}" for at, value in zip(until.slot_starts(), row, strict=True)
        ]
        text = "\n".join(["datetime_utc,ci_direct_g_per_kwh,ci_lca_g_per_kwh", *lines]) + "\n"
        (tmp_path / f"{zone}_2022.csv").write_text(text)
    data = {"source": str(tmp_path), "factor": "lifecycle", "fill_hours": 0}
    settings = {"slot_minutes": 60, "folder": tmp_path}
    now = until.end + 3 * HOUR
    made = traces_of(data, ZONES, until.end - 2 * HOUR, until.end + 30 * HOUR, now=now, **settings)  # type: ignore[arg-type]
    assert made.slots == 32
    assert [len(known.hours("forecast")) for known in made.provenance] == [30, 30]
    assert "The next 30 h are our own forecast" in caplog.text
    for later in (timedelta(days=15), timedelta(days=400)):
        with pytest.raises(DataError, match="is outside"):
            traces_of(data, ZONES, until.end + later, until.end + later + 9 * HOUR, now=now + later, **settings)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="is outside"):
        traces_of(data, ZONES, until.end - HOUR, until.end + HOUR, now=now + timedelta(days=900), **settings)  # type: ignore[arg-type]


def test_what_stays_odd_is_told_once_and_again_when_it_comes_back() -> None:
    grid = Grid()
    made = feed(grid)
    told = []
    for hour in range(8):
        grid.now = NOW + hour * HOUR
        grid.down = () if hour in (0, 4) else ("actual", "forecast")
        known = made.until(grid.now)
        made.forecast(known, 24)
        told.append(made.notes())
    assert [bool(notes) for notes in told] == [False, True, False, False, False, True, False, False]
    assert any("No new actual intensity" in note for note in told[1])
