"""Every output of a run says what kind of run it was: simulated, rehearsed or live."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import live_world as world
import pytest
from click.testing import CliRunner
from pypdf import PdfReader
from report_runs import replanned

from slackwater.cli.main import cli
from slackwater.dashboard.catalogue import Entry, compare_answer
from slackwater.dashboard.runs import RunReader
from slackwater.ledger.schema import KINDS, RunKind
from slackwater.live.folder import LiveSettings
from slackwater.live.runner import carry_out

SCENARIO = """\
start = 2022-01-01T00:00:00Z
rounds = 2
slack = 6
budget_kg = 0.9
[[client]]
name = "lyon"
zone = "FR"
power_w = 300
[[client]]
name = "berlin"
zone = "DE"
power_w = 300
"""
QUICK = ("--local-steps", "2", "--batch-size", "16")


def said(*args: object) -> bytes:
    done = CliRunner().invoke(cli, [*map(str, args)])
    assert done.exit_code == 0, done.output + done.stderr
    return done.stdout.encode()


def outputs(run: Path, out: Path) -> dict[str, bytes]:
    """All that can be shown or written of a run that is there, by name."""
    out.mkdir()
    files = {
        "html": "r.html",
        "pdf": "r.pdf",
        "csv": "lines.csv",
        "codecarbon": "emissions.csv",
        "model-card": "card.md",
    }
    said("report", run, *(word for option, name in files.items() for word in (f"--{option}", out / name)))
    reader = RunReader(path=run / "run.db", label="run")
    entry = Entry(id="1", kind="run", path=run / "run.db", label="run")
    return {
        "status": said("status", run),
        "status --json": said("status", run, "--json"),
        "report": said("report", run),
        "report --json": said("report", run, "--json"),
        **{f"report --{option}": (out / name).read_bytes() for option, name in files.items()},
        "/api/run, state": json.dumps(reader.look()).encode(),
        "/api/run, fixed": json.dumps(reader.fixed()).encode(),
        "/api/compare": json.dumps(compare_answer([(entry, reader)])).encode(),
    }


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a training, its baseline and a comparison show and write."""
    folder = tmp_path_factory.mktemp("made")
    scenario, run = folder / "s.toml", folder / "run"
    scenario.write_text(SCENARIO)
    said("plan", scenario, "--out", folder)
    threads = ("--threads", "1")
    train = said(
        "train", folder / "plan.json", "--out", run, "--tensorboard", "--chart", folder / "a.png", *QUICK, *threads
    )
    again = said("resume", run, "--json", "--chart", folder / "a.svg")
    resumed = said("resume", run, "--chart", folder / "a.pdf")
    baseline = said("baseline", scenario, "--out", folder / "b", "--chart", folder / "b.png", *QUICK, *threads)
    rivals = ("rivals", scenario, "--policies", "no-slack", "--seeds", 1, "--out", folder / "rivals", *QUICK)
    return {
        "train": train,
        "train --json": again,
        "resume": resumed,
        "baseline": baseline,
        "baseline --json": said("resume", folder / "b", "--json"),
        **{name: (folder / name).read_bytes() for name in ("a.png", "a.svg", "a.pdf", "b.png")},
        "TensorBoard": b"".join(file.read_bytes() for file in (run / "tensorboard").iterdir()),
        "rivals": said(*rivals),
        "rivals --json": said(*rivals, "--json"),
        **{name: (folder / "rivals" / name).read_bytes() for name in ("rivals.csv", "rivals.png")},
        **outputs(run, folder / "out"),
    }


def test_grep_finds_simulated_in_every_output_of_a_simulated_run(simulated: dict[str, bytes]) -> None:
    assert len(simulated) == 26
    silent = [name for name, data in simulated.items() if not re.search(rb"simulated", data, re.IGNORECASE)]
    assert silent == []
    claims = [name for name, data in simulated.items() if re.search(rb"\bEmitted\b", data)]
    assert claims == []


@pytest.mark.parametrize("kind", ["live", "rehearsed"])
def test_other_kinds_say_theirs_and_not_simulated(tmp_path: Path, kind: RunKind) -> None:
    found = outputs(replanned(tmp_path / "run", kind=kind), tmp_path / "out")
    assert len(found) == 12
    for name, data in found.items():
        assert not re.search(rb"simulated", data, re.IGNORECASE), name
        if kind == "rehearsed":
            assert re.search(rb"rehearsed", data, re.IGNORECASE), name
            assert not re.search(rb"\bEmitted\b", data), name
        elif name != "report --codecarbon":  # which has no place for it: it is what CodeCarbon's readers expect
            assert re.search(rb"\blive\b", data, re.IGNORECASE), name


def test_the_first_line_of_a_report_is_the_kind(simulated: dict[str, bytes], tmp_path: Path) -> None:
    words = KINDS["simulated"]
    assert simulated["report"].decode().splitlines()[0] == "Emissions report: simulated run"
    body = simulated["report --html"].decode().split("<body>")[1]
    assert [text for text in re.split(r"\s*<[^>]*>\s*", body) if text][:2] == [
        "Emissions report: simulated run",
        words.sentence,
    ]
    (tmp_path / "r.pdf").write_bytes(simulated["report --pdf"])
    first = PdfReader(tmp_path / "r.pdf").pages[0].extract_text().splitlines()
    assert first[0] == "Emissions report: simulated run"
    assert next(iter(json.loads(simulated["report --json"]).items())) == ("kind", "simulated")


def test_nobody_adds_up_the_codecarbon_file_of_a_simulated_run(simulated: dict[str, bytes]) -> None:
    rows = list(csv.DictReader(io.StringIO(simulated["report --codecarbon"].decode())))
    assert rows
    for row in rows:
        assert row["emissions"] == row["emissions_rate"] == row["energy_consumed"] == ""
        assert float(row["simulated_emissions"]) > 0
        assert float(row["simulated_energy_consumed"]) > 0
        assert row["tracking_mode"] == "simulated"
        assert "simulated" in row["project_name"]
        assert "simulated" in row["experiment_id"]
    lines = list(csv.DictReader(io.StringIO(simulated["report --csv"].decode())))
    assert {row["run_kind"] for row in lines} == {"simulated"}


def test_the_model_card_says_so_where_the_hub_keeps_it(simulated: dict[str, bytes]) -> None:
    source = next(line for line in simulated["report --model-card"].decode().splitlines() if "source:" in line)
    assert "simulated run, not measured emissions" in source


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({}, "live"),
        ({"slot_seconds": 0.0}, "simulated"),
        ({"slot_seconds": 60.0}, "simulated"),
        ({"slot_seconds": 0.0, "source": "playback"}, "rehearsed"),
        ({"source": "providers"}, "live"),
    ],
)
def test_what_settings_make_a_run(settings: dict[str, object], kind: RunKind) -> None:
    assert LiveSettings(**settings).kind == kind  # type: ignore[arg-type]


def test_a_live_path_run_says_its_kind_from_its_preparation_on(tmp_path: Path) -> None:
    for source, label in (("plan", b"simulated"), ("playback", b"rehearsed")):
        folder = world.made(tmp_path / source, source=source)
        assert label in said("status", folder)
        carry_out(folder, world.Sites(), world.initial())
        assert label in said("status", folder)
        assert json.loads(said("status", folder, "--json"))["kind"] == label.decode()
