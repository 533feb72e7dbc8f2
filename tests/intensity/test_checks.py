from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from slackwater.errors import DataError
from slackwater.intensity.files import check_repeats, check_unit, find_files, native_step, numbers, read_zone
from slackwater.intensity.traces import EPOCH, minute_of

PATH = Path("DE_2022.csv")
Floats = np.ndarray[tuple[int], np.dtype[np.float64]]


def minutes_of(start: str, count: int, step: int = 60) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return minute_of(datetime.fromisoformat(start)) + step * np.arange(count)


def lines(minutes: np.ndarray[tuple[int], np.dtype[np.int64]]) -> range:
    return range(2, 2 + minutes.size)


def test_an_empty_cell_is_missing() -> None:
    np.testing.assert_array_equal(numbers(PATH, "direct intensity", ["1.5", "", "0"], [2, 3, 4]), [1.5, np.nan, 0])


@pytest.mark.parametrize(
    ("cell", "why"),
    [
        ("abc", "'abc'; that is not a number. Leave the cell empty"),
        ("1,5", "Write decimals with a point"),
        ("NaN", "'NaN'; that is not a number. Leave the cell empty if the value is missing"),
        ("inf", "'inf'; an intensity is finite"),
        ("-1", "'-1'; an intensity is never negative"),
        ("162590", "'162590'; no grid is above 5000 g/kWh. If it is mg/kWh, divide by 1000"),
    ],
)
def test_cells_that_are_no_intensity(cell: str, why: str) -> None:
    with pytest.raises(DataError) as caught:
        numbers(PATH, "direct intensity", ["100", "", cell], [2, 3, 4])
    assert str(caught.value).startswith("DE_2022.csv, line 4: direct intensity is ")
    assert why in str(caught.value)
    with pytest.raises(DataError, match="line 2"):
        numbers(PATH, "direct intensity", [cell, cell], [2, 3])


def test_several_wrong_cells_are_counted() -> None:
    with pytest.raises(DataError, match=r"line 2: .* There are 3 such values"):
        numbers(PATH, "direct intensity", ["-1", "-1", "5", "-2"], [2, 3, 4, 5])


def hours(low: float, high: float) -> Floats:
    return np.linspace(low, high, 48)


KG = r"DE_2022\.csv: every {} intensity is below 2 \(from {} to {}\).* looks like kg/kWh; multiply by 1000"


def test_kilograms_are_recognised_by_life_cycle_intensity() -> None:
    with pytest.raises(DataError, match=KG.format("lifecycle", "0.2", "0.5")):
        check_unit(PATH, {"direct": hours(0.0, 0.4), "lifecycle": hours(0.2, 0.5)})
    with pytest.raises(DataError, match=KG.format("lifecycle", "0.02", "0.03")):
        check_unit(PATH, {"lifecycle": hours(0.02, 0.03)})


def test_kilograms_in_the_direct_column_only() -> None:
    with pytest.raises(DataError, match=KG.format("direct", "0.1", "0.4") + r".*Life-cycle intensity there is 350"):
        check_unit(PATH, {"direct": hours(0.1, 0.4), "lifecycle": hours(200, 500)})


def test_direct_intensity_alone_is_judged_by_its_size() -> None:
    with pytest.raises(DataError, match=KG.format("direct", "0.05", "0.09") + ".*give its life-cycle intensity"):
        check_unit(PATH, {"direct": hours(0.05, 0.09), "lifecycle": np.full(48, np.nan)})


@pytest.mark.parametrize(
    ("direct", "lifecycle"),
    [
        (np.zeros(48), hours(25, 30)),
        (hours(0.3, 1.9), hours(12, 50)),
        (np.where(np.arange(48) < 40, 0.0, 0.5), np.full(48, np.nan)),
        (np.full(48, np.nan), hours(24, 24)),
        (np.full(48, np.nan), np.full(48, np.nan)),
    ],
    ids=["no direct emissions", "nearly none", "mostly none and no life-cycle", "constant", "nothing"],
)
def test_clean_grids_are_not_refused(direct: Floats, lifecycle: Floats) -> None:
    check_unit(PATH, {"direct": direct, "lifecycle": lifecycle})


def test_no_real_file_is_refused_and_every_one_is_in_kilograms(shared_data: Path) -> None:
    found = find_files(shared_data / "ci")
    assert not found.rejected
    assert len(found.files) == 111
    for zone, files in found.files.items():
        kilograms = read_zone(files).intensity  # converted at the door, so just what a file with the mistake has
        with pytest.raises(DataError, match="looks like kg/kWh"):
            check_unit(files[0].path, kilograms)
        if zone in ("DE", "FR"):
            with pytest.raises(DataError, match="looks like kg/kWh"):
                check_unit(files[0].path, {"direct": kilograms["direct"]})
            with pytest.raises(DataError, match="looks like kg/kWh"):
                check_unit(files[0].path, {"direct": kilograms["direct"], "lifecycle": kilograms["lifecycle"] * 1000})
    for zone in ("SE-SE3", "NO", "CA-QC", "SE"):
        kilograms = read_zone(found.files[zone]).intensity
        check_unit(files[0].path, {"direct": kilograms["direct"] * 1000})


def test_an_hour_given_twice() -> None:
    minutes = minutes_of("2022-01-01T00:00Z", 24)
    minutes[10] = minutes[4]
    message = r"the hour 2022-01-01T04:00Z in lines 6 and 12 is given twice\. Keep one line for each hour"
    with pytest.raises(DataError, match=message):
        check_repeats(PATH, minutes, lines(minutes))
    with pytest.raises(DataError, match="the first of 24 such hours"):
        check_repeats(PATH, np.concatenate([minutes_of("2022-01-01T00:00Z", 24)] * 2), range(2, 50))


def local(zone: str, start: str, count: int, step: int = 60) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """What a file in local time has where it says UTC."""
    begin = datetime.fromisoformat(start)
    moments = [(begin + timedelta(minutes=step * i)).astimezone(ZoneInfo(zone)) for i in range(count)]
    return np.array([minute_of(when.replace(tzinfo=EPOCH.tzinfo)) for when in moments])


@pytest.mark.parametrize(
    ("zone", "twice", "missing"),
    [
        ("Europe/Berlin", "2022-10-30T02:00Z", "2022-03-27T02:00Z"),
        ("Europe/London", "2022-10-30T01:00Z", "2022-03-27T01:00Z"),
        ("America/New_York", "2022-11-06T01:00Z", "2022-03-13T02:00Z"),
        ("Australia/Sydney", "2022-04-03T02:00Z", "2022-10-02T02:00Z"),
    ],
)
@pytest.mark.parametrize("step", [60, 15])
def test_local_time_with_daylight_saving(zone: str, twice: str, missing: str, step: int) -> None:
    minutes = local(zone, "2022-01-01T00:00Z", 8760 * 60 // step, step)
    with pytest.raises(DataError) as caught:
        check_repeats(PATH, minutes, lines(minutes))
    assert f"the hour {twice} in lines" in str(caught.value)
    assert f"{missing} is missing" in str(caught.value)
    assert "seems to be in local time with daylight saving. Give the times in UTC" in str(caught.value)


def test_daylight_saving_in_autumn_alone() -> None:
    minutes = local("Europe/Berlin", "2022-07-01T00:00Z", 4000)
    with pytest.raises(DataError, match="Clocks go back there, so the file seems to be in local time"):
        check_repeats(PATH, minutes, lines(minutes))


def test_step_is_the_commonest_distance_of_at_most_an_hour() -> None:
    for step in (5, 15, 30, 60):
        minutes = minutes_of("2022-01-01T00:00Z", 50, step)
        assert native_step(PATH, np.delete(minutes, [7, 20, 21]), lines(minutes)) == step
    assert native_step(PATH, np.array([0, 600, 660, 1260]), range(2, 6)) == 60
    assert native_step(PATH, np.array([0]), [2]) == 60


@pytest.mark.parametrize(
    ("name", "minutes", "message"),
    [
        ("DE_2022_daily.csv", minutes_of("2022-01-01T00:00Z", 9, 1440), "one value every 24 h, which is too coarse"),
        ("DE_2022.csv", minutes_of("2022-01-01T00:00Z", 9, 120), "every 2 h.*Get the hourly file"),
        ("DE_2022_monthly.csv", np.array([0, 44640, 84960, 129600]), "every 744 h"),
        ("DE_2022_yearly.csv", np.array([0]), "one value yearly, which is too coarse"),
        ("DE_2022.csv", minutes_of("2022-01-01T00:00Z", 9, 7), "every 7 minutes"),
        (
            "DE_2022.csv",
            minutes_of("2022-01-01T00:30Z", 9),
            r"line 2: 2022-01-01T00:30Z is not at a full 60-minute step.*9 such lines",
        ),
    ],
)
def test_steps_that_cannot_be_used(
    name: str, minutes: np.ndarray[tuple[int], np.dtype[np.int64]], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        native_step(Path(name), minutes, lines(minutes))
