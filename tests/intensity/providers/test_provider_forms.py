"""What is particular about each provider."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cases import CASES, END, START, Case, make_context, serving
from fakes import HOUR, NOW, EiaFake, ElectricityMapsFake, EntsoeFake, WattTimeFake, acknowledgement, floor, xml
from loopback import as_json, running

from slackwater.errors import ScenarioError
from slackwater.intensity.providers import provider_errors as errors
from slackwater.intensity.providers.base import Provider
from slackwater.intensity.providers.chain import make_provider
from slackwater.intensity.providers.eia import respondent
from slackwater.intensity.providers.energy_charts import COUNTRIES
from slackwater.intensity.providers.entsoe import AREAS
from slackwater.intensity.providers.generation_mix import EIA_FUELS, ENTSOE_FUELS, G_PER_KWH
from slackwater.intensity.providers.neso import region
from slackwater.intensity.providers.readings import Intake

BY_NAME = {case.spec: case for case in CASES}
MAPS = BY_NAME["electricitymaps"]


@pytest.mark.parametrize("version", ["v3", "v4"])
def test_electricity_maps_past_in_pieces_of_ten_days(version: str) -> None:
    with serving(BY_NAME["electricitymaps" if version == "v3" else "electricitymaps:v4"]) as (provider, server, _):
        answer = provider.fetch(["FR"], NOW - timedelta(days=32), NOW - timedelta(days=7), "actual").expect()
    assert len(answer.readings) == 25 * 24 + 1
    assert {asked.path for asked in server.asked} == {f"/{version}/carbon-intensity/past-range"}
    assert len(server.asked) == 3
    assert {asked.query["disableCallerLookup"] for asked in server.asked} == {"true"}


def test_electricity_maps_recent_hours_are_free_of_charge() -> None:
    with serving(MAPS) as (provider, server, _):
        answer = provider.fetch(["FR"], NOW - 10 * HOUR, NOW, "actual").expect()
    assert len(answer.readings) == 11
    assert [asked.path.rpartition("/")[2] for asked in server.asked] == ["history", "latest"]


@pytest.mark.parametrize(("hours", "horizon"), [(2, "6"), (20, "24"), (40, "48"), (72, "72"), (200, "72")])
def test_electricity_maps_horizon(hours: int, horizon: str) -> None:
    with serving(MAPS) as (provider, server, _):
        answer = provider.fetch(["FR"], floor(NOW), floor(NOW) + hours * HOUR, "forecast").expect()
    assert server.asked[0].query["horizonHours"] == horizon
    assert len(answer.readings) == min(hours, 72)
    assert {reading.issued_at for reading in answer.readings} == {NOW - HOUR}


def test_electricity_maps_falls_back_to_the_callers_zone() -> None:
    with running(ElectricityMapsFake(zone="FR"), NOW) as server:
        provider = make_provider("electricitymaps", make_context({"electricitymaps": server.address}))
        answer = provider.fetch(["XX"], START, END, "actual")
    assert not answer.readings
    assert "answered for the caller's own zone" in str(answer.failures["XX"])


def test_electricity_maps_estimates_are_marked() -> None:
    with running(ElectricityMapsFake(estimated=True), NOW) as server:
        provider = make_provider("electricitymaps", make_context({"electricitymaps": server.address}))
        answer = provider.fetch(["FR"], START, END, "actual").expect()
    assert {reading.kind for reading in answer.readings} == {"estimated"}
    assert "6 of 6 values are estimated" in answer.notes[0]


def test_electricity_maps_without_data_and_with_another_factor() -> None:
    with serving(MAPS) as (provider, server, _):
        server.script.append(as_json({"status": "no-data"}))
        assert isinstance(provider.fetch(["FR"], START, END, "actual").failures["FR"], errors.NoValuesError)
        row = ElectricityMapsFake().row("FR", START, "direct")
        server.script.append(as_json({"zone": "FR", "data": [row]}))
        error = provider.fetch(["FR"], START, END, "actual").failures["FR"]
    assert "returned direct intensity of FR instead of lifecycle" in str(error)


def test_electricity_maps_fails_half_way_and_keeps_what_came() -> None:
    with serving(MAPS) as (provider, server, _):
        server.script.extend([None, as_json({"error": "no"}, status=403)])
        answer = provider.fetch(["FR"], NOW - timedelta(days=32), NOW - timedelta(days=7), "actual")
    assert len(answer.readings) == 240
    assert isinstance(answer.failures["FR"], errors.ForbiddenError)


def test_electricity_maps_versions() -> None:
    with pytest.raises(ScenarioError, match="choose v3 or v4"):
        make_provider("electricitymaps:v9", make_context({}))


def test_neso_regions_are_forecasts_and_never_actual() -> None:
    with serving(BY_NAME["neso"]) as (provider, server, _):
        trouble = provider.fetch(["GB-13"], START, END, "actual").failures["GB-13"]
        assert "a forecast is never charged as actual" in str(trouble)
        assert not server.asked
        answer = provider.fetch(["GB-13"], floor(NOW) + HOUR, NOW + 6 * HOUR, "forecast").expect()
    assert {reading.kind for reading in answer.readings} == {"forecast"}
    assert server.asked[0].path.endswith("/regionid/13")
    assert [region(zone) for zone in ("GB-1", "GB-17", "GB-18", "GB-0", "GB-NIR", "GB")] == [
        1,
        17,
        None,
        None,
        None,
        None,
    ]


def test_neso_actual_of_the_future_is_missing_not_forecast() -> None:
    with serving(BY_NAME["neso"]) as (provider, _, _):
        answer = provider.fetch(["GB"], floor(NOW), floor(NOW) + 3 * HOUR, "actual").expect()
    assert len(answer.readings) == 1
    assert answer.notes == ()  # not published yet: nothing odd


def test_neso_long_ranges_come_in_pieces() -> None:
    with serving(BY_NAME["neso"]) as (provider, server, _):
        answer = provider.fetch(["GB"], START - timedelta(days=30), START, "actual").expect()
    assert len(answer.readings) == 30 * 48
    assert len(server.asked) == 3


def test_energy_charts_has_whole_countries() -> None:
    assert "SE" in COUNTRIES
    assert "SE-SE3" not in COUNTRIES
    with serving(BY_NAME["energycharts"]) as (provider, server, _):
        page = {"unix_seconds": [1, 2], "co2eq": [1.0], "co2eq_forecast": [1.0], "deprecated": True}
        server.script.append(as_json(page))
        assert "2 times for 1 values" in str(provider.fetch(["DE"], START, END, "actual").failures["DE"])


def test_watttime_converts_pounds() -> None:
    with serving(BY_NAME["watttime"], lambda _: 1000.0) as (provider, _, _):
        answer = provider.fetch(["WT:CAISO_NORTH"], START, END, "actual").expect()
    assert answer.readings[0].kg_per_kwh == pytest.approx(0.453592)
    assert answer.readings[0].factor == "marginal"


def test_watttime_logs_in_again_when_the_token_has_expired() -> None:
    fake = WattTimeFake()
    with running(fake, NOW) as server:
        provider = make_provider("watttime", make_context({"watttime": server.address}))
        provider.fetch(["US-CAL-CISO"], START, END, "actual").expect()
        provider.fetch(["US-CAL-CISO"], START, END, "actual").expect()
        assert fake.log_ins == 1
        fake.token = "token-2"
        provider.fetch(["US-CAL-CISO"], START, END, "actual").expect()
        assert fake.log_ins == 2


def test_watttime_refuses_other_units_and_regions() -> None:
    with serving(BY_NAME["watttime"]) as (provider, server, _):
        meta = {"units": "percentile", "region": "CAISO_NORTH"}
        server.script.extend([None, as_json({"data": [], "meta": meta})])
        assert "percentile" in str(provider.fetch(["WT:CAISO_NORTH"], START, END, "actual").failures["WT:CAISO_NORTH"])
        server.script.append(as_json({"data": [], "meta": {"units": "lbs_co2_per_mwh", "region": "PJM_DC"}}))
        assert "another region" in str(
            provider.fetch(["WT:CAISO_NORTH"], START, END, "actual").failures["WT:CAISO_NORTH"]
        )


def test_watttime_regions_of_our_zones() -> None:
    provider = make_provider("watttime:US-TEX-ERCO=ERCOT_AUSTIN;GB=UK", make_context({}))
    assert provider.covers("US-TEX-ERCO")
    assert not provider.covers("FR")
    with pytest.raises(ScenarioError, match="ZONE=REGION"):
        make_provider("watttime:nonsense", make_context({}))


@pytest.mark.parametrize("status", [200, 400])
def test_entsoe_without_data(status: int) -> None:
    with serving(BY_NAME["entsoe"]) as (provider, server, _):
        server.always = xml(acknowledgement("No matching data found for Data item ACTUAL_GENERATION"), status=status)
        trouble = provider.fetch(["SE-SE3"], START, END, "actual").failures["SE-SE3"]
    assert isinstance(trouble, errors.NoValuesError)


def test_entsoe_other_refusals_and_traps() -> None:
    with serving(BY_NAME["entsoe"]) as (provider, server, _):
        server.script.append(xml(acknowledgement("The amount of requested data exceeds allowed limit")))
        assert "exceeds allowed limit" in str(provider.fetch(["SE-SE3"], START, END, "actual").failures["SE-SE3"])
        server.script.append(xml('<!DOCTYPE a [<!ENTITY b "boom">]><a>&b;</a>'))
        assert "document type" in str(provider.fetch(["SE-SE3"], START, END, "actual").failures["SE-SE3"])


def test_entsoe_slots_that_lack_a_fuel_have_no_intensity() -> None:
    """The newest quarter-hours come fuel by fuel; wind alone would look very clean."""
    late = END - HOUR
    with serving(BY_NAME["entsoe"], lambda when: 250 if when < late else None) as (provider, _, _):
        answer = provider.fetch(["SE-SE3"], START, END, "actual").expect()
    assert answer.readings[-1].end == late
    assert any("4 of 24 steps lack a main fuel" in note for note in answer.notes)


def test_entsoe_areas_bear_the_check_character_of_their_code() -> None:
    signs = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ-"
    for zone, code in AREAS.items():
        total = sum(signs.index(sign) * (16 - i) for i, sign in enumerate(code[:15]))
        assert signs[36 - (total - 1) % 37] == code[15], zone


def test_eia_pages_and_marks_hours_by_their_end() -> None:
    fake = EiaFake(page=7)
    with running(fake, NOW) as server:
        provider = make_provider("eia", make_context({"eia": server.address}))
        answer = provider.fetch(["US-CAL-CISO"], START, END, "actual").expect()
    assert [reading.start for reading in answer.readings] == [START + i * HOUR for i in range(6)]
    assert [asked.query["offset"] for asked in server.asked] == ["0", "7", "14"]
    assert server.asked[0].query["start"] == f"{START + HOUR:%Y-%m-%dT%H}"
    assert server.asked[0].query["facets[respondent][]"] == "CISO"
    assert any("SUN" in note and "negative" in note for note in answer.notes)


def test_eia_zones() -> None:
    zones = ("US-CAL-CISO", "US-MIDA-PJM", "US-TEX-ERCO", "US", "US-HI-OA", "US-AK", "FR")
    assert [respondent(zone) for zone in zones] == ["CISO", "PJM", "ERCO", "US48", None, None, None]


@pytest.mark.parametrize(("factor", "grams"), [("lifecycle", 213.25), ("direct", 190.0)])
def test_generation_times_factors(factor: str, grams: float) -> None:
    with running(EntsoeFake(), NOW) as server:
        provider = make_provider("entsoe", make_context({"entsoe": server.address}, factor=factor))  # type: ignore[arg-type]
        answer = provider.fetch(["SE-SE3"], START, END, "actual").expect()
    assert answer.readings[0].kg_per_kwh == pytest.approx(grams / 1000)
    assert answer.readings[0].factor == factor


def test_every_fuel_has_factors() -> None:
    assert {*ENTSOE_FUELS.values(), *EIA_FUELS.values()} <= G_PER_KWH.keys()
    assert all(set(factors) == {"lifecycle", "direct"} for factors in G_PER_KWH.values())
    assert all(factors["direct"] <= factors["lifecycle"] for factors in G_PER_KWH.values())


def test_files(tmp_path: Path) -> None:
    hours = [START + i * HOUR for i in range(6)]
    rows = [f"{hour:%Y-%m-%dT%H:%MZ},{'' if i == 3 else 40 + i},60" for i, hour in enumerate(hours)]
    table = "\n".join(["datetime_utc,ci_direct_g_per_kwh,ci_lca_g_per_kwh", *rows])
    (tmp_path / "ci").mkdir()
    (tmp_path / "ci" / "FR_2026.csv").write_text(table, encoding="utf-8")
    provider = make_provider("files:ci", make_context({}, factor="direct", folder=tmp_path))
    answer = provider.fetch(["FR", "DE"], START, END, "actual")
    assert [reading.kg_per_kwh for reading in answer.of("FR")] == pytest.approx([0.04, 0.041, 0.042, 0.044, 0.045])
    assert "1 of 6 values are null" in answer.notes[0]
    assert "There is no zone DE" in str(answer.failures["DE"])
    with pytest.raises(ScenarioError, match="needs a path"):
        make_provider("files", make_context({}))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.spec)
def test_requests_that_make_no_sense(case: Case) -> None:
    provider = make_provider(case.spec, make_context({}, factor=case.factor))
    with pytest.raises(ScenarioError, match="give a list"):
        provider.fetch("FR", START, END, "actual")
    with pytest.raises(ScenarioError, match="is not after"):
        provider.fetch([case.zone], END, START, "actual")
    with pytest.raises(ScenarioError, match="no time zone"):
        provider.fetch([case.zone], datetime(2026, 1, 1), END, "actual")
    with pytest.raises(ScenarioError, match="ask for 'actual' or 'forecast'"):
        provider.fetch([case.zone], START, END, "estimated")  # type: ignore[arg-type]


def test_unknown_providers() -> None:
    with pytest.raises(ScenarioError, match="Did you mean 'neso'"):
        make_provider("nesso", make_context({}))


def test_times_in_answers_need_a_zone() -> None:
    with serving(MAPS) as (provider, server, _):
        row = {**ElectricityMapsFake().row("FR", START, "lifecycle"), "datetime": "2026-11-07T00:00:00"}
        server.script.append(as_json({"zone": "FR", "data": [row]}))
        assert "without a time zone" in str(provider.fetch(["FR"], START, END, "actual").failures["FR"])
        row["datetime"] = datetime(2026, 11, 7, 0, 7, tzinfo=UTC).isoformat()
        server.script.append(as_json({"zone": "FR", "data": [row]}))
        answer = provider.fetch(["FR"], START, END, "actual")
    assert "not at full steps" in answer.notes[0]


def test_a_forecast_is_never_booked_as_actual_whoever_says_so() -> None:
    class Confused(Provider):
        name = "confused"

        def read(self, intake: Intake) -> None:
            intake.add(intake.start, 60, 100, kind="forecast")
            intake.add(intake.start + HOUR, 60, 100)

    answer = Confused(make_context({})).fetch(["FR"], START, END, "actual").expect()
    assert [(reading.start, reading.kind) for reading in answer.readings] == [(START + HOUR, "actual")]
    assert "1 of 2 values are forecasts, which are never charged as actual" in answer.notes[0]
