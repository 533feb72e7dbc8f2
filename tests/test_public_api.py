"""`import slackwater` is all a user needs: every public name is documented, light to import and short to print."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import slackwater as sw
from slackwater import errors
from slackwater.scenario import SCENARIO

NAMES = [name for name in sw.__all__ if name != "__version__"]


def test_dir_is_the_public_list() -> None:
    assert dir(sw) == sw.__all__ == sorted(sw.__all__)
    assert {
        "load_scenario",
        "plan",
        "compare",
        "savings",
        "forecast",
        "train",
        "run",
        "rehearse",
        "report",
        "Ledger",
    } <= {*sw.__all__}
    with pytest.raises(AttributeError, match="nonsense"):
        sw.nonsense  # noqa: B018


def test_all_errors_of_the_tree_are_public() -> None:
    tree = {name for name, found in vars(errors).items() if isinstance(found, type) and issubclass(found, Exception)}
    assert tree <= {*sw.__all__}


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_documented(name: str) -> None:
    found = getattr(sw, name)
    written = inspect.getdoc(found) or ""
    assert written, f"{name} has no docstring"
    if isinstance(found, type) or not callable(found):
        return
    needed = [one for one in inspect.signature(found).parameters.values() if one.default is inspect.Parameter.empty]
    assert not needed or "Args:\n" in written, f"{name} takes arguments that its docstring does not explain"


@pytest.mark.parametrize("name", [name for name in NAMES if inspect.isfunction(getattr(sw, name))])
def test_args_sections_name_parameters_that_exist(name: str) -> None:
    function = getattr(sw, name)
    _, _, section = (inspect.getdoc(function) or "").partition("Args:\n")
    explained = [line.strip().split(":")[0] for line in section.split("\n\n")[0].splitlines() if line[4:5].strip()]
    assert set(explained) <= set(inspect.signature(function).parameters)


def test_report_is_a_package_that_can_be_called(tmp_path: Path) -> None:
    import slackwater.charts.style

    assert slackwater.charts.style.SUFFIXES
    with pytest.raises(sw.SlackwaterError, match="There is no run"):
        sw.report(tmp_path)
    with pytest.raises(sw.ScenarioError, match="must end in"):
        sw.report(tmp_path, out="report.docx")


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, slackwater; print([m for m in ('numpy', 'pydantic', 'click', 'rich', 'torch') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_what_a_user_prints_is_short(tmp_path: Path) -> None:
    (tmp_path / "scenario.toml").write_text(SCENARIO, encoding="utf-8")
    scenario = sw.load_scenario(tmp_path / "scenario.toml")
    problem = scenario.problem()
    made = sw.plan(problem, end=20)
    study = sw.savings(problem.traces, hours=10, slack=20, starts=2)
    for found, lines in ((scenario, 1), (problem, 1), (problem.traces, 1), (made, 3), (study, 1)):
        assert len(repr(found).splitlines()) == lines
        assert len(repr(found)) < 110 * lines + len(str(tmp_path))
    assert "optimal" in repr(made)
    assert "synthetic" in repr(problem.traces)


def test_forecast_looks_ahead_of_the_traces() -> None:
    traces = sw.load_traces(zones=["FR"], hours=24 * 40)
    ahead = sw.forecast(traces, hours=30, method="same-hour-mean", days=7)
    assert (ahead.start, ahead.slots) == (traces.end, 30)
