from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from slackwater.charts import style
from slackwater.charts.result_charts import backtest_chart, score_chart, summary, to_dict
from slackwater.charts.style import save
from slackwater.errors import ScenarioError
from slackwater.ledger.run import RoundRecord
from slackwater.ledger.score import MetricLabel
from slackwater.training.loop import Result

START = datetime(2022, 1, 1, tzinfo=UTC)


def round_of(slot: int, accuracy: float | None, spent_kg: float) -> RoundRecord:
    return RoundRecord(
        slot=slot,
        number=slot,
        slot_start=START + timedelta(hours=slot),
        in_window=slot == 3,
        participants=("a", "b")[: 1 + slot % 2],
        weights={"a": 1.0},
        losses={"a": 0.5},
        loss=0.5,
        update_norm=1.0,
        spent_kg=spent_kg,
        seconds=0.1,
        accuracy=accuracy,
    )


def result(accuracy: float = 0.9, **changes: Any) -> Result:
    history = tuple(round_of(slot, accuracy - 0.1 * (3 - slot) if slot % 2 else None, 0.3 * slot) for slot in range(4))
    fields: dict[str, Any] = {
        "score": accuracy, "test_loss": 0.4, "loss": 0.3, "client_scores": {"a": 0.95, "b": 0.8123},
        "worst_client_score": 0.8123, "last_score": accuracy, "kind": "simulated", "emissions_kg": 0.9,
        "budget_kg": 1.2, "history": history, "never": (), "notes": (), "model": {}, "seconds": 12.34, "folder": None,
    }  # fmt: skip
    return Result(**fields | changes)


def shown(results: dict[str, Result], width: int = 100) -> str:
    console = Console(width=width, file=open("/dev/null", "w"), record=True)  # noqa: SIM115
    console.print(summary(results))
    console.file.close()
    return console.export_text()


def test_runs_side_by_side_the_best_first() -> None:
    lines = shown({"no slack": result(0.8), "memory": result(0.9)}).splitlines()
    assert lines[1].split() == ["memory", "90.00%", "b", "81.23%", "0.3000", "0.9000", "75.0%", "4", "6", "12.3"]
    assert lines[2].startswith("no slack")


@pytest.mark.parametrize("width", [60, 80, 100])
def test_it_fits_a_terminal(width: int) -> None:
    text = shown({"memory": result(client_scores={"frankfurt": 0.8123, "b": 1.0})}, width)
    assert max(map(len, text.splitlines())) <= width
    assert width < 80 or "frankfurt" in text


def test_a_note_that_is_true_of_all_is_said_once() -> None:
    both, own = "2 of 7 clients hold few samples.", "b never trains."
    text = shown({"memory": result(notes=(own, both)), "no slack": result(notes=(both,))})
    assert text.count(both) == 1
    assert f"memory: {own}" in text
    assert f": {both}" not in text


def test_synthetic_folder_and_no_client_tests() -> None:
    text = shown({"x": result(folder=Path("run/x"), worst_client_score=None, client_scores={}, synthetic=True)})
    assert style.SYNTHETIC in text
    assert "x: run/x" in text
    assert " - " in text
    assert style.SYNTHETIC not in shown({"x": result()})


def test_a_name_is_shown_as_it_is() -> None:
    assert "[red]x" in shown({"[red]x": result()})


def test_the_picture(tmp_path: Path) -> None:
    figure = score_chart({"memory": result(0.9, synthetic=True), "no $lack$": result(0.8)})
    axes = figure.axes[0]
    first, second, budget = axes.get_lines()
    assert list(first.get_xdata()) == pytest.approx([0.3, 0.9])
    assert list(first.get_ydata()) == pytest.approx([70.0, 90.0])
    assert first.get_color() != second.get_color()
    assert first.get_marker() != second.get_marker()
    assert list(budget.get_xdata()) == [1.2, 1.2]
    assert (
        figure.get_suptitle().replace("\n", " ") == r"memory is best: 90.0% with 0.9 of 1.2 kg; no \$lack\$ has 80.0%"
    )
    assert axes.get_title(loc="left") == f"Simulated runs, {style.SYNTHETIC}"
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == ["memory: 90.0%", r"no \$lack\$: 80.0%", "budget"]
    assert save(figure, tmp_path / "a.png").stat().st_size > 1000
    alone = score_chart({"memory": result()})
    assert alone.get_suptitle() == "Accuracy 90.0% with 0.9 of 1.2 kg"
    assert alone.axes[0].get_title(loc="left") == "Simulated runs"
    assert score_chart({"memory": result(kind="live")}).axes[0].get_title(loc="left") == ""
    equal = score_chart({"memory": result(), "no slack": result()})
    assert equal.get_suptitle() == "memory and no slack are equal: 90.0% with 0.9 of 1.2 kg"


def test_a_run_without_evaluations_is_no_error(tmp_path: Path) -> None:
    save(score_chart({"x": result(history=(round_of(0, None, 0.1),))}), tmp_path / "a.svg")


def test_as_data() -> None:
    data = to_dict(result(folder=Path("run")))
    assert data["folder"] == "run"
    assert data["history"][3] == {
        "slot": 3, "slot_start": "2022-01-01T03:00Z", "in_window": True, "participants": ["a", "b"], "loss": 0.5,
        "accuracy": 0.9, "score": 0.9, "spent_kg": pytest.approx(0.9),
    }  # fmt: skip


RMSE = MetricLabel(name="RMSE", higher_is_better=False, unit="days")


def test_notes_and_legend_of_a_back_test_have_lines_of_their_own() -> None:
    run: Any = SimpleNamespace(
        forecast="persistence", replan_slots=6, budget_kg=2.0, planned_kg=1.7, realised_kg=1.9, share=0.95, unused=0.05,
        overspend_kg=0.0,
    )  # fmt: skip
    figure = backtest_chart([run], synthetic=True)
    figure.draw_without_rendering()
    (legend,) = figure.legends
    title = figure.get_suptitle().split("\n")
    assert title[0] == "persistence, 6h: 95.0 % of perfect foresight; none of 1 run above the budget"
    assert title[1].startswith("Dot: run; bar: mean")
    others = [axes.xaxis.label for axes in figure.axes] + [text for text in figure.texts if text.get_text()]
    assert not any(legend.get_window_extent().overlaps(one.get_window_extent()) for one in others)


def test_another_metric_is_named_everywhere_and_the_lowest_comes_first() -> None:
    results = {
        "far": result(3.2, metric=RMSE, client_scores={"a": 2.0, "b": 4.5}, worst_client_score=4.5),
        "near": result(1.5, metric=RMSE, client_scores={"a": 1.0, "b": 2.5}, worst_client_score=2.5),
    }
    lines = shown(results).splitlines()
    assert lines[0].split()[1:3] == ["RMSE,", "days"]
    assert lines[1].split()[:4] == ["near", "1.5", "b", "2.5"]
    assert "RMSE: on the global test set (lower is better)" in " ".join(lines)
    assert "ccuracy" not in "".join(lines)
    figure = score_chart(results)
    assert figure.axes[0].get_ylabel().split() == ["test", "RMSE,", "days", "(lower", "is", "better)"]
    assert [line.get_ydata()[-1] for line in figure.axes[0].lines[:2]] == [3.2, 1.5]
    data = to_dict(results["far"])
    assert data["metric"] == {"name": "RMSE", "higher_is_better": False, "unit": "days"}
    assert (data["score"], data["accuracy"], data["client_accuracy"]) == (3.2, None, {})
    with pytest.raises(ScenarioError, match=r"measures RMSE, not accuracy: read result\.score"):
        _ = results["far"].accuracy


def test_a_long_name_of_a_metric_stays_beside_its_axis() -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    label = MetricLabel(name="mean error of the length of stay in care", higher_is_better=False, unit="working days")
    figure = score_chart({"echo": result(1.25, metric=label)})
    FigureCanvasAgg(figure).draw()
    text, axes = figure.axes[0].yaxis.label.get_window_extent(), figure.axes[0].get_window_extent()
    assert text.y1 <= axes.y1 + axes.height * 0.1
    assert text.y0 >= 0
