"""A run that was re-planned: planned is what the plan in force expected, in the report and in every sum it is made of."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_runs import IN_FORCE, first_plan, plan, replanned, write

from slackwater.ledger.run import Run
from slackwater.planning.storage import plan_from_dict
from slackwater.report.blocks import Document, Kilograms, Paragraph, Table
from slackwater.report.content import document
from slackwater.report.statement import make_statement
from slackwater.report.tables import clients

SPENT, PLANNED = 3.7, 2.46


def words(shown: Document) -> str:
    return " ".join(b.text for section in shown.sections for b in section.blocks if isinstance(b, Paragraph))


def test_a_replanned_run_in_which_all_went_well_has_missed_nothing(tmp_path: Path) -> None:
    both = make_statement(replanned(tmp_path / "run")).planned
    assert (both.client_slots_planned, both.client_slots_missed, both.client_slots_extra) == (6, 0, 0)
    assert both.client_slots_other_kg == 6  # every forecast was a little off
    assert (both.reached_slots, both.planned_slots) == (5, 5)
    assert both.planned_kg == both.planned_kg_until_now == pytest.approx(PLANNED)
    assert both.first_plan_kg == pytest.approx(1.5)
    assert (both.expected_kg, both.realised_kg) == (pytest.approx(SPENT), pytest.approx(SPENT))
    assert {one.name: (one.planned_kg, one.planned_slots, one.realised_slots) for one in both.by_client} == {
        "alice": (pytest.approx(0.71), 3, 3),
        "bob": (pytest.approx(1.75), 3, 3),
    }
    assert sum(one.planned_kg or 0.0 for one in both.by_day) == pytest.approx(PLANNED)


def test_while_it_goes_on_expected_is_spent_and_to_come(tmp_path: Path) -> None:
    statement = make_statement(replanned(tmp_path / "run", until=1))
    both, figures = statement.planned, statement.figures
    assert (both.reached_slots, both.planned_slots) == (2, 5)
    assert figures.spent_kg == pytest.approx(0.9)
    assert figures.to_come_kg == pytest.approx(1.6)
    assert both.expected_kg == figures.expected_kg == pytest.approx(2.5)
    assert both.planned_kg == figures.planned_kg == pytest.approx(PLANNED)
    assert (both.client_slots_planned, both.client_slots_missed) == (6, 0)
    table = clients(statement, Kilograms(4))
    assert table.rows[-1][0] == "rest of the plan"
    assert table.rows[-1][3] == "1.6000"
    assert table.total is not None
    assert sum(float(row[3]) for row in table.rows) == pytest.approx(float(table.total[3]))


def test_the_report_says_which_plan_it_means(tmp_path: Path) -> None:
    shown = document(make_statement(replanned(tmp_path / "run")))
    assert "re-planned once" in words(shown)
    assert "The first plan expected 1.5000 kg" in words(shown)
    assert "last slot reached (5 of 5)" in words(shown)
    tables = [block for section in shown.sections for block in section.blocks if isinstance(block, Table)]
    facts = {row[0]: row[1] for table in tables for row in table.rows}
    assert facts["first plan, for reference"].startswith("1.5000 kg")
    assert facts["plans in force"].startswith("2.4600 kg")
    assert "first plan" not in words(document(make_statement(write(tmp_path / "plain", plan()))))


def test_a_file_that_does_not_say_what_was_expected_compares_only_who_trained(tmp_path: Path) -> None:
    statement = make_statement(replanned(tmp_path / "run", note=False))
    both = statement.planned
    assert not both.noted
    assert (both.client_slots_planned, both.client_slots_missed, both.client_slots_extra) == (6, 0, 0)
    assert both.planned_kg == pytest.approx(2.45)  # by the last plan itself
    assert {one.planned_kg for one in both.by_client} == {None}
    assert "Only participation is compared" in words(document(statement))
    assert "not recorded" in str(clients(statement, Kilograms(4)).rows)


def test_the_plan_in_force_of_a_slot(tmp_path: Path) -> None:
    with Run.open(replanned(tmp_path / "run", until=1), read_only=True) as run:
        found = run.queries.in_force(plan_from_dict(run.plan, "run"), done=False, spent_kg=run.ledger.spent_kg())
    assert found.wanted.astype(int).tolist() == [[1, 0, 0, 1, 1], [0, 1, 0, 1, 1]]
    assert found.kg_by_slot.tolist() == pytest.approx([sum(expected.values()) for expected in IN_FORCE.values()])
    assert found.training_kg(1, 1) == 0.75
    assert found.first.matrix.astype(int).tolist() == first_plan().matrix.astype(int).tolist()


def test_a_run_by_one_plan_has_it_in_force_throughout(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", plan(), until=1, status="running")
    figures = make_statement(folder).figures
    assert figures.planned_kg == figures.first_plan_kg == plan().emissions_kg
    assert figures.expected_kg == pytest.approx(plan().emissions_kg)
    assert figures.planned_until_now_kg == figures.spent_kg == pytest.approx(0.1)


def test_an_app_is_named_by_its_folder_not_by_the_path_on_this_machine(tmp_path: Path) -> None:
    shown = document(make_statement(replanned(tmp_path / "run")))
    assert shown.subtitle.startswith("hospitals, 2 clients in ")
    assert "/home/me" not in words(shown) + shown.subtitle
