"""Rules that hold for all commands: options with one meaning, errors in one form, checks before the work starts."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import slackwater as sw
from slackwater import lazy
from slackwater.cli.main import cli
from slackwater.cli.options import evaluation_interval
from slackwater.ledger.run import Run
from slackwater.planning.schedule import no_slack_plan
from slackwater.scenario import Scenario

SCENARIO = """\
start = 2022-01-01T00:00:00Z
rounds = 2
slack = 6
budget_kg = 0.9

[data]
source = "typical"
""" + "".join(
    f'[[client]]\nname = "{name}"\nzone = "{zone}"\npower_w = 300\n'
    for name, zone in (("lyon", "FR"), ("berlin", "DE"))
)
QUICK = ("--local-steps", "1", "--batch-size", "16")
DIALECT = re.compile(
    r"unless told|planned anew|goes? on\b|in vain|\bis told|what came|\bstands\b|hand in\b|\bby default\b|"
    r"(?:^|[.:] )Of (?:the|a|partition|every)\b|\[default:",
    re.IGNORECASE,
)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLACKWATER_CACHE", str(tmp_path / "cache"))
    Path("s.toml").write_text(SCENARIO)
    yield
    logger = logging.getLogger("slackwater")
    logger.setLevel(logging.NOTSET)
    logger.handlers.clear()


def run(*args: str) -> Result:
    return CliRunner().invoke(cli, args, prog_name="slackwater")


def fine(*args: str) -> Result:
    result = run(*args)
    assert result.exit_code == 0, result.stderr
    return result


def every_command(
    group: click.Group = cli, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from every_command(command, (*path, name))


COMMANDS = {" ".join(path): command for path, command in every_command()}


def options(name: str) -> dict[str, click.Option]:
    """Return the commands that have an option, with it."""
    return {
        command: option
        for command, found in COMMANDS.items()
        for option in found.params
        if isinstance(option, click.Option) and name in option.opts
    }


# Help


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_plain_english(name: str) -> None:
    command = COMMANDS[name]
    for text in (command.help or "", *(o.help or "" for o in command.params if isinstance(o, click.Option))):
        found = DIALECT.search(" ".join(text.split()))
        assert found is None, f"{name}: {found and found[0]!r} in {text!r}"


def test_the_list_of_commands_fits_a_terminal() -> None:
    shown = CliRunner().invoke(cli, ["--help"], prog_name="slackwater", terminal_width=80).stdout
    assert "..." not in shown.partition("Commands:")[2]


@pytest.mark.parametrize("name", COMMANDS)
def test_defaults_are_stated_in_one_form(name: str) -> None:
    shown = fine(*name.split(), "--help").stdout
    assert "[default" not in shown
    for option in COMMANDS[name].params:
        stated = isinstance(option, click.Option) and not option.is_flag and option.default not in (None, ())
        if stated and type(option.default).__name__ != "Sentinel":
            assert "Default: " in (option.help or ""), f"{name} {option.opts[0]}"  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["--seeds", "--eval-every", "--json", "--task-data", "--memory-dtype", "--fill"])
def test_an_option_has_one_type_and_one_default(name: str) -> None:
    found = options(name)
    assert len(found) > 1
    assert len({type(option.type) for option in found.values()}) == 1, found
    assert len({str(option.default) for option in found.values()}) == 1, found
    assert len({option.metavar for option in found.values()}) == 1, found


# --seeds


@pytest.mark.parametrize("command", ["rivals", "paper"])
@pytest.mark.parametrize(
    ("text", "seeds"), [("3", (0, 1, 2)), ("1", (0,)), ("0,1,2", (0, 1, 2)), ("4,7", (4, 7)), ("0,", (0,))]
)
def test_seeds_are_a_count_or_a_list(command: str, text: str, seeds: tuple[int, ...]) -> None:
    option = options("--seeds")[command]
    assert option.type.convert(text, option, None) == seeds


@pytest.mark.parametrize("study", ["aggregation", "auto", "auto_cnn", "backtests", "correlation", "forecasts"])
def test_the_studies_take_seeds_as_the_commands_do(study: str) -> None:
    main = import_module(f"slackwater.lab.studies.{study}").main
    commands = [command for _, command in every_command(main)] if isinstance(main, click.Group) else [main]
    found = {option.opts[0]: option.type for command in commands for option in command.params}
    kinds = {name: type(kind) for name, kind in found.items() if name.endswith("seeds")}
    assert set(kinds.values()) <= {type(options("--seeds")["rivals"].type)}
    assert set(kinds) == {
        "aggregation": {"--seeds"},
        "auto_cnn": {"--seeds", "--grid-seeds"},
        "correlation": {"--seeds"},
    }.get(study, set())


@pytest.mark.parametrize("command", [("rivals", "s.toml"), ("paper", "fig5")])
@pytest.mark.parametrize("text", ["0", "-1", "one", "1,x", ",", "-1,2", "1.5"])
def test_wrong_seeds(command: tuple[str, ...], text: str) -> None:
    result = run(*command, "--seeds", text)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: Invalid value for '--seeds': {text!r} is not a number of seeds")


# --eval-every


def test_the_evaluation_interval() -> None:
    assert set(options("--eval-every")) == {"train", "baseline", "rivals"}
    assert [evaluation_interval(rounds, None) for rounds in (0, 1, 12, 29, 120)] == [1, 1, 1, 2, 10]
    assert [evaluation_interval(120, asked) for asked in (0, 1, 7)] == [0, 1, 7]


def rival_interval(*more: str) -> Any:
    fine("rivals", "s.toml", "--policies", "no-slack", "--most", "0", "--out", "out", *QUICK, *more)
    return json.loads(Path("out/setting.json").read_text())["setting"]["eval_every"]


def test_rivals_evaluates_about_12_times_and_a_stored_comparison_keeps_its_interval() -> None:
    Path("s.toml").write_text(SCENARIO.replace("budget_kg = 0.9", "budget_kg = 5.0").replace("slack = 6", "slack = 40"))
    problem = sw.load_scenario("s.toml").problem()
    rounds = no_slack_plan(problem).problem.rounds
    assert rounds >= 18
    assert rival_interval() == evaluation_interval(rounds, None) > 1
    Path("out/setting.json").unlink()
    assert rival_interval("--eval-every", "1") == 1
    assert rival_interval() == 1, "as the stored comparison has it"


# --verbose


@pytest.mark.parametrize(
    "args",
    [
        ("--verbose", "zones"),
        ("zones", "--verbose"),
        ("plan", "--verbose", "s.toml"),
        ("plan", "s.toml", "--json", "--verbose"),
        ("data", "--verbose", "show"),
        ("data", "show", "--verbose"),
    ],
)
def test_verbose_works_anywhere(args: tuple[str, ...]) -> None:
    fine(*args)
    assert logging.getLogger("slackwater").level == logging.INFO
    fine(*(word for word in args if word != "--verbose"))
    assert logging.getLogger("slackwater").level == logging.WARNING


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_verbose(name: str) -> None:
    assert any("--verbose" in option.opts for option in COMMANDS[name].params)


def test_verbose_of_a_load_is_its_own() -> None:
    command = COMMANDS["calibrate"]
    context = command.make_context("calibrate", ["s.toml", "lyon", "--", "python", "x.py", "--verbose"])
    assert context.params["command"] == ("python", "x.py", "--verbose")


# Errors


@pytest.mark.parametrize(
    ("args", "message", "help_of"),
    [
        (("plann", "s.toml"), "No such command 'plann'.", "slackwater"),
        (("--vers",), "No such option", "slackwater"),
        (("plan",), "Missing argument 'SCENARIO'.", "slackwater plan"),
        (("plan", "s.toml", "--ends", "3"), "No such option", "slackwater plan"),
        (
            ("plan", "s.toml", "--solver", "best"),
            "Invalid value for '--solver': 'best' is not one of",
            "slackwater plan",
        ),
        (("plan", "s.toml", "--chart", "a.doc"), "Invalid value for '--chart'", "slackwater plan"),
        (("plan", "s.toml", "--out", ""), "Invalid value for '--out': it is empty", "slackwater plan"),
        (("rehearse", "s.toml", "--out", ""), "Invalid value for '--out': it is empty", "slackwater rehearse"),
        (("plan", "s.toml", "--out"), "Option '--out' requires an argument.", "slackwater plan"),
        (("plan", "s.toml", "more"), "Got unexpected extra argument", "slackwater plan"),
        (("data", "fetch", "GB"), "Missing option '--start'.", "slackwater data fetch"),
        (("data", "fetsh"), "No such command 'fetsh'.", "slackwater data"),
        (
            ("rivals", "s.toml", "--policies", "our"),
            "Invalid value for --policies: There is no method",
            "slackwater rivals",
        ),
        (("paper", "fig99"), "Invalid value for 'ITEM': 'fig99' is not one of", "slackwater paper"),
        (("paper",), "Missing argument 'ITEM'.", "slackwater paper"),
        (("train", "p.json", "--eval-every", "-1"), "Invalid value for '--eval-every'", "slackwater train"),
    ],
)
def test_usage_errors_have_the_form_of_all_errors(args: tuple[str, ...], message: str, help_of: str) -> None:
    result = run(*args)
    assert (result.exit_code, result.stdout) == (2, "")
    first, second = result.stderr.splitlines()
    assert first.startswith(f"error: {message}")
    assert second == f"For help: {help_of} --help"
    assert fine(*second.removeprefix("For help: slackwater ").split()).stdout.startswith("Usage: ")


@pytest.mark.parametrize("args", [(), ("data",), ("flower",)])
def test_a_group_alone_shows_its_help(args: tuple[str, ...]) -> None:
    assert "Commands:" in run(*args).output


# --out


def test_a_folder_with_a_plan_is_used_again() -> None:
    for _ in range(2):
        fine("plan", "s.toml", "--out", "run")
    fine("train", "run/plan.json", "--no-baseline", "--out", "run", *QUICK)
    assert Run.begun("run")


WRITERS = {
    "plan": ("plan", "s.toml"),
    "train": ("train", "plan.json"),
    "train without a baseline": ("train", "plan.json", "--no-baseline"),
    "train by a policy": ("train", "plan.json", "--policy", "fedzero"),
    "baseline": ("baseline", "s.toml"),
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("kind", ["simulated", "live"])
def test_no_command_writes_over_a_run(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fine("plan", "s.toml", "--out", ".")
    if kind == "live":
        fine("rehearse", "s.toml", "--out", "run", "--replan", "never")
    else:
        fine("train", "plan.json", "--no-baseline", "--out", "run", *QUICK)
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    monkeypatch.setattr("slackwater.cli.plan_commands.make_plan", lambda *_, **__: pytest.fail("planned"))
    result = run(*WRITERS[name], "--out", "run")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "error: run already holds a run, which is not overwritten. Name another folder with --out, or continue the run: "
        "slackwater resume run\n"
    )
    assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before
    assert not Path("run/baseline").exists()


@pytest.mark.parametrize("command", ["run", "rehearse"])
def test_a_live_run_is_not_overwritten_either(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fine("plan", "s.toml", "--out", ".")
    fine("train", "plan.json", "--no-baseline", "--out", "run", *QUICK)
    soon = SCENARIO.replace("2022", "2042") if command == "run" else SCENARIO
    Path("s.toml").write_text(soon)
    # Neither intensity is read nor a plan made before the folder is refused.
    monkeypatch.setattr(Scenario, "actuals", None)
    monkeypatch.setattr(Scenario, "problem", None)
    result = run(command, "s.toml", *(("--app", ".") if command == "run" else ()), "--out", "run")
    assert result.exit_code == 2
    assert result.stderr == (
        "error: run already holds a run. Resume it with: slackwater resume run. Or name another folder.\n"
    )


# Optional packages

NEED = {
    "plan --chart": ("matplotlib", ("plan", "s.toml", "--chart", "x.png")),
    "compare --chart": ("matplotlib", ("compare", "s.toml", "--chart", "x.png")),
    "savings --chart": ("matplotlib", ("savings", "--chart", "x.png")),
    "savings --chart-clients": ("matplotlib", ("savings", "--chart-clients", "x.png")),
    "forecast --chart": ("matplotlib", ("forecast", "DE", "--chart", "x.png")),
    "backtest --chart": ("matplotlib", ("backtest", "s.toml", "--chart", "x.png")),
    "data show --chart": ("matplotlib", ("data", "show", "--chart", "x.png")),
    "train --chart": ("matplotlib", ("train", "plan.json", "--chart", "x.png")),
    "baseline --chart": ("matplotlib", ("baseline", "s.toml", "--chart", "x.png")),
    "resume --chart": ("matplotlib", ("resume", "run", "--chart", "x.png")),
    "partition --chart": ("matplotlib", ("partition", "digits", "--chart", "x.png")),
    "rivals draws": ("matplotlib", ("rivals", "s.toml")),
    "paper draws": ("matplotlib", ("paper", "fig5", "--quick")),
    "report --pdf": ("fpdf", ("report", "run", "--pdf", "x.pdf")),
    "report --pdf draws": ("matplotlib", ("report", "run", "--pdf", "x.pdf")),
    "train": ("torch", ("train", "plan.json")),
    "train --policy": ("torch", ("train", "plan.json", "--policy", "fedzero")),
    "baseline": ("torch", ("baseline", "s.toml")),
    "partition": ("torch", ("partition", "digits")),
    "rivals": ("torch", ("rivals", "s.toml")),
    "paper": ("torch", ("paper", "fig5", "--quick")),
    "rehearse": ("torch", ("rehearse", "s.toml")),
    "resume": ("torch", ("resume", "run")),
    "resume a rehearsal": ("torch", ("resume", "stopped")),
    "rehearse --app": ("flwr", ("rehearse", "s.toml", "--app", ".")),
    "run": ("flwr", ("run", "s.toml", "--app", ".")),
}
EXTRAS = {"matplotlib": "charts", "fpdf": "report", "torch": "torch", "flwr": "flower"}
WITHOUT = """\
import sys
sys.modules[{module!r}] = None
import slackwater.intensity.load, slackwater.planning.planner, slackwater.scenario
def worked(*_, **__):
    raise AssertionError("the work began")
slackwater.scenario.Scenario.problem = worked
from slackwater.cli import main
main()
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a plan, a finished run and a prepared rehearsal."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "s.toml").write_text(SCENARIO)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        fine("plan", "s.toml", "--out", ".")
        fine("train", "plan.json", "--no-baseline", "--out", "run", *QUICK)
        patch.setattr("slackwater.engines.task_sites.carry_out_task", lambda folder, task=None: None)
        fine("rehearse", "s.toml", "--out", "stopped")
    return folder


@pytest.mark.parametrize("name", NEED)
def test_missing_packages_are_named_before_the_work(name: str, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, args = NEED[name]
    monkeypatch.chdir(runs)
    before = sorted(runs.rglob("*"))
    code = WITHOUT.format(module=module)
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    *_, last = done.stderr.splitlines()
    assert last.startswith("error: This needs "), done.stderr
    assert last.endswith(f"pip install 'slackwater[{EXTRAS[module]}]'")
    assert sorted(runs.rglob("*")) == before, "nothing is written"


def test_charts_and_pdf_are_not_needed_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    found = lazy.find_spec
    monkeypatch.setattr(lazy, "find_spec", lambda name: None if name in ("matplotlib", "fpdf", "flwr") else found(name))
    fine("plan", "s.toml", "--out", ".")
    fine("train", "plan.json", "--no-baseline", "--out", "run", *QUICK)
    fine("report", "run", "--html", "x.html")
