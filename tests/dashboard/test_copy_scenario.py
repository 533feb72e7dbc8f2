from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

import slackwater as sw
from slackwater.errors import ScenarioError
from slackwater.planning.problem import Problem
from slackwater.scenario import SCENARIO, DataText, load_scenario, scenario_text, toml

NASTY = '<img src=x onerror="alert(1)"> \\ \' " \t \n \x7f \x1b[31m é 日本 \u202e'


def _read(text: str, folder: Path) -> Problem:
    path = folder / "copied.toml"
    path.write_text(text, encoding="utf-8")
    return load_scenario(path).problem()


def test_the_scenario_of_init_comes_back_as_the_same_problem(tmp_path: Path) -> None:
    problem = _read(SCENARIO, tmp_path).with_settings(budget_kg=2.5, slack=40, fine_tune=2, alpha="max-min:0.3")
    again = _read(scenario_text(problem, DataText(source="typical")), tmp_path)
    assert list(again.fleet) == list(problem.fleet)
    for key in (
        "rounds",
        "slack",
        "budget_kg",
        "alpha",
        "fine_tune",
        "start",
        "window",
        "max_parallel",
        "round_minutes",
    ):
        assert getattr(again, key) == getattr(problem, key)
    assert np.array_equal(again.costs.intensity, problem.costs.intensity)
    assert np.array_equal(sw.plan(again, end=20).packed, sw.plan(problem, end=20).packed)


def test_every_setting_is_written(tmp_path: Path) -> None:
    text = """\
start = 2022-01-01T00:30:00Z
rounds = 4
deadline = 2022-01-01T06:30:00Z
budget_kg = 1e2
slot_minutes = 30
round_minutes = 20.5
window = "available"
max_parallel = 1
model_mb = 12.5
network_kwh_per_gb = 0.02
evaluation_share = 0.05
[data]
factor = "direct"
[server]
zone = "IE"
power_w = 1.5
pue = 1.2
[report]
organisation = "Example \\"Labs\\""
preparer = "A. Person"
[[client]]
name = "a"
zone = "FR"
energy_kwh = 0.25
max_slots = 3
unavailable = ["sat,sun", "daily 08:00-10:00"]
[[client]]
name = "b"
zone = "FR"
power_w = 5
idle_w = 1
pue = 1.1
required = true
"""
    problem = _read(text, tmp_path)
    again = _read(scenario_text(problem, DataText(source="typical", factor="direct")), tmp_path)
    assert list(again.fleet) == list(problem.fleet)
    assert again.server == problem.server
    assert again.reported_by == problem.reported_by == {"organisation": 'Example "Labs"', "preparer": "A. Person"}
    assert again.horizon == problem.horizon
    for key in ("window", "max_parallel", "round_minutes", "start"):
        assert getattr(again, key) == getattr(problem, key)
    for made in (again, problem):
        assert (made.model_mb, made.network_kwh_per_gb, made.evaluation_share) == (12.5, 0.02, 0.05)
    assert again.traces.slot_minutes == 30
    assert again.traces.factor == "direct"


@pytest.mark.parametrize("text", [NASTY, "", "'''", '"""', "\\u0041", "a\r\nb = 1"])
def test_text_survives(text: str) -> None:
    assert tomllib.loads(toml({"x": text}))["x"] == text


def test_half_a_character_is_replaced() -> None:
    assert tomllib.loads(toml({"x": chr(0xD800)}))["x"] == "\ufffd"


def test_other_values_survive() -> None:
    for item in (True, 3, 0.1, 1e-9, 1e22, ["a", "b"], {"FR": ["x"], "a b": ["y"]}):
        assert tomllib.loads(toml({"x": item}))["x"] == item
    assert tomllib.loads(toml({"x": {"*": ("neso", "eia")}}))["x"] == ["neso", "eia"]


def test_what_a_file_cannot_hold_is_said() -> None:
    costs = Problem.from_costs(np.ones((2, 4)), rounds=2, slack=2, budget_kg=9.0)
    with pytest.raises(ScenarioError, match="from costs alone"):
        scenario_text(costs, DataText(source="typical"))
    with pytest.raises(ScenarioError, match="arrays"):
        scenario_text(
            Problem.from_costs(np.ones((2, 4)), rounds=2, slack=2, budget_kg=9.0, server_kg=[1, 1, 1, 1]),
            DataText(source="x"),
        )


def test_starts_levels_and_prices_are_written(tmp_path: Path) -> None:
    text = """\
start = 2022-01-01T00:00:00Z
rounds = 2
slack = 1
budget_kg = 3.0
min_parallel = 2
price_weight = 0.25
budget_money = 4.5
[price]
file = "prices.csv"
currency = "SEK"
unit = "SEK/MWh"
[[client]]
name = "a"
zone = "SE-SE3"
levels = [{power_w = 300, work = 1.0}, {power_w = 180, work = 0.85}]
unavailable = ["sat"]
[[client]]
name = "b"
zone = "SE-SE3"
power_w = 200
startup_kwh = 0.05
startup_minutes = 10
min_block_slots = 3
"""
    hours = [f"2022-01-01T0{hour}:00Z,{500 + hour}" for hour in range(3)]
    (tmp_path / "prices.csv").write_text("\n".join(["datetime_utc,SE-SE3", *hours]))
    problem = _read(text, tmp_path)
    section = load_scenario(tmp_path / "copied.toml").price
    again = _read(scenario_text(problem, DataText(source="typical", price=section)), tmp_path)
    assert list(again.fleet) == list(problem.fleet)
    assert again.fleet[0].levels[1] == sw.Level(180.0, 0.85)
    for key in ("min_parallel", "price_weight", "budget_money"):
        assert getattr(again, key) == getattr(problem, key)
    assert again.price is not None
    assert again.price.currency == "SEK"
    assert np.array_equal(again.costs.price, problem.costs.price)
    stored = scenario_text(problem, DataText(source="typical"))  # a plan knows only the name of the file
    assert tomllib.loads(stored)["price"] == {"file": f"{tmp_path.name}/prices.csv", "currency": "SEK"}
