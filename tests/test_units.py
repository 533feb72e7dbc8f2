from datetime import UTC, datetime, timedelta, timezone

import pytest

from slackwater.errors import ScenarioError
from slackwater.units import energy_kwh, iso, kg_per_kwh, utc

NOON = datetime(2022, 7, 1, 12, tzinfo=UTC)


def test_conversions() -> None:
    assert kg_per_kwh(475.0) == 0.475
    assert energy_kwh(300.0, 0.5) == 0.15


@pytest.mark.parametrize(
    "moment",
    [
        "2022-07-01T12:00Z",
        "2022-07-01T14:00+02:00",
        "2022-07-01 12:00:00+00:00",
        NOON,
        datetime(2022, 7, 1, 14, tzinfo=timezone(timedelta(hours=2))),
    ],
)
def test_times_become_utc(moment: str | datetime) -> None:
    assert utc(moment) == NOON
    assert utc(moment).tzinfo is UTC


@pytest.mark.parametrize("moment", ["2022-07-01T12:00", "2022-07-01", datetime(2022, 7, 1, 12)])
def test_a_time_without_a_zone_is_refused_and_the_fix_named(moment: str | datetime) -> None:
    with pytest.raises(ScenarioError, match=r"start '2022-07-01T.* has no time zone\. Add one: 2022-07-01T.*Z for UTC"):
        utc(moment, "start")


def test_what_is_no_time_is_refused() -> None:
    with pytest.raises(ScenarioError, match=r"deadline 'soon' is not a time\. .* like 2022-01-01T00:00Z"):
        utc("soon", "deadline")


def test_iso_is_utc_to_the_minute() -> None:
    assert iso(datetime(2022, 7, 1, 14, 30, tzinfo=timezone(timedelta(hours=2)))) == "2022-07-01T12:30Z"
    assert utc(iso(NOON)) == NOON
