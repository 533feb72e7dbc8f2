"""The figures and tables themselves, in small, and the verdicts."""

import csv
import math

import pytest
from click.testing import CliRunner

from slackwater.cli.main import cli
from slackwater.lab.paper import accuracy, claims, figures
from slackwater.lab.paper.output import as_csv
from slackwater.lab.paper.setting import Source


def test_everything_in_small_on_the_embedded_data(tmp_path):
    done = CliRunner().invoke(
        cli, ["paper", "all", "--quick", "--jobs", "1", "--out", str(tmp_path)], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    names = {path.name for path in tmp_path.iterdir()}
    for item in ("fig1", "fig2", "fig3", "fig4", "fig5", "fig6", "fig7"):
        assert {f"{item}.csv", f"{item}.svg", f"{item}.png"} <= names
    assert {"setting.csv", "baseline.csv", "table1a.csv", "table1b.csv", "claims.csv"} <= names
    assert "embedded synthetic year" in done.output
    verdicts = [row["verdict"] for row in csv.DictReader((tmp_path / "claims.csv").read_text().splitlines())]
    assert len(verdicts) == 9
    assert claims.OPEN not in verdicts[:6]
    again = CliRunner().invoke(cli, ["paper", "fig5", "--quick", "--jobs", "1", "--out", str(tmp_path)])
    assert "to train" not in again.output  # all cells are there


def test_wrong_seeds_are_explained():
    done = CliRunner().invoke(cli, ["paper", "fig5", "--seeds", "one"])
    assert done.exit_code == 2
    assert "whole numbers" in done.output


def test_the_papers_schedules(shared_data):
    found = figures.schedules(Source(data=str(shared_data / "ci_paper7")))
    assert sum(row["alpha_1"] for row in found.rows) == 192
    assert sum(row["alpha_0.001"] for row in found.rows) == 167
    assert any("Ireland, Finland, Germany" in note for note in found.notes)


def test_savings_of_real_zones(shared_data):
    found = figures.savings_by_slack(Source(data=str(shared_data / "ci")))
    assert len(found.rows) == 26
    assert any("CA, US" in note for note in found.notes)
    last = [float(row["slack_236"]) for row in found.rows]
    assert all(math.isnan(x) or 0 <= x <= 1 for x in last)


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [({3: 4.0, 4: 3.0}, "holds"), ({3: 1.0, 4: 2.0}, "holds in part"), ({3: -1.0, 4: -2.0}, "holds in part")],
)
def test_a_verdict_follows_from_the_cells(tmp_path, gains, verdict):
    rows = [{"T": T, "gain": gain} for T, gain in gains.items()]
    (tmp_path / "fig7.csv").write_text(as_csv(rows))
    found = {row["claim"]: row["verdict"] for row in claims.claims(tmp_path).rows}
    slack_claim = next(claim for claim in found if claim.startswith("Slack beats"))
    assert found[slack_claim] == verdict
    assert found[next(claim for claim in found if claim.startswith("At 3 kg"))] == claims.OPEN


def test_fairness_verdicts(tmp_path):
    means = {3: (95, 90), 2: (91, 90), 1: (80, 82)}
    rows = [
        {"budget_kg": kg, "alpha": alpha, "accuracy_mean": value}
        for kg, pair in means.items()
        for alpha, value in zip((0.1, 1.0), pair, strict=True)
    ]
    (tmp_path / "fig5.csv").write_text(as_csv(rows))
    assert [row["verdict"] for row in claims.claims(tmp_path).rows[:3]] == ["holds", "holds in part", "holds"]


def test_labels_of_budgets_that_lie_close_together_do_not_cover_each_other() -> None:
    places = [(93.6, 97.2), (95.1, 98.3), (97.1, 98.1), (97.2, 98.5), (98.2, 98.9), (98.55, 99.0), (98.69, 99.0)]
    figure = accuracy._scatter([{"T": T, "baseline": x, "best": y} for T, (x, y) in enumerate(places)])
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert len(boxes) == len(places)
    assert not any(one.overlaps(other) for number, one in enumerate(boxes) for other in boxes[:number])
