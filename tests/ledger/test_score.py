"""A metric's label: what is shown with a score, and how old and damaged files are read."""

from __future__ import annotations

import math

import pytest

from slackwater.errors import ScenarioError
from slackwater.ledger.run import Run
from slackwater.ledger.score import ACCURACY, LABELS, MetricLabel, label_of, measured_by, score_in


def test_scores_are_shown_with_their_unit() -> None:
    assert ACCURACY.text(0.95432) == "95.43%"
    assert ACCURACY.text(0.95432, 1) == "95.4%"
    assert LABELS["auroc"].text(0.95432) == "0.9543"
    assert MetricLabel(name="error", unit="days").text(12.3456) == "12.35 days"
    assert ACCURACY.difference(-0.0123) == "-1.23 points"
    assert MetricLabel(name="error", unit="days").difference(0.5) == "+0.5 days"
    assert ACCURACY.text(math.nan) == ACCURACY.text(None) == "-"


def test_the_worst_and_the_best_follow_the_direction() -> None:
    assert ACCURACY.worst([0.9, math.nan, 0.7]) == 0.7
    assert LABELS["rmse"].worst([0.9, math.nan, 0.7]) == 0.9
    assert ACCURACY.worst([math.nan]) is None
    assert sorted([0.5, math.nan, 0.7], key=LABELS["rmse"].rank)[:2] == [0.5, 0.7]
    assert sorted([0.5, math.nan, 0.7], key=ACCURACY.rank)[:2] == [0.7, 0.5]


@pytest.mark.parametrize(
    "data", [None, "x", {}, {"name": 3, "higher_is_better": True}, {"name": "\x1b[2J", "higher_is_better": 1}]
)
def test_an_old_or_damaged_label_is_accuracy(data: object) -> None:
    assert label_of(data) == ACCURACY


def test_a_label_survives_the_file() -> None:
    label = MetricLabel(name="MAE", higher_is_better=False, unit="days")
    assert label_of(label.to_dict()) == label


def test_the_metric_of_an_evaluation_is_found_by_its_name() -> None:
    assert measured_by({"loss": 1.0, "accuracy": 0.5, "f1": 0.2}) == ACCURACY
    assert measured_by({"loss": 1.0, "auroc": 0.5, "samples": 7}) == LABELS["auroc"]
    assert measured_by({"loss": 1.0}) == ACCURACY
    assert measured_by({"Sensitivity": 0.9}).name == "Sensitivity"
    assert score_in({"auroc": 0.5}, LABELS["auroc"]) == 0.5
    assert score_in({"loss": 0.5}, ACCURACY) is None


def test_names_that_could_move_the_cursor_are_refused() -> None:
    for name in ("", "a\nb", "x" * 41):
        with pytest.raises(ScenarioError, match="name of a metric"):
            MetricLabel(name=name)


def test_a_run_knows_its_metric() -> None:
    made = {"plan": {}, "budget_kg": 1.0, "settings": {}}
    with Run.create(None, **made, task={"metric": LABELS["f1"].to_dict()}) as run:
        assert run.metric == LABELS["f1"]
    with Run.create(None, **made, task={}) as run:
        assert run.metric == ACCURACY
        run.journal.put(metric=LABELS["mae"].to_dict())
        assert run.metric == LABELS["mae"]
