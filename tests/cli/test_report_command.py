"""slackwater report, as a user meets it."""

from __future__ import annotations

import json
import sqlite3
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

sys.path.append(str(Path(__file__).parents[1] / "accounting"))
from report_runs import HOSTILE, plan, rich_plan, write

from slackwater.cli.main import cli


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write(tmp_path / "run", rich_plan())


def report(*args: object) -> Result:
    return CliRunner().invoke(cli, ["report", *map(str, args)])


def test_without_options_it_is_shown_and_nothing_written(folder: Path) -> None:
    shown = report("run")
    assert shown.exit_code == 0, shown.output
    for text in ("Emissions report", "1.8700", "alice", "bob", "server", "By zone", "By day", "By source"):
        assert text in shown.stdout
    assert {path.name for path in folder.parent.iterdir()} == {"run"}


def test_everything_is_written(folder: Path) -> None:
    files = ("r.html", "out/r.pdf", "lines.csv", "emissions.csv", "card.md")
    options = ("--html", "--pdf", "--csv", "--codecarbon", "--model-card")
    shown = report("run", *(word for pair in zip(options, files, strict=True) for word in pair))
    assert shown.exit_code == 0, shown.output
    assert shown.stdout == ""
    assert shown.stderr.splitlines() == [f"wrote {name}" for name in files]
    assert all(Path(name).stat().st_size > 100 for name in files)
    assert not list(Path().rglob("*.tmp"))


def test_json_equals_the_ledger(folder: Path) -> None:
    shown = report("run/run.db", "--json", "--embodied-total-kg", 1, "--functional-unit", "per round", "--pue", 1.5)
    data = json.loads(shown.stdout)
    kg = sqlite3.connect(folder / "run.db").execute("SELECT sum(kg) FROM charges").fetchone()[0]
    assert data["account"]["total_kg"] == pytest.approx(kg, abs=1e-9)
    # a PUE of 1.5 for alice alone (0.55 kg), 1 kg embodied, three rounds
    assert data["sci"]["score_g"] == pytest.approx(1000 * (kg + 0.275 + 1) / 3)
    assert data["model_card"].startswith("---\nco2_eq_emissions")


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("nowhere",), 1, "There is no run in nowhere"),
        (("run", "--functional-unit", "per patient"), 2, "--units"),
        (("run", "--functional-unit", ""), 2, "empty"),
        (("run", "--pue", "0.5"), 2, "pue is 0.5"),
        (("run", "--html", "x", "--csv", "x"), 2, "same name"),
        (("run", "--csv", "run/run.db"), 2, "part of the run"),
        (("run", "--data", "missing"), 1, "missing"),
        (("run", "--html", "run/run.lock/x.html"), 1, "cannot be written"),
    ],
)
def test_mistakes_are_sentences(folder: Path, args: tuple[str, ...], code: int, says: str) -> None:
    shown = report(*args)
    assert says in shown.stderr
    assert shown.exit_code == code
    assert "Traceback" not in shown.output
    assert "defect" not in shown.output


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_reach_no_terminal_and_no_json_raw(tmp_path: Path, name: str) -> None:
    run = write(tmp_path / "run", plan(names=(name, "bob"), zones=(name, "B")))
    shown = report(run)
    assert shown.exit_code == 0, shown.output
    assert "\x1b" not in shown.stdout
    assert "\u202e" not in shown.stdout
    data = json.loads(report(run, "--json").stdout)
    assert name in {row["client"] for row in data["account"]["by_client"]}


def test_a_damaged_run_is_a_sentence(folder: Path) -> None:
    path = folder / "run.db"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    shown = report("run")
    assert shown.exit_code == 1
    assert "error: " in shown.stderr
    assert "defect" not in shown.stderr
