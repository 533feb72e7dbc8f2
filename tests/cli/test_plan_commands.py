"""The command line as a user meets it: what goes to stdout, what to stderr, and the exit code."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import slackwater as sw
from slackwater import lazy
from slackwater.cli import plan_commands as commands
from slackwater.cli.main import cli

SCENARIO = """\
start = 2022-01-01T00:00:00Z
rounds = 2
slack = 2
budget_kg = 10.0
alpha = 0.1

[data]
source = "typical"

[[client]]
name = "lyon"
zone = "FR"
power_w = 1000

[[client]]
name = "berlin"
zone = "DE"
power_w = 1000
"""
HEADER = "datetime_utc,ci_direct_g_per_kwh,ci_lca_g_per_kwh"
INTENSITY = {"FR": [500, 400, 100, 300, 200, 250], "DE": [600, 600, 200, 500, 400, 450]}
NAMES = {
    "matrix", "end", "status", "objective", "upper_bound", "gap", "emissions_kg", "seconds", "metrics", "clients",
    "slot_starts", "provenance", "version",
}  # fmt: skip
"""What the issue promises in the JSON of a plan."""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test in a folder of its own, with a scenario and data of two zones."""
    monkeypatch.chdir(tmp_path)
    for name in ("SLACKWATER_DEBUG", "COLUMNS", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    Path("s.toml").write_text(SCENARIO)
    Path("data").mkdir()
    for zone in INTENSITY:
        write_data(zone)
    yield
    logger = logging.getLogger("slackwater")
    logger.setLevel(logging.NOTSET)
    logger.handlers.clear()


def write_data(zone: str, *, header: str = HEADER, stamps: Sequence[str] = (), cells: Sequence[object] = ()) -> None:
    stamps = stamps or [f"2022-01-01T{hour:02}:00Z" for hour in range(6)]
    rows = [f"{stamp},{cell},{cell}" for stamp, cell in zip(stamps, cells or INTENSITY[zone], strict=True)]
    Path("data", f"{zone}_2022.csv").write_text("\n".join([header, *rows]) + "\n")


def rewrite(old: str, new: str) -> None:
    assert old in SCENARIO
    Path("s.toml").write_text(SCENARIO.replace(old, new, 1))


def run(*args: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(cli, args, prog_name="slackwater", env=env)


def fine(*args: str, env: dict[str, str] | None = None) -> str:
    """Stdout of a command that works."""
    result = run(*args, env=env)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def refused(*args: str, code: int) -> str:
    """The message of a command that does not; one line after another, without the layout of a terminal."""
    result = run(*args)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert "defect" not in result.stderr
    assert not isinstance(result.exception, sw.SlackwaterError)
    return result.stderr


# What works


def test_plan_answers_in_a_few_lines_and_hides_the_optimiser() -> None:
    shown = fine("plan", "s.toml", "--data", "data")
    for part in ("lyon", "berlin", "Saves", "Ends", "Trains", "of 10 kg", "Chosen", "--details", "--paper"):
        assert part in shown
    assert "rho_H" not in shown


def test_plan_shows_everything() -> None:
    shown = fine("plan", "s.toml", "--data", "data", "--details")
    for part in (
        "lyon",
        "berlin",
        "Optimal",
        "of 10 kg",
        "objective",
        "upper bound",
        "gap",
        "s = 2 of 2",
        "rho_H",
        "pi",
    ):
        assert part in shown
    assert "synthetic" not in shown
    assert "synthetic" in fine("plan", "s.toml"), "the embedded year is called what it is"


def test_plan_says_whether_the_network_is_counted() -> None:
    assert "not counted: the scenario has no model_mb" in " ".join(
        fine("plan", "s.toml", "--data", "data", "--details").split()
    )
    plain = json.loads(fine("plan", "s.toml", "--data", "data", "--json"))
    assert plain["network_counted"] is False
    assert plain["emissions_by_cause_kg"] == {
        "training": plain["emissions_kg"], "idle": 0.0, "server": 0.0, "network": 0.0, "evaluation": 0.0
    }  # fmt: skip
    rewrite("alpha = 0.1", "alpha = 0.1\nmodel_mb = 1000\nnetwork_kwh_per_gb = 0.1\nevaluation_share = 0.05")
    shown = " ".join(fine("plan", "s.toml", "--data", "data", "--details").split())
    assert "of which training 3.2 kg, idle 0 kg, server 0 kg, network 0.64 kg, evaluation 0.16 kg" in shown
    assert "not counted" not in shown
    counted = json.loads(fine("plan", "s.toml", "--data", "data", "--json"))
    assert counted["network_counted"] is True
    assert counted["emissions_by_cause_kg"]["network"] == pytest.approx(0.64)
    assert counted["emissions_kg"] == pytest.approx(3.2 * 1.25)


def test_plan_as_json_is_json_and_nothing_else() -> None:
    result = run("plan", "s.toml", "--data", "data", "--json", "--out", "run", "--chart", "schedule.svg")
    plan = json.loads(result.stdout)
    assert set(plan) >= NAMES
    assert plan["status"] == "optimal"
    assert plan["matrix"] == [[1] * 4] * 2
    assert plan["emissions_kg"] == pytest.approx((500 + 400 + 100 + 300 + 600 + 600 + 200 + 500) / 1000)
    assert plan["slot_starts"][-1] == "2022-01-01T03:00Z"
    assert [client["name"] for client in plan["clients"]] == ["lyon", "berlin"]
    assert [one["source"] for one in plan["provenance"]] == ["data/DE_2022.csv", "data/FR_2022.csv"]
    assert (plan["version"], plan["factor"], plan["synthetic"]) == (sw.__version__, "lifecycle", False)
    assert result.stderr.splitlines() == ["saved run/plan.json", "drew schedule.svg"]
    assert json.loads(Path("run/plan.json").read_text()) == plan
    assert sw.Plan.load("run").end == plan["end"]
    assert "<svg" in Path("schedule.svg").read_text()


def test_plan_with_a_fixed_end_and_every_solver() -> None:
    for solver in ("exact", "greedy", "milp"):
        plan = json.loads(fine("plan", "s.toml", "--json", "--end", "1", "--solver", solver))
        assert (plan["end"], plan["solver"]) == (1, solver)


def test_the_scenario_of_init_is_planned_unchanged() -> None:
    result = run("init")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "wrote scenario.toml. Edit it, then run: slackwater plan scenario.toml\n"
    plan = json.loads(fine("plan", "scenario.toml", "--json"))
    assert plan["status"] == "optimal"
    assert plan["emissions_kg"] <= plan["budget_kg"]
    assert all(count > 0 for count in plan["slots_per_client"])


def test_init_does_not_overwrite() -> None:
    assert "s.toml already exists. Choose another name, or overwrite it with --force" in refused(
        "init", "s.toml", code=2
    )
    assert Path("s.toml").read_text() == SCENARIO
    fine("init", "s.toml", "--force")
    assert Path("s.toml").read_text() != SCENARIO
    fine("init", "new/folder/s.toml")
    assert "data is a folder. Name a file, such as data/scenario.toml" in refused("init", "data", code=2)
    assert "data is a folder" in refused("init", "data", "--force", code=2)


def test_compare() -> None:
    args = ("compare", "s.toml", "--alpha", "1,0.1,log", "--slack", "0,2", "--budget", "0.1,3", "--data", "data")
    shown = fine(*args)
    assert len(re.findall(r"optimal|infeasible", shown)) >= 12
    table = json.loads(fine(*args, "--json", "--chart", "pareto.pdf"))
    assert len(table["points"]) == 12
    assert {"alpha", "slack", "budget_kg", "status", "end", "objective", "gap", "emissions_kg"} <= set(
        table["points"][0]
    )
    assert {point["status"] for point in table["points"]} == {"optimal", "infeasible"}
    assert (table["factor"], table["synthetic"]) == ("lifecycle", False)
    assert Path("pareto.pdf").read_bytes().startswith(b"%PDF")


def test_compare_with_a_client_that_never_trains_is_json_too() -> None:
    (point,) = json.loads(fine("compare", "s.toml", "--data", "data", "--budget", "0.7", "--alpha", "1", "--json"))[
        "points"
    ]
    assert point["rho_h"] == "inf", "as in the JSON of a plan"


def test_savings() -> None:
    args = ("savings", "--zones", "FR, DE", "--hours", "5", "--slack", "10", "--starts", "4")
    shown = fine(*args)
    assert "FR" in shown
    assert "synthetic" in shown
    study = json.loads(fine(*args, "--json", "--chart", "heat.png", "--chart-clients", "clients.svg"))
    assert study["zones"] == ["FR", "DE"]
    assert len(study["starts"]) == 4
    assert study["synthetic"] is True
    assert Path("heat.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in Path("clients.svg").read_text()
    own = json.loads(fine("savings", "--data", "data", "--hours", "1", "--slack", "2", "--starts", "1", "--json"))
    assert own["zones"] == ["DE", "FR"]
    assert own["client"]["mean"] == pytest.approx([1 - 200 / 600, 1 - 100 / 500])


def test_zones() -> None:
    shown = fine("zones", "--data", "data")
    assert "FR" in shown
    assert "synthetic" not in shown
    embedded = json.loads(fine("zones", "--json"))
    assert len(embedded) >= 54
    assert all(zone["synthetic"] for zone in embedded)
    (german, french) = json.loads(fine("zones", "--data", "data", "--json"))
    assert (german["zone"], french["first"], french["last"]) == ("DE", "2022-01-01T00:00Z", "2022-01-01T05:00Z")


def test_version_and_help() -> None:
    assert fine("--version") == f"slackwater, version {sw.__version__}\n"
    assert "plan" in fine("--help")
    assert "SCENARIO" in fine("plan", "-h")


def test_gaps_are_filled_on_request_and_said() -> None:
    write_data("FR", cells=[500, "", 100, 300, 200, 250])
    message = refused("plan", "s.toml", "--data", "data", code=1)
    assert "FR" in message
    assert "2022-01-01T01:00Z" in message
    result = run("plan", "s.toml", "--data", "data", "--fill", "1", "--json")
    assert result.exit_code == 0
    assert result.stderr.startswith("warning: Zone FR: filled 1 hours by interpolation: 2022-01-01T01:00Z")
    assert json.loads(result.stdout)["provenance"][1]["filled_hours"] == ["2022-01-01T01:00Z"]


# How it looks


@pytest.mark.parametrize("args", [["plan", "s.toml"], ["compare", "s.toml"], ["zones", "--data", "data"]])
def test_nothing_is_wider_than_a_narrow_terminal(args: list[str]) -> None:
    assert max(map(len, fine(*args, env={"COLUMNS": "60"}).splitlines())) <= 60


def test_without_a_terminal_it_is_a_hundred_wide_and_plain() -> None:
    shown = fine("plan", "s.toml")
    assert 60 < max(map(len, shown.splitlines())) <= 100
    assert "\x1b" not in shown


def test_no_color() -> None:
    colour = re.compile(r"\x1b\[[\d;]*3[0-7]")
    coloured = {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": "80"}
    assert colour.search(fine("plan", "s.toml", env=coloured))
    assert not colour.search(fine("plan", "s.toml", env={**coloured, "NO_COLOR": "1"}))


def _slackwater(*args: str, **env: str) -> subprocess.Popen[bytes]:
    code = "from slackwater.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **env}
    )


@pytest.mark.parametrize("args", [["zones"], ["zones", "--json"]])
def test_a_reader_that_goes_away_is_no_error(args: list[str]) -> None:
    with _slackwater(*args) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_a_terminal_without_our_characters() -> None:
    with _slackwater("plan", "s.toml", PYTHONIOENCODING="ascii", PYTHONUTF8="0") as process:
        out, err = process.communicate()
    assert (process.returncode, err) == (0, b"")
    assert b"lyon   ??????" in out


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_full_disk_behind_stdout() -> None:
    with Path("/dev/full").open("w") as full:
        code = "from slackwater.cli import main; main()"
        done = subprocess.run([sys.executable, "-c", code, "zones"], stdout=full, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (1, b"error: the operating system reports: No space left on device.\n")


# Mistakes in the command: exit 2, from click, with the option named


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["plann", "s.toml"], "No such command 'plann'"),
        (["plan"], "Missing argument 'SCENARIO'"),
        (["plan", "s.toml", "--frobnicate"], "No such option"),
        (["plan", "s.toml", "--end", "x"], "'--end': 'x' is not a valid integer"),
        (["plan", "s.toml", "--solver", "gurobi"], "'--solver': 'gurobi' is not one of 'exact', 'greedy', 'milp'"),
        (["plan", "s.toml", "--time-limit", "0"], "'--time-limit': 0 is not a number of seconds above 0"),
        (["plan", "s.toml", "--time-limit", "nan"], "'--time-limit': nan is not a number of seconds above 0"),
        (["plan", "s.toml", "--fill", "-1"], "'--fill': -1 is not in the range"),
        (["plan", "s.toml", "--data", ""], "'--data': it is empty; give a value or leave the option out"),
        (["plan", "s.toml", "--out", ""], "'--out': it is empty"),
        (["plan", "s.toml", "--out", "s.toml"], "'--out': Directory 's.toml' is a file"),
        (["plan", "s.toml", "--chart", "x.bmp"], "'--chart': 'x.bmp' must end in .png, .svg or .pdf"),
        (["plan", "s.toml", "--chart", "x"], "'--chart': 'x' must end in .png, .svg or .pdf"),
        (["plan", "s.toml", "--chart", ""], "'--chart': '' must end in .png, .svg or .pdf"),
        (["plan", "s.toml", "--chart", "folder.png"], "'--chart': 'folder.png' is a folder; name a file"),
        (["compare", "s.toml", "--chart", "x.jpg"], "'--chart': 'x.jpg' must end in"),
        (["compare", "s.toml", "--slack", "x"], "'--slack': 'x' in 'x' is not a whole number"),
        (["compare", "s.toml", "--slack", "1,2.5"], "'--slack': '2.5' in '1,2.5' is not a whole number"),
        (["compare", "s.toml", "--budget", "1,2kg"], "'--budget': '2kg' in '1,2kg' is not a number"),
        (["compare", "s.toml", "--alpha", ""], "'--alpha': '' names no value"),
        (["savings", "--zones", ","], "'--zones': ',' names no zone"),
        (["savings", "--zones", ""], "'--zones': '' names no zone"),
        (["savings", "--chart-clients", "x"], "'--chart-clients': 'x' must end in"),
        (["savings", "--seed", "-1"], "'--seed': -1 is not in the range"),
        (["savings", "--factor", "lca"], "'--factor': 'lca' is not one of 'direct', 'lifecycle'"),
        (["savings", "--start", "2022-01-01T00:00"], "'--start': the time '2022-01-01T00:00:00' has no time zone"),
        (["savings", "--start", "now"], "'--start': the time 'now' is not a time"),
        (["savings", "--start", "9999-12-31T23:00Z"], "is not in the years 1900 to 2199"),
        (["zones", "--data", ""], "'--data': it is empty"),
    ],
)
def test_usage(args: list[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for work in ("load_traces", "load_scenario", "make_plan"):
        monkeypatch.setattr(commands, work, lambda *_, **__: pytest.fail("began to work"))
    Path("folder.png").mkdir()
    assert message in refused(*args, code=2)


# Mistakes in the scenario or the settings: exit 2 (all of them, one by one, in test_config.py)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('zone = "FR"', 'zone = "fr"', "error: There is no zone 'fr' in the typical profiles. Did you mean FR?"),
        ("rounds = 2", "fine_tune = 9\nrounds = 2", "error: The fine-tuning window of 9 slots is longer than the horizon of 4"),
        ("alpha = 0.1", "alpha = 1.5", "error: alpha must be above 0 and at most 1"),
        ("budget_kg = 10.0", "budget_kg = 0", "error: budget_kg must be a number above 0, in kg, not 0.0."),
        ("budget_kg = 10.0", "budget_kg = -1", "error: budget_kg must be a number above 0, in kg, not -1.0."),
        ('name = "berlin"', 'name = "lyon"', "error: Two clients are called 'lyon'"),
        ("budget_kg", "budget", "error: s.toml: unknown key 'budget'; did you mean 'budget_kg'?"),
        ("source", "sorce", "error: s.toml, [data]: unknown key 'sorce'; did you mean 'source'?"),
        ("power_w", "powr_w", "error: s.toml, [[client]] 'lyon': unknown key 'powr_w'; did you mean 'power_w'?"),
        ("rounds = 2", 'rounds = "ten"', "error: s.toml: rounds must be a whole number, like 10, not 'ten'."),
        ("slack = 2", "slack = 3.5", "error: s.toml: slack must be a whole number, like 10, not 3.5."),
        ("power_w = 1000", "power_w = -5", "error: Client 'lyon' has power_w = -5; it must be above 0 W."),
        ("00:00:00Z", "00:00:00", "error: s.toml: start '2022-01-01T00:00:00' has no time zone."),
        ("slack = 2", "deadline = 2022-01-01T01:00:00Z", "error: The deadline 2022-01-01T01:00Z leaves 1 slots"),
        ("slack = 2", "slot_minutes = 7", "error: slot_minutes is 7"),
        ("slack = 2", "round_minutes = 90", "error: round_minutes must be above 0 and at most the slot's 60 minutes"),
        ("alpha = 0.1", "model_mb = 0", "error: model_mb must be the size of the model in MB (10^6 bytes), above 0"),
        ("alpha = 0.1", 'model_mb = "12"', "error: s.toml: model_mb must be a number, without quotes or unit, not '12'."),
        ("alpha = 0.1", "evaluation_share = -1", "error: evaluation_share must be a number of at least 0, not -1.0."),
        ("rounds = 2", "rounds =", "error: s.toml is not valid TOML: Invalid value (at line 2"),
        (SCENARIO[SCENARIO.index("[[client]]") :], "", "error: There are no clients. Add at least one [[client]]"),
    ],
)  # fmt: skip
def test_scenario(old: str, new: str, message: str) -> None:
    rewrite(old, new)
    assert message in refused("plan", "s.toml", code=2)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["plan", "none.toml"],
            "error: There is no scenario at none.toml. Create one with: slackwater init none.toml\n",
        ),
        (["plan", "data"], "error: data is a folder. Name the scenario in it, like data/scenario.toml."),
        (["plan", "binary"], "error: binary is not a text file in UTF-8. A scenario is TOML; save it as UTF-8."),
        (
            ["plan", "s.toml", "--end", "3"],
            "error: The end time s must be a whole number from 0 to the slack of 2, not 3.",
        ),
        (
            ["plan", "s.toml", "--end", "-1"],
            "error: The end time s must be a whole number from 0 to the slack of 2, not -1.",
        ),
        (["compare", "s.toml", "--alpha", "abc"], "at most 1, or 'log', 'max-min' or 'max-min:0.5'; it is 'abc'."),
        (
            ["compare", "s.toml", "--alpha", "0.1,nan"],
            "alpha must be above 0 and at most 1, or 'log', 'max-min' or 'max-min:0.5'; it is nan.",
        ),
        (["compare", "s.toml", "--budget", "-1"], "error: budget_kg must be a number above 0, in kg, not -1.0."),
        (["compare", "s.toml", "--budget", "nan"], "error: budget_kg must be a number above 0, in kg, not nan."),
        (["compare", "s.toml", "--slack", "-1"], "error: slack must be a whole number of at least 0, not -1."),
        (["compare", "s.toml", "--slack", "9999999"], "error: The horizon is 10,000,001 slots of 60 minutes"),
        (
            ["savings", "--zones", "FR,FR"],
            "error: zones names 'FR' twice; name it once, and let several clients use it.",
        ),
        (["savings", "--zones", "SE-S3"], "error: There is no zone 'SE-S3' in the typical profiles. Did you mean"),
        (["savings", "--zones", "FR", "--hours", "0"], "error: hours is 0; it must be at least 1."),
        (["savings", "--zones", "FR", "--slack", "-1"], "error: slack is -1; it must be at least 0."),
        (["savings", "--zones", "FR", "--starts", "0"], "error: starts is 0; draw at least one."),
        (
            ["savings", "--zones", "FR", "--start", "2022-01-01T00:30Z"],
            "00:30Z is not the start of a 60-minute slot; slots are ",
        ),
        (["savings", "--data", "data", "--zones", "BE"], "error: There is no zone 'BE' in data."),
    ],
)
def test_settings(args: list[str], message: str) -> None:
    Path("binary").write_bytes(b"\x00\xff\x89PNG")
    assert message in refused(*args, code=2)


# Data that cannot be used: exit 1

TWICE = [f"2022-01-01T{hour}:00Z" for hour in ("00", "01", "01", "02", "03", "04")]
OCTOBER = [f"2022-10-30T{hour}:00Z" for hour in ("00", "01", "02", "02", "03", "04")]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"header": "time,a,b"}, "FR_2022.csv has the columns time, a, b. Expected: datetime_utc with ci_direct_g_per_kwh or "),
        ({"cells": [500, "nan", 100, 300, 200, 250]}, "FR_2022.csv, line 3: direct intensity is 'nan'; that is not a number"),
        ({"cells": [500, -1, 100, 300, 200, 250]}, "line 3: direct intensity is '-1'; an intensity is never negative"),
        ({"cells": [500, "inf", 100, 300, 200, 250]}, "line 3: direct intensity is 'inf'; an intensity is finite"),
        ({"cells": [500, 90000, 100, 300, 200, 250]}, "line 3: direct intensity is '90000'; no grid is above 5000 g/kWh"),
        ({"cells": [0.5, 0.4, 0.1, 0.3, 0.2, 0.25]}, "It looks like kg/kWh; multiply by 1000."),
        ({"cells": [500, "4oo", 100, 300, 200, 250]}, "line 3: direct intensity is '4oo'; that is not a number"),
        ({"cells": [500, "", 100, 300, 200, 250]}, "lacks 1 hour of lifecycle intensity: 1 h from 2022-01-01T01:00Z. To continue, "),
        ({"stamps": TWICE}, "the hour 2022-01-01T01:00Z in lines 3 and 4 is given twice. Keep one line"),
        ({"stamps": OCTOBER}, "Clocks go back there, so the file seems to be in local time with daylight saving. Give the times in UTC."),
        ({"stamps": [f"2022-01-01T{hour:02}:00" for hour in range(6)]}, "line 2: '2022-01-01T00:00' has no time zone. Add Z"),
        ({"stamps": [f"{hour}. January" for hour in range(6)]}, "line 2: '0. January' is not a time"),
    ],
)  # fmt: skip
def test_data(wrong: dict[str, Any], message: str) -> None:
    write_data("FR", **wrong)
    said = refused("plan", "s.toml", "--data", "data", code=1)
    assert said.startswith("error: ")
    assert message in said


def test_no_data() -> None:
    missing = "error: There is no file or folder nowhere. Name a CSV file or a folder of them, or 'typical'"
    for args in (["plan", "s.toml"], ["compare", "s.toml"], ["savings"], ["zones"]):
        assert missing in refused(*args, "--data", "nowhere", code=1)
    rewrite('"typical"', '"nowhere"')
    assert missing in refused("plan", "s.toml", code=1)
    Path("empty").mkdir()
    assert "error: The folder empty has no CSV files." in refused("zones", "--data", "empty", code=1)
    Path("data/DE_2022.csv").write_bytes(b"\x89PNG\xff\x00")
    assert "DE_2022.csv is not UTF-8 text" in refused("plan", "s.toml", "--data", "data", code=1)


def test_beyond_the_end_of_the_data() -> None:
    rewrite("slack = 2", "slack = 5")
    said = refused("plan", "s.toml", "--data", "data", code=1)
    assert (
        "covers 2022-01-01T00:00Z to 2022-01-01T06:00Z; 2022-01-01T00:00Z to 2022-01-01T07:00Z is outside of it."
        in said
    )
    assert refused("savings", "--data", "data", "--hours", "90", "--slack", "10", code=1) == (
        "error: 90 hours of training with 10 hours of slack needs 100 hours, the traces have 6. Load a longer period, or ask "
        "for less slack.\n"
    )


@pytest.mark.parametrize(
    "args",
    [["plan", "s.toml", "--out", "s.toml/x"], ["plan", "s.toml", "--chart", "s.toml/x.png"], ["init", "s.toml/x"]],
)
def test_what_cannot_be_written(args: list[str]) -> None:
    said = refused(*args, code=1)
    assert said.startswith("error: s.toml/x")
    assert "cannot be written" in said
    assert Path("s.toml").read_text() == SCENARIO


# Infeasible: exit 3


def test_a_budget_that_cannot_pay_the_window() -> None:
    rewrite("budget_kg = 10.0", "budget_kg = 0.05")
    said = refused("plan", "s.toml", "--data", "data", code=3)
    # Windows: 0.4 + 0.6 for s = 0, 0.1 + 0.2 for s = 1, 0.3 + 0.5 for s = 2.
    assert "No schedule fits 0.05 kg: at its cheapest (s=1, ending 2022-01-01T03:00Z)" in said
    assert "the fine-tuning window 0.300000 kg" in said
    assert "Raise budget_kg to at least 0.300000" in said
    rewrite("budget_kg = 10.0", "budget_kg = 0.3")
    assert json.loads(fine("plan", "s.toml", "--data", "data", "--json"))["end"] == 1
    assert "at its cheapest (s=2" in refused("plan", "s.toml", "--data", "data", "--end", "2", code=3)


def test_a_window_that_meets_an_absence() -> None:
    away = 'power_w = 1000\nunavailable = ["2022-01-01T02:00Z/2022-01-01T03:00Z"]'
    rewrite("power_w = 1000", away)
    said = refused("plan", "s.toml", "--data", "data", "--end", "1", code=3)
    assert "s=1: client 'lyon' is not available in the window" in said
    assert json.loads(fine("plan", "s.toml", "--data", "data", "--json"))["end"] != 1
    Path("s.toml").write_text('window = "available"\n' + Path("s.toml").read_text())
    plan = json.loads(fine("plan", "s.toml", "--data", "data", "--end", "1", "--json"))
    assert [row[2] for row in plan["matrix"]] == [0, 1]


def test_least_slots_that_cannot_be_had() -> None:
    rewrite("power_w = 1000", "power_w = 1000\nmin_slots = 9")
    assert "client 'lyon' must get at least 9 slots" in refused("plan", "s.toml", "--data", "data", code=3)


# Whatever else happens


def test_a_defect_is_said_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(commands, "make_plan", broken)
    result = run("plan", "s.toml")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == (
        "error: internal error (ZeroDivisionError: division by zero). This is a defect in Slackwater. Run the command again "
        "with SLACKWATER_DEBUG=1, and report the output.\n"
    )
    assert "Traceback" not in result.stderr
    debugged = run("plan", "s.toml", env={"SLACKWATER_DEBUG": "1"})
    assert debugged.exit_code == 1
    assert "Traceback" in debugged.stderr
    assert ", in broken" in debugged.stderr


def test_debug_shows_where_a_mistake_was_noticed() -> None:
    result = run("plan", "none.toml", env={"SLACKWATER_DEBUG": "1"})
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert "error: There is no scenario at none.toml" in result.stderr


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (MemoryError(), 1, "error: not enough memory. Use fewer slots or clients, or fix the end time (--end)."),
        (KeyboardInterrupt(), 130, "stopped."),
        (
            PermissionError(13, "Permission denied", "secret"),
            1,
            "error: the operating system reports: Permission denied (secret).",
        ),
    ],
)
def test_mishaps(error: BaseException, code: int, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def mishap(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(commands, "make_plan", mishap)
    assert message in refused("plan", "s.toml", code=code)


def test_a_chart_without_matplotlib_is_refused_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(lazy, "find_spec", lambda name: None if name == "matplotlib" else found(name))
    monkeypatch.setattr(commands, "make_plan", lambda *_, **__: pytest.fail("planned"))
    said = refused("plan", "s.toml", "--chart", "x.png", code=1)
    assert "needs matplotlib, which is not installed. Install it with: pip install 'slackwater[charts]'" in said


def test_verbose_says_what_is_done_and_only_once() -> None:
    write_data("FR", cells=[500, "", 100, 300, 200, 250])
    for _ in range(2):
        result = run("--verbose", "plan", "s.toml", "--data", "data", "--fill", "1", "--json")
        assert result.stderr.count("warning: Zone FR") == 1
    assert logging.getLogger("slackwater").level == logging.INFO
    fine("zones", "--data", "data")
    assert logging.getLogger("slackwater").level == logging.WARNING
