"""What a notebook shows: HTML without a user's markup in it, figures, and frames of pandas or polars."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from small_tasks import SCHEDULE, classes, plan_of

import slackwater as sw
from slackwater.charts import notebook
from slackwater.errors import SlackwaterError
from slackwater.report.statement import make_statement
from slackwater.training.progress_bar import ProgressBar
from slackwater.units import local_text

START = datetime(2022, 1, 1, tzinfo=UTC)
FAST: dict[str, Any] = {"local_steps": 2, "batch_size": 16, "threads": 1, "eval_every": 1}


@pytest.fixture
def plan() -> sw.Plan:
    zones = ("FR", "DE")
    traces = sw.load_traces(zones=zones, start=START, hours=20)
    clients = [sw.Client(name="<b>lyon</b>", zone="FR", power_w=300), sw.Client(name="bonn", zone="DE", power_w=300)]
    return sw.plan(sw.Problem(clients=clients, traces=traces, rounds=4, slack=16, budget_kg=0.8))


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pandas that keeps its columns, so that the tests need none."""
    fake = ModuleType("pandas")
    fake.DataFrame = dict  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pandas", fake)
    monkeypatch.setattr(notebook, "find_spec", lambda name: name == "pandas" or None)


def test_a_plan_shows_its_kg_its_end_and_its_clients(plan: sw.Plan) -> None:
    shown = plan._repr_html_()
    assert "<p>Saves: " in shown
    assert "of 0.8 kg CO2e; the same work at once emits" in shown
    assert f"<p>Ends: {local_text(plan.ends_at, 'UTC')}" in shown
    assert f"{int(plan.slots_per_client.sum())} client-rounds: bonn" in shown or "client-rounds: &lt;b&gt;lyon" in shown
    assert "synthetic intensity" in shown
    assert "&lt;b&gt;lyon&lt;/b&gt;" in shown
    assert "<b>lyon" not in shown
    assert "data:image/png;base64," in shown


def test_kg_in_the_table_of_a_plan_are_those_of_its_picture_idle_draw_included() -> None:
    traces = sw.load_traces(zones=["FR"], start="2022-01-01T00:00Z", hours=6)
    site = sw.Client(name="lyon", zone="FR", power_w=300, idle_w=60)
    plan = sw.plan(sw.Problem(clients=[site], traces=traces, rounds=3, slack=3, budget_kg=0.2))
    assert plan.emissions_kg > plan.metrics.training_kg[0]
    assert f">{plan.emissions_kg:.3f}<" in plan._repr_html_()


def test_advice_shows_the_recommended_pair_and_a_row_for_each_pair(plan: sw.Plan, frames: None) -> None:
    problem = plan.problem.with_settings(time_zone="Europe/Paris")
    advice = sw.advise(problem, budgets=[0.001, 0.5, 1.0], slacks=[0, 16])
    shown = advice._repr_html_()
    assert shown.startswith("<p>Recommended: ")
    assert shown.count("<tr>") == 1 + len(advice.rows)
    assert f">{local_text(plan.problem.slot_start(plan.problem.horizon), 'Europe/Paris')}</td>" in shown
    assert "advised" in shown
    assert "2 pairs of the grid have no plan." in shown
    assert "synthetic intensity: typical profiles" in shown
    assert repr(advice) == f"Advice of 4 pairs: {advice.why}"
    rows = advice.to_frame()
    assert rows["emissions_kg"] == [row.emissions_kg for row in advice.rows]
    assert [i for i, yes in enumerate(rows["recommended"]) if yes] == [advice.rows.index(advice.recommended)]
    assert rows["below_full_low"][0] < rows["below_full_missing"][0] < rows["below_full_high"][0]
    assert advice.plot()._repr_png_().startswith(b"\x89PNG")


def test_the_figures_can_be_displayed(plan: sw.Plan) -> None:
    result = sw.train(plan_of(SCHEDULE, window=1), classes(), **FAST)
    for figure in (plan.plot(), plan.problem.traces.plot(), result.plot()):
        assert figure._repr_png_().startswith(b"\x89PNG")
    assert result.plot().axes[0].get_ylabel() == "test accuracy, %"


def test_frames_hold_the_numbers_of_the_objects(plan: sw.Plan, frames: None) -> None:
    rows = plan.to_frame()
    assert len(rows["client"]) == int(plan.matrix.sum())
    assert sum(rows["kg"]) == pytest.approx(float(plan.emissions.training_kg.sum()))
    assert sum(rows["in_window"]) == len(plan.window) * 2
    traces = plan.problem.traces.to_frame()
    assert list(traces) == ["start", "FR", "DE"]
    assert traces["DE"] == plan.problem.traces.intensity[1].tolist()
    result = sw.train(plan_of(SCHEDULE, window=1), classes(), **FAST)
    history = result.to_frame()
    assert history["accuracy"][-1] == result.accuracy
    assert history["spent_kg"][-1] == pytest.approx(result.emissions_kg)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_of_the_libraries_themselves(plan: sw.Plan, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = pytest.importorskip(library)
    monkeypatch.setattr(notebook, "find_spec", lambda name: name == library or None)
    frame = plan.to_frame()
    assert isinstance(frame, module.DataFrame)
    assert len(frame) == int(plan.matrix.sum())
    assert "kg" in frame.columns


def test_without_a_library_the_way_out_is_named(plan: sw.Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "find_spec", lambda name: None)
    with pytest.raises(SlackwaterError, match=r"needs pandas or polars\. Install one: pip install pandas"):
        plan.to_frame()
    assert "data:image" not in plan._repr_html_()  # without matplotlib there is a table, and no error


def test_traces_result_and_statement_as_html(plan: sw.Plan, tmp_path: Path, frames: None) -> None:
    traces = plan.problem.traces._repr_html_()
    assert "Carbon intensity (lifecycle) of 2 zones" in traces
    assert f"{1000 * plan.problem.traces.intensity[0].mean():.0f}" in traces
    result = sw.train(plan_of(SCHEDULE, window=1), classes(), out=tmp_path / "run", **FAST)
    shown = result._repr_html_()
    assert f"Accuracy {result.accuracy:.2%} after" in shown
    assert "Simulated run" in shown
    statement = make_statement(tmp_path / "run")
    assert "synthetic" not in shown
    html = statement._repr_html_()
    assert "client-1" in html
    assert f"{statement.account.total_kg:.6g} kg CO2e" in html
    assert sum(statement.to_frame()["kg"]) == pytest.approx(result.emissions_kg)


def test_results_on_synthetic_intensity_say_so(plan: sw.Plan, tmp_path: Path) -> None:
    result = sw.train(plan, classes(clients=2), out=tmp_path / "run", **FAST)
    assert "synthetic intensity: typical profiles, not measured." in result._repr_html_()
    assert result.plot().axes[0].get_title(loc="left") == "Simulated runs, synthetic intensity"
    assert "synthetic intensity: typical profiles, not measured." in make_statement(tmp_path / "run")._repr_html_()


def test_another_metric_has_its_unit_and_direction(plan: sw.Plan, tmp_path: Path) -> None:
    error = sw.Metric(name="error", compute=lambda o, y: 2.5, higher_is_better=False, unit="days")
    result = sw.train(plan, replace(classes(clients=2), metric=error), out=tmp_path / "run", **FAST)
    assert "Error 2.5 days (lower is better) after" in result._repr_html_()
    assert ">error, days</th>" in result._repr_html_()
    assert repr(result).startswith("Result(error 2.5 days after")
    assert "Error 2.5 days on the test set (lower is better)." in make_statement(tmp_path / "run")._repr_html_()


def test_many_clients_are_cut() -> None:
    shown = plan_of(np.ones((40, 2)))._repr_html_()
    assert "... and 10 more clients." in shown


def test_a_progress_bar_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    bar = ProgressBar("train", 2, stream=out)
    bar.step("long words here")
    bar.step("end")
    bar.close()
    lines = out.getvalue().split("\r")
    assert lines[1] == "train [##########..........] 1/2 long words here"
    assert lines[2] == "train [####################] 2/2 end            \n"


def test_train_shows_a_bar_if_asked(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slackwater.training.progress_bar.find_spec", lambda name: None)
    sw.train(plan_of(SCHEDULE, window=1), classes(), progress=True, **FAST)
    shown = capsys.readouterr().err
    assert "train [####################]" in shown
    assert "accuracy" in shown
    sw.train(plan_of(SCHEDULE, window=1), classes(), progress=False, **FAST)
    assert "train [" not in capsys.readouterr().err
