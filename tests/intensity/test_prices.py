"""Price files: two layouts, units, negative prices, and a sentence for everything that can be wrong."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slackwater.errors import DataError, ScenarioError
from slackwater.intensity.files import read_prices
from slackwater.intensity.prices import Prices

START = datetime(2022, 1, 1, tzinfo=UTC)
WIDE = """\
datetime_utc,DE,FR
2022-01-01T00:00Z,100,-20
2022-01-01T01:00Z,120,30.5
2022-01-01T02:00Z,80,40
"""
LONG = """\
zone,price,datetime_utc
DE,100,2022-01-01T00:00Z
FR,-20,2022-01-01T00:00Z
DE,80,2022-01-01T02:00Z
DE,120,2022-01-01T01:00Z
FR,30.5,2022-01-01T01:00Z
FR,40,2022-01-01T02:00Z
"""


def read(folder: Path, text: str, zones: tuple[str, ...] = ("FR", "DE"), **more: Any) -> Prices:
    path = folder / "prices.csv"
    path.write_text(text, encoding="utf-8")
    settings = {"currency": "EUR", "unit": "EUR/MWh", "start": START, "slot_minutes": 60} | more
    return read_prices(path, zones, **settings)


@pytest.mark.parametrize("text", [WIDE, LONG, "\ufeff" + WIDE])
def test_wide_and_long_files_say_the_same(tmp_path: Path, text: str) -> None:
    found = read(tmp_path, text)
    assert found.per_kwh.tolist() == [[-0.02, 0.0305, 0.04], [0.1, 0.12, 0.08]]
    assert (found.zones, found.currency, found.start, found.slots) == (("FR", "DE"), "EUR", START, 3)
    assert found.source.endswith("prices.csv")


def test_slots_have_the_mean_or_repeat_the_price(tmp_path: Path) -> None:
    quarter = read(tmp_path, WIDE, ("DE",), slot_minutes=15)
    assert quarter.per_kwh.tolist() == [[0.1] * 4 + [0.12] * 4 + [0.08] * 4]
    double = read(tmp_path, WIDE, ("DE",), slot_minutes=120, start=datetime(2022, 1, 1, 1, tzinfo=UTC))
    assert double.per_kwh.tolist() == [[pytest.approx(0.1)]]
    assert double.start == datetime(2022, 1, 1, 1, tzinfo=UTC)


def test_a_gap_matters_only_where_the_run_is(tmp_path: Path) -> None:
    found = read(tmp_path, WIDE.replace("2022-01-01T01:00Z,120,30.5", "2022-01-01T01:00Z,120,"))
    assert found.window(datetime(2022, 1, 1, 2, tzinfo=UTC), 1).per_kwh.tolist() == [[0.04], [0.08]]
    assert [found.reach(datetime(2022, 1, 1, hour, tzinfo=UTC)) for hour in (0, 1, 2, 3, 4)] == [1, 0, 1, 0, 0]
    with pytest.raises(DataError, match=r"Zone FR has no price at 2022-01-01T01:00Z .*1 missing values.*never guessed"):
        found.window(START, 3)


def test_unit_and_currency(tmp_path: Path) -> None:
    assert read(tmp_path, WIDE, unit="JPY/kWh", currency="JPY").per_kwh[1, 0] == 100.0
    assert read(tmp_path, WIDE, unit=None, currency="JPY").currency == "JPY"
    with pytest.raises(DataError, match=r'looks like a price per MWh. Set unit = "EUR/MWh"'):
        read(tmp_path, WIDE, unit=None)
    for unit in ("EUR/GWh", "USD/MWh", "MWh", "EUR"):
        with pytest.raises(ScenarioError, match=r'write "EUR/kWh" or "EUR/MWh"'):
            read(tmp_path, WIDE, unit=unit)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has the columns none. Expected: datetime_utc and a column for each zone"),
        ("time,DE\n2022-01-01T00:00Z,1\n", "has the columns time, DE"),
        ("datetime_utc,DE,FR\n", "has a header but no prices"),
        (WIDE.replace("DE", "PL"), "has no prices for DE; it has FR, PL"),
        (WIDE.replace("120", "1,5"), "line 3: 4 cells, but the header has 3. Write decimals with a point"),
        (WIDE.replace("120", "cheap"), "line 3: the price of DE is 'cheap'; give a number. Leave the cell empty"),
        (WIDE.replace("120", "nan"), "line 3: the price of DE is 'nan'"),
        (WIDE.replace("120", "1e9"), "line 3: the price of DE is '1e9'"),
        (WIDE.replace("2022-01-01T01:00Z", "2022-01-01T01:00"), "has no time zone"),
        (WIDE.replace("2022-01-01T01:00Z", "2022-01-01T00:00Z"), "is given twice"),
        (WIDE + "2022-01-01T03:00Z,1\n", "line 5: 2 cells, but the header has 3"),
        (WIDE + "3022-01-01T03:00Z,1,2\n", "Is a year mistyped"),
    ],
)
def test_files_that_are_wrong(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(tmp_path, text)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"There is no price file .*prices.csv. Name a CSV file in \[price\]"):
        read_prices(tmp_path / "prices.csv", ["DE"], currency="EUR", unit=None, start=START, slot_minutes=60)


def test_prices_from_an_array() -> None:
    found = Prices(zones=("A",), start=START, per_kwh=np.array([[0.1, -0.2]]))
    with pytest.raises(ScenarioError, match=r"no price for zone 'B'\. prices given as an array has A; add the zone"):
        found.index("B")
    with pytest.raises(DataError, match="is outside of it"):
        found.window(START, 3)
    with pytest.raises(ScenarioError, match="not the start of a 60-minute slot"):
        found.window(datetime(2022, 1, 1, 0, 30, tzinfo=UTC), 1)
    with pytest.raises(DataError, match="one row for each zone"):
        Prices(zones=("A", "B"), start=START, per_kwh=np.array([[0.1]]))
    with pytest.raises(DataError, match="finite"):
        Prices(zones=("A",), start=START, per_kwh=np.array([[np.inf]]))
