from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pytest

from slackwater.errors import DataError, ScenarioError
from slackwater.intensity.traces import Origin, Provenance, Traces, origins_of
from slackwater.units import utc

START = datetime(2022, 1, 1, tzinfo=UTC)


def traces(**changes: object) -> Traces:
    fields: dict[str, object] = {
        "zones": ("DE", "FR"),
        "start": START,
        "intensity": np.arange(12, dtype=float).reshape(2, 6) / 1000,
        "factor": "direct",
        "provenance": (
            Provenance(zone="DE", source="ci/DE_2022.csv", filled_hours=("2022-01-01T01:00Z", "2022-01-01T04:00Z")),
            Provenance(zone="FR", source="ci/FR_2022.csv"),
        ),
    }
    return Traces(**(fields | changes))  # type: ignore[arg-type]


def test_window_is_the_part_asked_for() -> None:
    part = traces().window("2022-01-01T03:00Z", 2)
    assert part.start == START + timedelta(hours=3)
    assert part.end == START + timedelta(hours=5)
    assert part.intensity.tolist() == [[0.003, 0.004], [0.009, 0.010]]
    assert part.slot_starts() == [START + timedelta(hours=3), START + timedelta(hours=4)]


def test_window_keeps_only_its_own_filled_hours() -> None:
    assert traces().window("2022-01-01T02:00Z", 4).provenance[0].filled_hours == ("2022-01-01T04:00Z",)
    quarters = traces(intensity=np.ones((2, 24)), slot_minutes=15)
    assert quarters.window("2022-01-01T01:30Z", 2).provenance[0].filled_hours == ("2022-01-01T01:00Z",)
    assert quarters.window("2022-01-01T00:30Z", 2).provenance[0].filled_hours == ()


def test_a_slot_is_as_certain_as_its_least_certain_hour() -> None:
    hours = [f"2022-01-01T{hour:02}:00Z" for hour in range(6)]
    known = Provenance(
        zone="DE",
        source="a provider",
        filled_hours=(hours[1],),
        origins=(
            Origin(start=hours[2], hours=1, source="a provider", kind="estimated"),
            Origin(start=hours[4], hours=1, source="a forecaster", kind="forecast", issued_at=hours[0]),
        ),
    )
    one = timedelta(hours=1)
    certainties = [known.origin(START + hour * one, START + (hour + 1) * one)[1] for hour in range(6)]
    assert certainties == ["actual", "estimated", "estimated", "actual", "forecast", "actual"]
    assert known.origin(START + 2 * one, START + 6 * one)[1] == "forecast"
    assert known.origin(START + 4.5 * one, START + 4.75 * one)[1] == "forecast"
    assert Provenance(zone="DE", source="typical", synthetic=True).origin(START, START + one)[1] == "synthetic"
    assert Provenance.from_dict(known.to_dict()) == known
    assert set(Provenance(zone="FR", source="a file").to_dict()) == {"zone", "source", "synthetic", "filled_hours"}
    assert known.origin(utc(hours[4]), utc(hours[5])) == ("a forecaster", "forecast")
    assert (known.hours("estimated"), known.hours("forecast")) == ((hours[2],), (hours[4],))


def test_files_from_before_origins_keep_the_kinds_of_their_hours() -> None:
    hours = [f"2022-01-01T{hour:02}:00Z" for hour in range(6)]
    old = {"zone": "DE", "source": "neso", "synthetic": False, "filled_hours": [], "forecast_hours": hours[2:5]}
    known = Provenance.from_dict(old)
    assert known.origins == (Origin(start=hours[2], hours=3, source="neso", kind="forecast"),)
    assert Provenance.from_dict(known.to_dict()) == known


def test_hours_of_one_origin_are_one_run_of_them() -> None:
    start = utc("2022-01-01T00:00Z")
    hours = [(start + timedelta(hours=i), "a", "forecast", start if i < 3 else None) for i in (0, 1, 2, 3, 5)]
    assert [one.hours for one in origins_of(hours)] == [3, 1, 1]


@pytest.mark.parametrize(("start", "slots"), [("2021-12-31T23:00Z", 2), ("2022-01-01T05:00Z", 2)])
def test_asking_outside_is_an_error(start: str, slots: int) -> None:
    with pytest.raises(DataError, match=r"cover 2022-01-01T00:00Z to 2022-01-01T06:00Z; .* is outside"):
        traces().window(start, slots)


@pytest.mark.parametrize(
    ("start", "slots", "message"),
    [
        ("2022-01-01T00:30Z", 1, "not the start of a 60-minute slot"),
        ("2022-01-01T00:00", 1, "has no time zone"),
        (datetime(2022, 1, 1), 1, "has no time zone"),
        ("tomorrow", 1, "is not a time"),
        ("2022-01-01T00:00Z", 0, "slots is 0"),
    ],
)
def test_a_window_that_makes_no_sense(start: str | datetime, slots: int, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        traces().window(start, slots)


def test_unknown_zone_names_those_there() -> None:
    assert traces().index("FR") == 1
    with pytest.raises(ScenarioError, match=r"no trace for zone 'GB'\. Loaded: DE, FR"):
        traces().index("GB")


def test_start_is_utc_inside() -> None:
    local = traces(start=datetime(2022, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))))
    assert local.start == START
    assert local.start.tzinfo is UTC
    with pytest.raises(ScenarioError, match="no time zone"):
        traces(start=datetime(2022, 1, 1))


@pytest.mark.parametrize("value", [np.nan, np.inf, -0.1])
def test_only_finite_intensity_that_is_not_negative(value: float) -> None:
    with pytest.raises(DataError, match="finite and not negative"):
        traces(intensity=np.full((2, 6), value))


def test_lists_are_an_array_and_grams_or_a_single_number_are_an_error() -> None:
    assert traces(intensity=[[0.08] * 3, [0.3] * 3]).intensity.dtype == np.float64
    with pytest.raises(DataError, match=r"an intensity of 300 kg/kWh is above any grid .* g/kWh: divide by 1000"):
        traces(intensity=[[80] * 3, [300] * 3])
    with pytest.raises(
        DataError, match=r"2 zones are named but the intensity has the shape \(\); give one row for each"
    ):
        traces(intensity=80)
    with pytest.raises(DataError, match="Intensity must be numbers, with one row"):
        traces(intensity=[["80 g"], ["x"]])


@pytest.mark.parametrize("shape", [(3, 6), (2,)])
def test_one_row_for_each_zone(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match="2 zones are named"):
        traces(intensity=np.ones(shape))


def test_synthetic_if_any_zone_is() -> None:
    assert not traces().synthetic
    assert traces(provenance=(Provenance(zone="DE", source="typical", synthetic=True),)).synthetic


def test_zones_with_a_forecast_hour_are_named() -> None:
    assert traces().forecast_zones() == []
    came = Origin(start="2022-01-01T00:00Z", hours=3, source="a", kind="actual")
    ahead = Origin(start="2022-01-01T03:00Z", hours=3, source="a", kind="forecast")
    mixed = (
        Provenance(zone="DE", source="a", origins=(came,)),
        Provenance(zone="FR", source="a", origins=(came, ahead)),
    )
    assert traces(provenance=mixed).forecast_zones() == ["FR"]


@pytest.mark.parametrize("hours", [0, -3, 10**12, True, 2.5])
def test_an_origin_of_absurd_length_is_refused(hours: object) -> None:
    with pytest.raises(DataError, match="is damaged"):
        Origin(start="2022-01-01T00:00Z", hours=hours, source="a", kind="forecast")  # type: ignore[arg-type]
