from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from slackwater.errors import DataError
from slackwater.intensity.files import find_files, read_zone, zone_in_name
from slackwater.intensity.traces import ZoneSeries, moment

TIDY = "datetime_utc,ci_direct_g_per_kwh,ci_lca_g_per_kwh"
OLD_PORTAL = (
    "Datetime (UTC),Country,Zone Name,Zone Id,Carbon Intensity gCO₂eq/kWh (direct),Carbon Intensity gCO₂eq/kWh (LCA),"
    "Low Carbon Percentage,Renewable Percentage,Data Source,Data Estimated,Data Estimation Method"
)
NEW_PORTAL = (
    "Datetime (UTC),Country,Zone name,Zone id,Carbon intensity gCO₂eq/kWh (direct),"
    "Carbon intensity gCO₂eq/kWh (Life cycle),Carbon-free energy percentage (CFE%),Renewable energy percentage (RE%),"
    "Data source,Data estimated,Data estimation method"
)


def write(path: Path, header: str, *rows: str) -> Path:
    path.write_text("\n".join((header, *rows)) + "\n", encoding="utf-8")
    return path


def tidy_hours(start: str, hours: int, direct: float = 100.0, lifecycle: float = 150.0) -> list[str]:
    begin = datetime.fromisoformat(start)
    return [
        f"{begin + timedelta(hours=h):%Y-%m-%dT%H:%MZ},{direct + h % 24},{lifecycle + h % 24}" for h in range(hours)
    ]


def portal_rows(zone: str, start: str, count: int, minutes: int = 60) -> list[str]:
    begin = datetime.fromisoformat(start)
    step = timedelta(minutes=minutes)
    return [
        f"{begin + i * step:%Y-%m-%d %H:%M:%S},Country,Name,{zone},{100 + i},{150 + i},1,1,x,false,"
        for i in range(count)
    ]


def read(path: Path) -> ZoneSeries:
    (files,) = find_files(path).files.values()
    return read_zone(files)


def test_tidy(tmp_path: Path) -> None:
    series = read(write(tmp_path / "DE_2022.csv", TIDY, *tidy_hours("2022-01-01T00:00", 3)))
    assert (series.zone, series.step_minutes, series.steps) == ("DE", 60, 3)
    assert moment(series.start_minute) == datetime(2022, 1, 1, tzinfo=UTC)
    np.testing.assert_allclose(series.intensity["direct"], [0.100, 0.101, 0.102])
    np.testing.assert_allclose(series.intensity["lifecycle"], [0.150, 0.151, 0.152])
    assert series.source.endswith("/DE_2022.csv")


@pytest.mark.parametrize("header", [OLD_PORTAL, NEW_PORTAL])
def test_both_portal_headers(tmp_path: Path, header: str) -> None:
    series = read(write(tmp_path / "any name.csv", header, *portal_rows("SE-SE3", "2022-01-01T00:00", 3)))
    assert series.zone == "SE-SE3"
    assert moment(series.start_minute) == datetime(2022, 1, 1, tzinfo=UTC)
    np.testing.assert_allclose(series.intensity["direct"], [0.100, 0.101, 0.102])
    np.testing.assert_allclose(series.intensity["lifecycle"], [0.150, 0.151, 0.152])


def test_namibia_is_a_zone(tmp_path: Path) -> None:
    write(tmp_path / "portal.csv", NEW_PORTAL, *portal_rows("NA", "2022-01-01T00:00", 2))
    assert list(find_files(tmp_path).files) == ["NA"]
    assert read(tmp_path).zone == "NA"
    assert read(write(tmp_path / "NA_2023.csv", TIDY, *tidy_hours("2023-01-01T00:00", 2))).zone == "NA"


@pytest.mark.parametrize(
    ("name", "zone"),
    [
        ("SE-SE3_2022.csv", "SE-SE3"),
        ("US-CAL-CISO_2022.csv", "US-CAL-CISO"),
        ("DE_2022_hourly.csv", "DE"),
        ("DE_2021_2022.csv", "DE_2021"),
        ("DE.csv", None),
        ("_2022.csv", None),
    ],
)
def test_zone_in_name(name: str, zone: str | None) -> None:
    assert zone_in_name(Path(name)) == zone


def test_byte_order_mark_blank_lines_order_and_extra_columns(tmp_path: Path) -> None:
    path = tmp_path / "DE_2022.csv"
    rows = ["note, CI_LCA_g_per_kWh ,datetime_utc", ",200,2022-01-01T01:00Z", "", 'a "b",100, 2022-01-01T00:00Z ', ""]
    path.write_text("\r\n".join(rows), encoding="utf-8-sig")
    series = read(path)
    assert series.intensity["lifecycle"].tolist() == [0.1, 0.2]
    assert "direct" not in series.intensity


def test_offsets_are_converted(tmp_path: Path) -> None:
    # Central European Time over the change of clocks: regular in UTC.
    rows = [
        "2022-03-27T01:00+01:00,1,10",
        "2022-03-27T03:00+02:00,2,20",
        "2022-03-27T04:00+02:00,3,30",
        "2022-03-27T03:00+00:00,4,40",
    ]
    series = read(write(tmp_path / "DE_2022.csv", TIDY, *rows))
    assert moment(series.start_minute) == datetime(2022, 3, 27, tzinfo=UTC)
    assert series.intensity["direct"].tolist() == [0.001, 0.002, 0.003, 0.004]


def test_years_are_joined_and_what_lies_between_is_missing(tmp_path: Path) -> None:
    write(tmp_path / "DE_2022.csv", TIDY, *tidy_hours("2022-01-01T01:00", 2))
    write(tmp_path / "DE_2021.csv", TIDY, *tidy_hours("2021-12-31T22:00", 2))
    series = read(tmp_path)
    np.testing.assert_array_equal(series.intensity["direct"], np.array([100, 101, np.nan, 100, 101]) / 1000)
    assert "DE_2021.csv, " in series.source


@pytest.mark.parametrize("minutes", [5, 15, 30])
def test_finer_steps_are_found(tmp_path: Path, minutes: int) -> None:
    series = read(write(tmp_path / "x.csv", NEW_PORTAL, *portal_rows("DE", "2022-01-01T00:00", 24, minutes)))
    assert (series.step_minutes, series.steps) == (minutes, 24)


def test_an_hourly_and_a_finer_year_are_joined(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", NEW_PORTAL, *portal_rows("DE", "2021-12-31T22:00", 2))
    write(tmp_path / "b.csv", NEW_PORTAL, *portal_rows("DE", "2022-01-01T00:00", 2, 30))
    series = read(tmp_path)
    assert series.step_minutes == 30
    np.testing.assert_allclose(series.intensity["direct"], [0.1, 0.1, 0.101, 0.101, 0.1, 0.101])


def test_steps_that_do_not_fit_together(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", NEW_PORTAL, *portal_rows("DE", "2021-12-31T22:00", 6, 20))
    write(tmp_path / "b.csv", NEW_PORTAL, *portal_rows("DE", "2022-01-01T00:00", 4, 15))
    with pytest.raises(DataError, match=r"a\.csv has values every 20 minutes, other files of its zone every 15"):
        read(tmp_path)


def test_the_same_hour_in_two_files(tmp_path: Path) -> None:
    write(tmp_path / "DE_2022.csv", TIDY, *tidy_hours("2022-01-01T00:00", 4))
    write(tmp_path / "DE_2022_hourly.csv", NEW_PORTAL, *portal_rows("DE", "2022-01-01T02:00", 4))
    message = r"Zone DE: 2022-01-01T02:00Z is in both .*DE_2022\.csv and .*DE_2022_hourly\.csv \(2 such times\)"
    with pytest.raises(DataError, match=message):
        read(tmp_path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no file or folder .*nowhere\.csv.*'typical'"):
        find_files(tmp_path / "nowhere.csv")


def test_folder_without_csv(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no CSV files"):
        find_files(tmp_path)


@pytest.mark.parametrize(
    "header",
    [
        "time,intensity",
        "datetime_utc,ci_lca_kg_per_kwh",
        "datetime_utc;ci_direct_g_per_kwh;ci_lca_g_per_kwh",
        "Datetime (UTC),Country,Zone id,Renewable Percentage",
    ],
)
def test_wrong_header_says_what_is_there_and_what_is_expected(tmp_path: Path, header: str) -> None:
    with pytest.raises(DataError) as caught:
        read(write(tmp_path / "DE_2022.csv", header, "2022-01-01T00:00Z,1"))
    assert "DE_2022.csv" in str(caught.value)
    assert header.split(",")[-1] in str(caught.value)
    assert "Expected: datetime_utc with ci_direct_g_per_kwh" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("DE_2022.csv", b"", "is empty"),
        ("DE_2022.csv", TIDY.encode(), "has a header but no values"),
        (
            "DE_2022.csv",
            (TIDY + "\n2022-01-01T00:00Z,1\n").encode(),
            "line 2: 2 cells, but the header needs at least 3",
        ),
        ("DE_2022.csv", b"\xff\xfe" + TIDY.encode("utf-16-le"), "is not UTF-8 text"),
        ("Germany.csv", (TIDY + "\n2022-01-01T00:00Z,1,2\n").encode(), "does not name its zone. Call it <ZONE>_<YEAR>"),
        ("x.csv", (NEW_PORTAL + "\n2022-01-01 00:00:00,,,,1,2\n").encode(), "line 2: the zone id is missing"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read(tmp_path / name)


def test_two_zones_in_a_file(tmp_path: Path) -> None:
    rows = portal_rows("DE", "2022-01-01T00:00", 2) + portal_rows("FR", "2022-01-01T00:00", 2)
    with pytest.raises(DataError, match="line 4: zone 'FR' in a file of zone 'DE'"):
        read(write(tmp_path / "x.csv", NEW_PORTAL, *rows))


@pytest.mark.parametrize(
    ("stamp", "message"),
    [
        ("2022-01-01T01:00", r"line 3: '2022-01-01T01:00' has no time zone\. Add Z if it is UTC \(2022-01-01T01:00Z\)"),
        ("01.01.2022 01:00", r"line 3: '01\.01\.2022 01:00' is not a time\. Write it like 2022-01-01T00:00Z"),
        ("2022-01-01T01:00:30Z", "line 3: .* is not a full minute"),
        ("2022-01-01T01:30+00:30", None),
        ("2022-01-01T06:30+05:30", None),
    ],
)
def test_times_of_tidy_files(tmp_path: Path, stamp: str, message: str | None) -> None:
    path = write(tmp_path / "DE_2022.csv", TIDY, "2022-01-01T00:00Z,1,10", f"{stamp},2,20")
    if message is None:
        assert read(path).steps == 2
    else:
        with pytest.raises(DataError, match=message):
            read(path)


def test_real_portal_files_equal_the_tidy_ones(shared_data: Path) -> None:
    for zone in ("ES", "SG"):
        portal = read(shared_data / "electricitymaps_csv" / f"{zone}_2022_hourly.csv")
        tidy = read(shared_data / "ci" / f"{zone}_2022.csv")
        assert (portal.zone, portal.start_minute, portal.steps) == (tidy.zone, tidy.start_minute, 8760)
        for factor in ("direct", "lifecycle"):
            np.testing.assert_array_equal(portal.intensity[factor], tidy.intensity[factor])


def test_a_mistyped_year_does_not_fill_the_memory(tmp_path: Path) -> None:
    """Two lines would become an array of a billion steps."""
    rows = [*tidy_hours("2022-01-01T00:00", 3), "9022-01-01T00:00Z,100,150"]
    with pytest.raises(DataError, match=r"DE_2022.csv reach from 2022-01-01T00:00Z to 9022-01-01T00:00Z. Is a year"):
        read(write(tmp_path / "DE_2022.csv", TIDY, *rows))
