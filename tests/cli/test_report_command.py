"""slackwater report, as a user meets it."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from report_runs import HOSTILE, plan, rich_plan, write

from slackwater.cli.main import cli
from slackwater.planning.plan import Plan


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


def test_embodied_emissions_of_a_device(folder: Path) -> None:
    plain = json.loads(report("run", "--json").stdout)["sci"]
    found = json.loads(report("run", "--json", "--embodied-kg", 1000, "--lifetime", 5).stdout)["sci"]
    # alice waits in all four hours, bob trains in two: 6 device-hours of 1,000 kg over 5 years
    assert found["embodied_kg"] == pytest.approx(1000 * 6 / (5 * 8760))
    assert found["score_g"] == pytest.approx(plain["score_g"] + 1000 * found["embodied_kg"])
    assert plain["embodied_kg"] is None
    shorter = json.loads(report("run", "--json", "--embodied-kg", 1000).stdout)["sci"]
    assert shorter["embodied_kg"] == pytest.approx(1000 * 6 / (4 * 8760))


@pytest.mark.parametrize(
    ("options", "relative"),
    [
        (("--intensity-uncertainty", 10), 0.10),
        (("--energy-uncertainty", 15), 0.15),
        (("--intensity-uncertainty", 30, "--energy-uncertainty", 40), 0.5),
    ],
)
def test_uncertainty_is_given_in_percent(folder: Path, options: tuple[object, ...], relative: float) -> None:
    data = json.loads(report("run", "--json", *options).stdout)
    total, found = data["account"]["total_kg"], data["uncertainty"]
    assert found["relative"] == pytest.approx(relative)
    assert found["low_kg"] == pytest.approx(total * (1 - relative))
    assert found["high_kg"] == pytest.approx(total * (1 + relative))
    report("run", "--html", "r.html", *options)
    page = Path("r.html").read_text()
    assert f"± {relative:.1%}" in page
    both = "leaves out" not in page
    assert both == (len(options) == 4)


def test_who_reports_and_the_units_of_ai(folder: Path) -> None:
    data = json.loads(
        report(
            "run", "--json", "--organisation", "Example Labs", "--preparer", "A. Person", "--date", "2026-03-01",
            "--tokens", "2e6", "--flops", "1e12",
        ).stdout
    )  # fmt: skip
    made = data["preparation"]
    assert (made["organisation"], made["preparer"], made["prepared_on"]) == ("Example Labs", "A. Person", "2026-03-01")
    grams = 1000 * data["account"]["total_kg"]
    assert [(one["unit"], one["score_g"]) for one in data["sci"]["per"]] == [
        ("training token", pytest.approx(grams / 2e6)),
        ("FLOP", pytest.approx(grams / 1e12)),
    ]
    report("run", "--html", "r.html", "--tokens", "2e6", "--organisation", "Example Labs")
    page = Path("r.html").read_text()
    assert "SCI per training token" in page
    assert "Example Labs" in page


def test_the_organisation_of_a_scenario_reaches_its_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    client = '[[client]]\nname = "lyon"\nzone = "FR"\npower_w = 300\n'
    head = 'start = 2022-01-01T00:00:00Z\nrounds = 2\nbudget_kg = 1.0\n[report]\norganisation = "Example Labs"\n'
    Path("s.toml").write_text(head + client)
    shown = CliRunner().invoke(cli, ["plan", "s.toml", "--out", "."])
    assert shown.exit_code == 0, shown.output
    write(tmp_path / "run", Plan.load("plan.json"), until=1)
    assert json.loads(report("run", "--json").stdout)["preparation"]["organisation"] == "Example Labs"


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (
            ("nowhere",),
            1,
            "There is no run in nowhere: it has no run.db. Name a folder that `slackwater train` or `run` wrote.",
        ),
        (
            ("run", "--functional-unit", "per patient"),
            2,
            "The run does not record its number of 'patient'. Give it with --units, or choose 'training",
        ),
        (("run", "--functional-unit", ""), 2, "Invalid value for '--functional-unit': it is empty; "),
        (
            ("run", "--functional-unit", "token"),
            2,
            "The run does not record its number of 'training token'. Give it with --tokens.",
        ),
        (
            ("run", "--functional-unit", "per FLOP"),
            2,
            "The run does not record its number of 'FLOP'. Give it with --flops.",
        ),
        (("run", "--tokens", "0"), 2, "tokens is 0; it must be a number above 0."),
        (("run", "--flops", "nan"), 2, "flops is nan; it must be a number above 0."),
        (("run", "--organisation", " "), 2, "Invalid value for '--organisation': it is empty; "),
        (
            ("run", "--date", "1st of May"),
            2,
            "Invalid value for '--date': '1st of May' does not match the format '%Y-%m-%d'.",
        ),
        (("run", "--embodied-kg", "-1"), 2, "embodied_kg is -1; it must be a number of at least 0."),
        (
            ("run", "--embodied-kg", "1", "--embodied-total-kg", "1"),
            2,
            "Give embodied emissions by device or in total, not both.",
        ),
        (
            ("run", "--intensity-uncertainty", "-1"),
            2,
            "intensity uncertainty is -0.01; it must be a number of at least 0.",
        ),
        (("run", "--energy-uncertainty", "nan"), 2, "energy uncertainty is nan; it must be a number of at least 0."),
        (("run", "--pue", "0.5"), 2, "pue is 0.5; it must be a number of at least 1."),
        (("run", "--html", "x", "--csv", "x"), 2, "Two of the files have the same name. Give each its own."),
        (("run", "--csv", "run/run.db"), 2, "run/run.db is part of the run. Name another file."),
        (
            ("run", "--data", "missing"),
            1,
            "There is no file or folder missing. Name a CSV file or a folder of them, or 'typical'",
        ),
        (("run", "--html", "run/run.lock/x.html"), 1, "run/run.lock/x.html cannot be written: File exists."),
    ],
)
def test_mistakes_are_sentences(folder: Path, args: tuple[str, ...], code: int, says: str) -> None:
    shown = report(*args)
    assert shown.stderr.startswith(f"error: {says}")
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
