import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slackwater.errors import DataError, ScenarioError
from slackwater.intensity import load as typical
from slackwater.intensity.load import ZoneInfo, available_zones, load_traces
from slackwater.intensity.traces import Factor

START = datetime(2022, 1, 1, tzinfo=UTC)


def write(
    folder: Path,
    zone: str = "DE",
    hours: int = 48,
    *,
    start: datetime = START,
    step: int = 60,
    without: tuple[int, ...] = (),
    empty: tuple[int, ...] = (),
    direct: bool = True,
    lifecycle: bool = True,
) -> Path:
    """A tidy file with direct intensity 100, 101, ... and life-cycle intensity 50 above it."""
    rows = ["datetime_utc,ci_direct_g_per_kwh,ci_lca_g_per_kwh"]
    for i in range(hours):
        if i not in without:
            low, high = (f"{100 + i}" if direct else "", f"{150 + i}" if lifecycle else "")
            values = "," if i in empty else f"{low},{high}"
            rows.append(f"{start + timedelta(minutes=step * i):%Y-%m-%dT%H:%MZ},{values}")
    path = folder / f"{zone}_{start.year}.csv"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def grams(folder: Path, **settings: Any) -> list[list[float]]:
    traces = load_traces(folder, **settings)
    return [[round(value * 1000, 9) for value in row] for row in traces.intensity.tolist()]


def test_a_file(tmp_path: Path) -> None:
    traces = load_traces(write(tmp_path, hours=3))
    assert (traces.zones, traces.start, traces.factor, traces.slot_minutes) == (("DE",), START, "lifecycle", 60)
    np.testing.assert_allclose(traces.intensity, [[0.150, 0.151, 0.152]])
    assert traces.provenance[0].source.endswith("/DE_2022.csv")
    assert not traces.synthetic


def test_a_folder_gives_what_all_zones_share(tmp_path: Path) -> None:
    write(tmp_path, "FR", 6, start=START + timedelta(hours=2))
    write(tmp_path, "DE", 5)
    traces = load_traces(str(tmp_path), factor="direct")
    assert traces.zones == ("DE", "FR")
    assert (traces.start, traces.end) == (START + timedelta(hours=2), START + timedelta(hours=5))
    np.testing.assert_allclose(traces.intensity, [[0.102, 0.103, 0.104], [0.100, 0.101, 0.102]])


def test_zones_keep_the_order_asked_for(tmp_path: Path) -> None:
    for zone in ("BE", "DE", "FR"):
        write(tmp_path, zone)
    assert load_traces(tmp_path, zones=["FR", "BE"]).zones == ("FR", "BE")


def test_only_the_files_of_the_zones_asked_for_are_parsed(tmp_path: Path) -> None:
    write(tmp_path, "DE")
    (tmp_path / "FR_2022.csv").write_text("datetime_utc,ci_lca_g_per_kwh\nrubbish,rubbish\n")
    assert load_traces(tmp_path, zones=["DE"]).zones == ("DE",)
    with pytest.raises(DataError, match="'rubbish' is not a time"):
        load_traces(tmp_path)


def test_start_and_hours(tmp_path: Path) -> None:
    write(tmp_path)
    assert grams(tmp_path, start="2022-01-01T03:00Z", hours=2, factor="direct") == [[103, 104]]
    assert grams(tmp_path, start="2022-01-01T04:00+01:00", hours=1, factor="direct") == [[103]]
    assert grams(tmp_path, start=datetime(2022, 1, 2, 22, tzinfo=UTC), factor="direct") == [[146, 147]]
    assert grams(tmp_path, hours=2, factor="direct") == [[100, 101]]


@pytest.mark.parametrize("start", ["2022-01-01T00:00", datetime(2022, 1, 1)])
def test_naive_start(tmp_path: Path, start: str | datetime) -> None:
    write(tmp_path)
    with pytest.raises(ScenarioError, match="start '2022-01-01T00:00:00' has no time zone"):
        load_traces(tmp_path, start=start)


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"start": "2021-12-31T23:00Z", "hours": 2}, "2021-12-31T23:00Z to 2022-01-01T01:00Z"),
        ({"start": "2022-01-02T23:00Z", "hours": 2}, "2022-01-02T23:00Z to 2022-01-03T01:00Z"),
        ({"hours": 49}, "2022-01-01T00:00Z to 2022-01-03T01:00Z"),
        ({"start": "2024-01-01T00:00Z"}, "2024-01-01T00:00Z and later"),
    ],
)
def test_outside_of_the_data(tmp_path: Path, settings: dict[str, Any], wanted: str) -> None:
    write(tmp_path)
    with pytest.raises(DataError) as caught:
        load_traces(tmp_path, **settings)
    assert "covers 2022-01-01T00:00Z to 2022-01-03T00:00Z" in str(caught.value)
    assert f"{wanted} is outside of it" in str(caught.value)


def test_outside_names_the_zone_that_is_too_short(tmp_path: Path) -> None:
    write(tmp_path, "DE", 48)
    write(tmp_path, "FR", 24)
    for settings in ({"start": "2022-01-02T12:00Z"}, {"hours": 30}):
        with pytest.raises(DataError, match=r"^Zone FR"):
            load_traces(tmp_path, **settings)  # type: ignore[arg-type]


def test_zones_without_a_common_time(tmp_path: Path) -> None:
    write(tmp_path, "DE", 3)
    write(tmp_path, "FR", 3, start=START + timedelta(days=9))
    with pytest.raises(DataError, match=r"share no 60-minute slot: DE 2022-01-01T00:00Z to .*, FR 2022-01-10T00:00Z"):
        load_traces(tmp_path)


def test_slots(tmp_path: Path) -> None:
    write(tmp_path)
    asked: dict[str, Any] = {"start": "2022-01-01T00:00Z", "hours": 6, "factor": "direct"}
    assert grams(tmp_path, slot_minutes=180, **asked) == [[101, 104]]
    assert grams(tmp_path, slot_minutes=360, **asked) == [[102.5]]
    assert grams(tmp_path, slot_minutes=30, **asked)[0][:5] == [100, 100, 101, 101, 102]
    assert grams(tmp_path, slot_minutes=15, start="2022-01-01T00:45Z", hours=1, factor="direct") == [
        [100, 101, 101, 101]
    ]


def test_slots_of_finer_data(tmp_path: Path) -> None:
    write(tmp_path, hours=96, step=15)
    asked: dict[str, Any] = {"hours": 1, "factor": "direct"}
    assert grams(tmp_path, slot_minutes=60, **asked) == [[101.5]]
    assert grams(tmp_path, slot_minutes=30, **asked) == [[100.5, 102.5]]
    assert grams(tmp_path, slot_minutes=5, **asked)[0][:4] == [100, 100, 100, 101]
    assert grams(tmp_path, slot_minutes=20, **asked)[0] == [100.25, 101.5, 102.75]


def test_the_shared_range_is_cut_to_whole_slots(tmp_path: Path) -> None:
    write(tmp_path, hours=24, start=START + timedelta(hours=1))
    traces = load_traces(tmp_path, slot_minutes=360)
    assert (traces.start, traces.slots) == (START + timedelta(hours=6), 3)


def test_zones_that_only_touch_share_nothing(tmp_path: Path) -> None:
    write(tmp_path, hours=24)
    write(tmp_path, zone="FR", hours=24, start=START + timedelta(hours=24))
    with pytest.raises(DataError, match=r"The zones share no 60-minute slot: DE .*, FR .* Use zones"):
        load_traces(tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"factor": "lca"}, "factor is 'lca'; choose 'direct' or 'lifecycle'"),
        ({"slot_minutes": 45}, "slot_minutes is 45; a slot is a whole part of an hour"),
        ({"slot_minutes": 90}, "slot_minutes is 90; a slot is a whole part of an hour"),
        ({"slot_minutes": 300}, "slot_minutes is 300; a slot is a whole part of an hour"),
        ({"slot_minutes": 0}, "slot_minutes is 0"),
        ({"hours": 0}, "hours is 0; give a whole number of 60-minute slots"),
        ({"hours": 5, "slot_minutes": 120}, "hours is 5; give a whole number of 120-minute slots"),
        ({"fill_hours": -1}, "fill_hours is -1"),
        ({"start": "2022-01-01T00:30Z"}, "not the start of a 60-minute slot.*Try 2022-01-01T00:00Z"),
        ({"start": "2022-01-01T04:00Z", "slot_minutes": 180}, "Try 2022-01-01T03:00Z"),
        ({"zones": []}, "zones is empty"),
        ({"zones": "DE"}, r"give a list, like \['DE'\]"),
        ({"zones": ["DE", "DE"]}, "names 'DE' twice"),
    ],
)
def test_settings_that_make_no_sense(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    write(tmp_path)
    with pytest.raises(ScenarioError, match=message):
        load_traces(tmp_path, **settings)


def test_unknown_zone(tmp_path: Path) -> None:
    for zone in ("DE", "FR", "SE-SE3"):
        write(tmp_path, zone)
    with pytest.raises(ScenarioError, match=r"no zone 'SE3' in .*Did you mean SE-SE3\? Known: DE, FR, SE-SE3"):
        load_traces(tmp_path, zones=["DE", "SE3"])
    with pytest.raises(ScenarioError, match=r"Did you mean FR\?"):
        load_traces(tmp_path, zones=["fr"])


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no file or folder .*nowhere"):
        load_traces(tmp_path / "nowhere")


def test_a_stray_csv_is_mentioned_but_a_zone_with_a_wrong_header_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, "DE")
    (tmp_path / "names.csv").write_text("zone,name\nDE,Germany\n")
    assert load_traces(tmp_path).zones == ("DE",)
    assert "names.csv has the columns zone, name" in caplog.text
    (tmp_path / "FR_2022.csv").write_text("time,value\n2022-01-01T00:00Z,5\n")
    assert load_traces(tmp_path, zones=["DE"]).zones == ("DE",)
    for zones in (None, ["FR"]):
        with pytest.raises(DataError, match=r"FR_2022\.csv has the columns time, value"):
            load_traces(tmp_path, zones=zones)


def test_gaps_are_an_error_that_names_zone_hours_and_count(tmp_path: Path) -> None:
    write(tmp_path, "DE", without=(5, 10, 11), empty=(20,))
    write(tmp_path, "FR", without=(30,))
    write(tmp_path, "GB")
    with pytest.raises(DataError) as caught:
        load_traces(tmp_path)
    text = str(caught.value)
    assert "lacks 4 hours of lifecycle intensity: 1 h from 2022-01-01T05:00Z, 2 h from 2022-01-01T10:00Z" in text
    assert "fill_hours=2 (--fill 2)" in text
    assert "Zone FR" in text
    assert "lacks 1 hour of lifecycle intensity: 1 h from 2022-01-02T06:00Z" in text
    assert "Zone GB" not in text


def test_gaps_outside_of_the_range_do_not_matter(tmp_path: Path) -> None:
    write(tmp_path, without=(5,), empty=(0, 47))
    assert grams(tmp_path, start="2022-01-01T06:00Z", hours=2, factor="direct") == [[106, 107]]


def test_short_gaps_are_filled_on_request_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, without=(5, 10, 11))
    with caplog.at_level(logging.INFO):
        traces = load_traces(tmp_path, factor="direct", fill_hours=2)
    np.testing.assert_allclose(traces.intensity[0], (100 + np.arange(48)) / 1000)
    filled = ("2022-01-01T05:00Z", "2022-01-01T10:00Z", "2022-01-01T11:00Z")
    assert traces.provenance[0].filled_hours == filled
    assert f"Zone DE: filled 3 hours by interpolation: {', '.join(filled)}." in caplog.text
    with pytest.raises(
        DataError, match=r"lacks 2 hours .* that fill_hours=1 does not fill: 2 h from 2022-01-01T10:00Z"
    ):
        load_traces(tmp_path, fill_hours=1)


def test_a_gap_is_filled_the_same_whatever_the_range(tmp_path: Path) -> None:
    write(tmp_path, without=(10, 11))
    traces = load_traces(tmp_path, start="2022-01-01T11:00Z", hours=2, factor="direct", fill_hours=2)
    np.testing.assert_allclose(traces.intensity, [[0.111, 0.112]])
    assert traces.provenance[0].filled_hours == ("2022-01-01T11:00Z",)


def test_a_gap_at_the_edge_is_never_filled(tmp_path: Path) -> None:
    write(tmp_path, empty=(0, 47))
    with pytest.raises(DataError, match=r"lacks 2 hours.*the longest is 46 h from 2022-01-01T01:00Z.*never filled"):
        load_traces(tmp_path, fill_hours=5)


def test_filled_hours_of_finer_data(tmp_path: Path) -> None:
    write(tmp_path, hours=96, step=15, without=(5, 6))
    traces = load_traces(tmp_path, factor="direct", fill_hours=1)
    assert traces.provenance[0].filled_hours == ("2022-01-01T01:00Z",)
    np.testing.assert_allclose(traces.intensity[0, :2], [0.1015, 0.1055])


def test_an_hour_missing_where_clocks_go_forward(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, start=datetime(2022, 3, 27, tzinfo=UTC), without=(2,))
    with pytest.raises(DataError, match=r"1 h from 2022-03-27T02:00Z\. .* seems to be in local time with daylight"):
        load_traces(tmp_path)
    load_traces(tmp_path, fill_hours=1)
    assert "seems to be in local time with daylight saving" in caplog.text


def test_missing_factor(tmp_path: Path) -> None:
    write(tmp_path, "DE")
    write(tmp_path, "PL", direct=False)
    write(tmp_path, "XK", lifecycle=False)
    (tmp_path / "RS_2022.csv").write_text("datetime_utc,ci_lca_g_per_kwh\n2022-01-01T00:00Z,500\n")
    message = "no direct intensity for zone {} in .*Use factor='lifecycle'.* zone that has it: DE, XK"
    for zone in ("PL", "RS"):
        with pytest.raises(ScenarioError, match=message.format(zone)):
            load_traces(tmp_path, zones=["DE", zone], factor="direct")
    with pytest.raises(ScenarioError, match="no direct intensity for the zones PL, RS"):
        load_traces(tmp_path, factor="direct")
    with pytest.raises(ScenarioError, match=r"no lifecycle intensity for zone XK.*Use factor='direct'"):
        load_traces(tmp_path, zones=["XK"])
    with pytest.raises(ScenarioError, match="no zone here has it"):
        load_traces(tmp_path / "PL_2022.csv", factor="direct")


def test_available_zones(tmp_path: Path) -> None:
    write(tmp_path, "DE", 6, without=(2, 3), empty=(4,))
    write(tmp_path, "PL", 2, direct=False)
    german, polish = available_zones(tmp_path)
    assert german == ZoneInfo(
        zone="DE",
        source=f"{tmp_path.name}/DE_2022.csv",
        first=START,
        last=START + timedelta(hours=5),
        factors=("direct", "lifecycle"),
        missing_hours={"direct": 3, "lifecycle": 3},
        mean_kg_per_kwh=german.mean_kg_per_kwh,
    )
    assert german.mean_kg_per_kwh == pytest.approx({"direct": 0.102, "lifecycle": 0.152})
    assert (polish.factors, polish.missing_hours) == (("lifecycle",), {"lifecycle": 0})


@pytest.fixture
def two_typical_zones(monkeypatch: pytest.MonkeyPatch) -> None:
    """DE with both factors, PL with the life-cycle one; the intensity is that of the hour of the day, in kg/kWh."""
    monkeypatch.setattr(typical, "typical_zones", lambda factor=None: ("DE",) if factor == "direct" else ("DE", "PL"))

    def intensity(zones: tuple[str, ...], start: datetime, hours: int, factor: Factor) -> Any:
        assert start.minute == 0
        return np.tile((start.hour + np.arange(hours)) % 24 / 24, (len(zones), 1))

    monkeypatch.setattr(typical, "typical_intensity", intensity)


def test_the_typical_profiles_that_ship() -> None:
    traces = load_traces(zones=["DE", "FR"], hours=24)
    assert (traces.slots, traces.synthetic, traces.factor) == (24, True, "lifecycle")
    assert 0.005 < traces.intensity.min() < traces.intensity.max() < 2


@pytest.mark.usefixtures("two_typical_zones")
def test_typical() -> None:
    traces = load_traces()
    assert (traces.zones, traces.start, traces.slots) == (("DE", "PL"), START, 8760)
    assert traces.synthetic
    assert [p.source for p in traces.provenance] == ["typical (synthetic)"] * 2
    assert load_traces(factor="direct").zones == ("DE",)
    quarters = load_traces(zones=["PL"], start="2025-06-01T05:45Z", hours=1, slot_minutes=15)
    np.testing.assert_allclose(quarters.intensity * 24, [[5, 6, 6, 6]])
    assert load_traces(start="2025-06-01T05:45Z", slot_minutes=15).slots == 8760 * 4


@pytest.mark.usefixtures("two_typical_zones")
def test_typical_zones_that_are_not_there() -> None:
    with pytest.raises(ScenarioError, match=r"no zone 'DEU' in the typical profiles\. Did you mean DE\?"):
        load_traces(zones=["DEU"])
    with pytest.raises(ScenarioError, match=r"no direct intensity for zone PL.*Use factor='lifecycle'.*has it: DE"):
        load_traces(zones=["PL"], factor="direct")


@pytest.mark.usefixtures("two_typical_zones")
def test_available_typical_zones() -> None:
    german, polish = available_zones("typical")
    assert (german.zone, german.factors, german.synthetic) == ("DE", ("direct", "lifecycle"), True)
    assert (polish.factors, polish.missing_hours) == (("lifecycle",), {"lifecycle": 0})
    assert (german.first, german.last) == (START, datetime(2022, 12, 31, 23, tzinfo=UTC))


def test_real_folders(shared_data: Path) -> None:
    zones = available_zones(shared_data / "ci")
    assert len(zones) == 111
    assert sum("direct" in info.factors for info in zones) == 28
    assert {info.zone: info.missing_hours["lifecycle"] for info in zones if info.missing_hours["lifecycle"]} == {
        "CA": 71,
        "US": 1601,
    }
    traces = load_traces(shared_data / "electricitymaps_csv", factor="direct")
    assert (traces.zones, traces.slots) == (("ES", "SG"), 8760)
    clean = load_traces(shared_data / "ci", zones=["CA-QC", "SE-SE3", "NO"], factor="direct")
    assert np.count_nonzero(clean.intensity[0] == 0) == 5460


@pytest.mark.parametrize(("zone", "hours"), [("CA", "71"), ("US", "1,601")])
def test_real_gaps(shared_data: Path, zone: str, hours: str) -> None:
    with pytest.raises(DataError, match=rf"Zone {zone} \(ci/{zone}_2022\.csv\) lacks {hours} hours of lifecycle"):
        load_traces(shared_data / "ci", zones=["DE", zone])


def test_filling_real_gaps(shared_data: Path) -> None:
    traces = load_traces(shared_data / "ci", zones=["CA"], fill_hours=47)
    assert len(traces.provenance[0].filled_hours) == 71


PAPER_BUDGETS_KG = {
    3: 0.557535,
    4: 0.744726,
    5: 0.942855,
    9: 1.773765,
    10: 1.983414,
    20: 4.235079,
    30: 6.196011,
    40: 7.980066,
}


def test_the_papers_budgets(shared_data: Path) -> None:
    traces = load_traces(shared_data / "ci_paper7", factor="direct")
    assert len(traces.zones) == 7
    costs = {n: round(0.3 * float(traces.intensity[:, :n].sum()), 6) for n in PAPER_BUDGETS_KG}
    assert costs == PAPER_BUDGETS_KG
