"""Every figure of a report, recomputed from run.db with plain SQL that knows nothing of the package."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report_runs import eventful, plan, rich_plan, write

from slackwater.cli.options import _plain
from slackwater.intensity.prices import Prices
from slackwater.intensity.traces import Origin
from slackwater.ledger.run import Run
from slackwater.live.folder import LiveSettings, prepare
from slackwater.planning.fleet import Client, Level
from slackwater.planning.plan import Plan
from slackwater.planning.schedule import plan_from_matrix
from slackwater.report.blocks import percent_change
from slackwater.report.content import document
from slackwater.report.exports import CODECARBON_COLUMNS as COLUMNS
from slackwater.report.exports import emissions_csv, lines_csv, model_card
from slackwater.report.statement import make_statement

GRAM = 1e-3


@pytest.fixture(params=["plain", "rich", "eventful"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "eventful":
        return eventful(tmp_path / "run")
    return write(tmp_path / "run", plan() if request.param == "plain" else rich_plan())


def query(folder: Path, sql: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(folder / "run.db")
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def test_the_total_is_the_ledgers(folder: Path) -> None:
    statement = make_statement(folder)
    kg = [row[0] for row in query(folder, "SELECT kg FROM charges")]
    assert statement.account.total_kg == math.fsum(kg)
    assert statement.account.lines == len(kg)
    with Run.open(folder, read_only=True) as run:
        assert statement.account.total_kg == run.ledger.spent_kg()
    energy = query(folder, "SELECT sum(energy_kwh) FROM charges")[0][0]
    assert statement.account.energy_kwh == pytest.approx(energy, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("by_client", "client, zone"),
        ("by_zone", "zone"),
        ("by_day", "date(slot_start)"),
        ("by_source", "intensity_source, intensity_kind, factor, kind"),
        ("by_cause", "cause"),
        ("by_kind", "kind"),
        ("by_method", "method"),
    ],
)
def test_each_breakdown_is_the_ledgers(folder: Path, name: str, columns: str) -> None:
    wanted = {
        row[:-2]: row[-2:]
        for row in query(folder, f"SELECT {columns}, sum(kg), count(*) FROM charges GROUP BY {columns}")
    }
    found = getattr(make_statement(folder).account, name)
    assert {group.key for group in found.groups} == set(wanted)
    for group in found.groups:
        assert group.kg == pytest.approx(wanted[group.key][0], abs=GRAM / 1e6)
        assert group.lines == wanted[group.key][1]
    assert math.fsum(group.kg for group in found.groups) == pytest.approx(
        make_statement(folder).account.total_kg, abs=1e-9
    )


def test_planned_against_realised(folder: Path) -> None:
    both = make_statement(folder).planned
    by_client = dict(query(folder, "SELECT client, sum(kg) FROM charges GROUP BY client"))
    assert {one.name: pytest.approx(one.realised_kg) for one in both.by_client if one.realised_kg} == by_client
    by_day = dict(query(folder, "SELECT date(slot_start), sum(kg) FROM charges GROUP BY 1"))
    assert {one.name: pytest.approx(one.realised_kg) for one in both.by_day} == by_day
    stored = json.loads(query(folder, "SELECT plan FROM run")[0][0])
    assert both.planned_kg == pytest.approx(stored["emissions_kg"], abs=1e-12)
    assert math.fsum(one.planned_kg for one in both.by_client) == pytest.approx(stored["emissions_kg"])
    assert math.fsum(planned for planned, _ in both.kg_by_slot) == pytest.approx(stored["emissions_kg"])
    assert both.client_slots_planned == sum(map(sum, stored["matrix"]))


def test_a_run_as_planned_has_no_deviation(tmp_path: Path) -> None:
    both = make_statement(write(tmp_path / "run", rich_plan())).planned
    assert (both.client_slots_as_planned, both.deviations) == (4, ())
    assert both.realised_kg == pytest.approx(both.planned_kg)


def test_what_went_otherwise_is_told(tmp_path: Path) -> None:
    statement = make_statement(eventful(tmp_path / "run"))
    both, found = statement.planned, statement.account
    # alice: slot 0 twice (other kg), slot 3 at another price; bob: slot 2 as planned, slot 3 missed
    assert both.client_slots_as_planned == 1
    assert [(one.slot, one.client, one.what) for one in both.deviations] == [
        (0, "alice", "other kg"),
        (3, "alice", "other kg"),
        (3, "bob", "missed"),
    ]
    assert {one.kind: pytest.approx(one.kg) for one in found.differences} == {"settlement": -0.013, "correction": 0.021}
    assert (found.retried_lines, found.retried_kg) == (2, pytest.approx(0.11 - 0.013))
    assert (found.slots_without_round, found.kg_without_round) == (1, pytest.approx(0.37))
    assert [event.message for event in found.events] == ["the client went away"]
    assert statement.uncertainty.unsettled_kg == pytest.approx(0.37)
    assert statement.uncertainty.charged_kg_by_method.keys() == {"modelled"}


def test_slots_to_come_are_not_missed(tmp_path: Path) -> None:
    both = make_statement(write(tmp_path / "run", plan(), until=1, status="running")).planned
    assert (both.client_slots_as_planned, both.client_slots_missed) == (1, 0)
    assert both.planned_kg_until_now == pytest.approx(0.1)


def test_the_csv_has_every_line_with_all_digits(folder: Path) -> None:
    statement = make_statement(folder)
    rows = list(csv.DictReader(io.StringIO(lines_csv(statement))))
    assert [float(row["kg"]) for row in rows] == [row[0] for row in query(folder, "SELECT kg FROM charges ORDER BY id")]
    assert math.fsum(float(row["kg"]) for row in rows) == statement.account.total_kg


def test_lines_booked_later_are_not_in_the_csv(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", plan(), until=1, status="running")
    statement = make_statement(folder)
    with Run.open(folder) as run:
        first = next(run.ledger.charges())
        run.ledger.charge(replace(first, id=None, attempt=1))
    assert len(lines_csv(statement).splitlines()) == 1 + statement.account.lines


def test_codecarbon_rows_are_the_clients(folder: Path) -> None:
    statement = make_statement(folder)
    live = replace(statement, run=replace(statement.run, kind="live"))
    rows = list(csv.DictReader(io.StringIO(emissions_csv(live))))
    assert tuple(rows[0]) == COLUMNS
    wanted = query(folder, "SELECT client, sum(kg), sum(energy_kwh) FROM charges GROUP BY client")
    assert {row["project_name"]: pytest.approx(float(row["emissions"])) for row in rows} == {
        client or "server": kg for client, kg, _ in wanted
    }
    for row in rows:
        assert float(row["emissions_rate"]) == pytest.approx(float(row["emissions"]) / float(row["duration"]))
    total = math.fsum(float(row["energy_consumed"]) for row in rows)
    assert total == pytest.approx(math.fsum(energy for *_, energy in wanted))


def test_the_model_card_counts_grams(folder: Path) -> None:
    card = model_card(make_statement(folder))
    total = query(folder, "SELECT sum(kg) FROM charges")[0][0]
    grams = float(next(line for line in card.splitlines() if "emissions:" in line and "co2" not in line).split(":")[1])
    assert grams == pytest.approx(1000 * total, abs=1e-3)
    assert card.startswith("---\nco2_eq_emissions:\n  emissions: ")
    assert re.search(r"\n---\n\nAccuracy 80\.00% on the test set, after \d rounds\.\n$", card)


def test_json_holds_it_all(folder: Path) -> None:
    data = json.loads(json.dumps(_plain(make_statement(folder).to_dict()), allow_nan=False))
    assert data["account"]["total_kg"] == pytest.approx(query(folder, "SELECT sum(kg) FROM charges")[0][0])
    assert {row["zone"] for row in data["account"]["by_zone"]} == {"A", "B"}
    assert data["series"][0]["source"] == "meter <of> A"


def test_nothing_is_written_to_the_run(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", plan())
    before = (folder / "run.db").read_bytes()
    make_statement(folder)
    assert (folder / "run.db").read_bytes() == before


def sleeping_plan() -> Plan:
    """The two clients of `plan`: alice at two levels, bob off between blocks, and a price."""
    base = plan().problem
    clients = [
        Client(name="alice", zone="A", idle_w=100, levels=[Level(1000, 1.0), Level(600, 0.7)]),
        Client(name="bob", zone="B", power_w=2000, idle_w=100, startup_kwh=0.25),
    ]
    price = Prices(zones=("A", "B"), start=base.first_slot, per_kwh=[[0.1, 0.2, 0.3, -0.4]] * 2, currency="CHF")
    asked = replace(base, clients=clients, price=price, min_parallel=1, budget_money=5.0)
    return plan_from_matrix(asked, [[1, 0, 0, 1], [1, 0, 0, 1]], end=2, levels=[[1, 0, 0, 0], [0, 0, 0, 0]])


def test_starts_levels_and_prices_in_a_report(tmp_path: Path) -> None:
    made = sleeping_plan()
    statement = make_statement(write(tmp_path / "run", made))
    by_cause = {group.key[0]: group.kg for group in statement.account.by_cause.groups}
    assert by_cause["startup"] == pytest.approx(0.25 * (0.5 + 0.2))
    assert by_cause["idle"] == pytest.approx(0.1 * (0.1 + 0.2 + 0.3 + 0.4) + 0.1 * (0.5 + 0.2))
    assert statement.planned.planned_kg == pytest.approx(statement.account.total_kg)
    assert statement.planned.client_slots_as_planned == 4, "a level is no deviation"
    assert statement.figures.money == pytest.approx(made.money)
    data = json.loads(json.dumps(statement.to_dict(), default=_plain))
    assert data["figures"]["currency"] == "CHF"
    text = "".join(str(section) for section in document(statement).sections)
    for said in (
        "Electricity",
        f"{made.money:,.2f}",
        "CHF",
        "at least 1 clients in a used slot before the window",
        "at most 5.00",
        "1 client-slots, with fewer local steps",
        "every start is charged",
        "kWh a start",
        "kWh a round (by level)",
        "0.9 / 0.5",
    ):
        assert said in text, said


def test_the_same_work_without_slack_starts_as_often_as_is_cheap(tmp_path: Path) -> None:
    statement = make_statement(write(tmp_path / "run", sleeping_plan()))
    alice = (0.9 + 0.5) / 2 * (0.1 + 0.2) + 0.1 * (0.1 + 0.2)
    bob = 1.9 * (0.5 + 0.4) + 0.1 * (0.5 + 0.4) + 0.25 * 0.5
    assert statement.same_work.kg == pytest.approx(alice + bob)


def test_a_rehearsal_is_compared_at_the_intensity_of_its_period_and_not_at_forecasts(tmp_path: Path) -> None:
    actual = plan()
    seen = actual.problem.traces
    guess = Origin(source="seer", start="2022-01-01T22:00Z", kind="forecast", hours=4)
    traces = replace(
        seen, intensity=3 * seen.intensity, provenance=tuple(replace(one, origins=(guess,)) for one in seen.provenance)
    )
    problem = actual.problem.with_settings(traces=traces, budget_kg=9.0)
    first = plan_from_matrix(problem, actual.matrix, end=2)
    folder = prepare(tmp_path / "run", first, LiveSettings(source="playback"), actuals=seen)
    write(folder, first, kind="rehearsed")
    statement = make_statement(folder)
    at_once = 1.0 * (0.1 + 0.2) + 2.0 * (0.5 + 0.4)
    assert statement.same_work.kg == pytest.approx(at_once)
    assert not statement.same_work.forecast
    assert "at the intensity recorded for the period" in statement.same_work.reason
    assert statement.same_budget.kg == pytest.approx(at_once + 1.0 * (0.3 + 0.4) + 2.0 * (0.3 + 0.2))

    (folder / "actuals.json").write_text("{}", encoding="utf-8")
    blind = make_statement(folder)
    assert blind.same_work.kg == pytest.approx(3 * at_once)
    assert blind.same_work.forecast
    text = str(document(blind))
    assert "by the first plan's forecasts, which cannot be compared" in text
    change = percent_change(blind.account.total_kg, blind.same_work.kg)
    assert change
    assert change not in text  # a saving against forecasts can be an error of the forecasts

    simulated = make_statement(write(tmp_path / "simulated", first))  # charged at the same forecasts
    assert not simulated.same_work.forecast
    assert "cannot be compared" not in str(document(simulated))


def test_a_report_without_prices_says_nothing_of_them(tmp_path: Path) -> None:
    statement = make_statement(write(tmp_path / "run", rich_plan()))
    assert "money" not in statement.to_dict()["figures"]
    text = "".join(str(section) for section in document(statement).sections)
    assert "Electricity" not in text
    assert "every start is charged" not in text
    assert "kWh a start" not in text
