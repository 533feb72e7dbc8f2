"""A plan from anywhere is read, or refused in a sentence with a way out; and it cannot fill the memory."""

from __future__ import annotations

import base64
import json
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import slackwater as sw
from slackwater.charts import terminal
from slackwater.cli.main import cli
from slackwater.planning.storage import LIMIT_VARIABLE, most_bytes, plan_from_dict

SCENARIO = """
start = 2022-03-01T00:00:00Z
rounds = 2
slack = 3
budget_kg = 1.0

[data]
source = "typical"

[[client]]
name = "lyon"
zone = "FR"
power_w = 300
"""


def packed(shape: tuple[int, ...], dtype: str = "|u1") -> dict[str, Any]:
    """Zeros as a plan holds them: a thousandth of their size."""
    packer = zlib.compressobj(9)
    size, piece = int(np.prod(shape)) * np.dtype(dtype).itemsize, bytes(1 << 20)
    parts = [packer.compress(piece[: size - start]) for start in range(0, size, len(piece))]
    return {
        "dtype": dtype,
        "shape": list(shape),
        "zlib": base64.b64encode(b"".join([*parts, packer.flush()])).decode(),
    }


@pytest.fixture(scope="module")
def good() -> dict[str, Any]:
    """A plan with every field filled in."""
    traces = sw.load_traces(zones=["FR", "DE", "SE-SE3"], start="2026-03-01T00:00Z", hours=30)
    problem = sw.Problem(
        clients=[
            sw.Client(name="lyon", zone="FR", power_w=300, idle_w=20, pue=1.2, min_slots=1, max_slots=9),
            sw.Client(name="köln", zone="DE", energy_kwh=0.2, unavailable=("daily 08:00-10:00",)),
        ],
        traces=traces,
        rounds=5,
        slack=8,
        fine_tune=2,
        budget_kg=5.0,
        round_minutes=20,
        server=sw.Server(zone="SE-SE3", power_w=100, pue=1.1),
        available=np.ones((2, 13), dtype=bool),
    )
    plan: dict[str, Any] = json.loads(json.dumps(sw.plan(problem, solver="greedy").to_dict()))
    return plan | {
        "recommended": {"aggregator": "echo", "settings": {"end": 3}, "error": 0.2, "why": ["because."]},
        "level": 0.5,
    }


def write(path: Path, plan: Any) -> Path:
    path.write_text(json.dumps(plan))
    return path


def refusal(path: Path) -> str:
    """What the command says of a plan, which must be a sentence and not a defect."""
    done = CliRunner().invoke(cli, ["train", str(path)])
    assert done.exit_code in (1, 2), done.output
    assert "defect" not in done.stderr
    assert done.stderr.startswith("error: ")
    return done.stderr.removeprefix("error: ").strip()


# -- sizes


def test_a_small_file_does_not_become_a_large_one(
    tmp_path: Path, good: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every shape fits the others, so the limit alone decides, and before anything is unpacked."""
    clients, slots = 400, 800_000
    columns = {key: packed((clients,), "<f8") for key in ("idle_w", "pue", "energy_kwh", "min_slots", "max_slots")}
    columns |= {"pue": [1.0] * clients, "power_w": [float("nan")] * clients, "names": [str(i) for i in range(clients)]}
    plan = good | {
        "clients": columns | {"zone": ["FR"] * clients, "unavailable": {}},
        "problem": good["problem"] | {"rounds": slots - 8, "available": None},
        "intensity_kg_per_kwh": {"zones": ["FR"], "values": packed((1, slots), "|u1")},
        "matrix": packed((clients, slots // 8)),
    }
    del plan["slot_starts"]
    path = write(tmp_path / "plan.json", plan)
    assert path.stat().st_size < 200_000
    monkeypatch.setenv(LIMIT_VARIABLE, "20")
    tracemalloc.start()
    try:
        said = refusal(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert said == (
        f"{path} would take 40 MB of memory, more than the 20 MB that a plan may take. If you trust its source, allow "
        f"more: {LIMIT_VARIABLE}=41"
    )
    assert peak < 20_000_000


def test_the_limit_holds_what_a_million_clients_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million clients over a year, by the sizes of their arrays."""
    monkeypatch.delenv(LIMIT_VARIABLE, raising=False)
    clients, slots = 1_000_000, 8_760
    assert clients * (-(-slots // 8) + 6 * 8) + 350 * slots * 8 < most_bytes() < 4.3e9


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"matrix": packed((2, 50_000_000))}, "packed array of shape [2, 50000000] instead of (2, 2)"),
        ({"matrix": packed((2, 50_000_000)) | {"shape": [2, 2]}}, "does not have the 4 bytes"),
        ({"matrix": packed((2, 2), "<f8")}, "an array of other numbers instead of bits"),
        ({"matrix": packed((2, 2)) | {"dtype": "O"}}, "object instead of numbers"),
        ({"matrix": packed((2, 2)) | {"dtype": "V1000000000"}}, "instead of numbers"),
        ({"matrix": packed((2, 2)) | {"dtype": "<f8,<f8"}}, "instead of numbers"),
        ({"matrix": packed((2, 2)) | {"zlib": "?"}}, "is damaged"),
        ({"matrix": packed((2, 2)) | {"zlib": "AAAA"}}, "is damaged"),
        ({"slot_starts": []}, "0 slots are listed, but rounds and slack make 13"),
        ({"matrix": [[7] * 13] * 2}, "other numbers than 0 and 1"),
    ],
)
def test_shapes_are_checked_before_anything_is_unpacked(
    tmp_path: Path, good: dict[str, Any], changes: dict[str, Any], said: str
) -> None:
    path = write(tmp_path / "plan.json", good | changes)
    tracemalloc.start()
    try:
        assert said in refusal(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 50_000_000


def test_the_limit_can_be_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clients = 40_000
    fleet = sw.Fleet.of(["FR"] * clients, power_w=300.0)
    traces = sw.load_traces(zones=["FR"], start="2022-01-01T00:00Z", hours=400)
    problem = sw.Problem(clients=fleet, traces=traces, rounds=400, fine_tune=0, budget_kg=1e6)
    sw.plan(problem).save(tmp_path / "plan.json")
    sw.Plan.load(tmp_path)
    size_mb = (tmp_path / "plan.json").stat().st_size / 1e6
    assert size_mb < 3
    monkeypatch.setenv(LIMIT_VARIABLE, "3")
    with pytest.raises(sw.SlackwaterError, match=rf"would take 4 MB .* allow more: {LIMIT_VARIABLE}=4"):
        sw.Plan.load(tmp_path)
    monkeypatch.setenv(LIMIT_VARIABLE, "1")
    with pytest.raises(sw.SlackwaterError, match=r"plan.json would take .* more than the 1 MB"):
        sw.Plan.load(tmp_path)
    for nonsense in ("many", "-1", "0", "1.5", "9" * 400):
        monkeypatch.setenv(LIMIT_VARIABLE, nonsense)
        with pytest.raises(sw.ScenarioError, match="give a whole number of megabytes"):
            sw.Plan.load(tmp_path)
    monkeypatch.setenv(LIMIT_VARIABLE, "10")
    assert len(sw.Plan.load(tmp_path).problem.fleet) == clients


def test_a_row_for_every_kind_of_availability_counts(good: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    slots, clients = 2_000_000, 10
    one = good["clients"][0]
    several = [one | {"name": f"c{i}", "unavailable": [f"daily 0{i}:00-0{i}:30"]} for i in range(clients)]
    plan = good | {
        "clients": several,
        "problem": good["problem"] | {"rounds": slots - 8, "available": None},
        "intensity_kg_per_kwh": {"zones": ["FR"], "values": packed((1, slots), "|u1")},
        "matrix": packed((clients, slots // 8)),
    }
    del plan["slot_starts"]
    monkeypatch.setenv(LIMIT_VARIABLE, "19")
    with pytest.raises(sw.SlackwaterError, match="The plan would take 20 MB"):
        plan_from_dict(plan, "The plan")


# -- damage


DAMAGED = {
    "nothing": b"",
    "garbage": b"\x00\x01\x02 garbage",
    "no UTF-8": b'{"format": "\xff"}',
    "UTF-16": '{"format": 1}'.encode("utf-16"),
    "half": b'{"format": 1, "matrix": [[1, 0',
    "deep": b'{"format":' * 100_000,
    "deep lists": b"[" * 100_000,
    "a number of 5000 digits": b'{"format": ' + b"9" * 5000 + b"}",
    "a list": b"[1, 2]",
    "null": b"null",
    "a text": b'"plan"',
    "a format only": b'{"format": 1}',
    "a format below all": b'{"format": -1}',
    "a format that is true": b'{"format": true}',
    "a format from the future": b'{"format": 99, "version": {"a": 1}}',
    "an infinite budget": b'{"format": 1, "problem": {"rounds": Infinity}}',
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_damage_is_a_sentence_with_a_way_out(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "plan.json").write_bytes(content)
    said = refusal(tmp_path / "plan.json")
    assert "plan.json" in said
    ways_out = ("Plan again to replace it.", "Plan again with: slackwater plan", "pip install --upgrade slackwater")
    assert any(way in said for way in ways_out)


def test_a_plan_cut_off_anywhere_is_damaged(tmp_path: Path, good: dict[str, Any]) -> None:
    text = json.dumps(good)
    for length in range(0, len(text), max(1, len(text) // 40)):
        (tmp_path / "plan.json").write_text(text[:length])
        with pytest.raises(sw.SlackwaterError, match=r"cannot be read as a plan: .* Plan again to replace it\."):
            sw.Plan.load(tmp_path)


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    for key, value in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield from places(value, (*path, key))


def spoilt(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = dict(data) if isinstance(data, dict) else list(data)
    copy[path[0]] = spoilt(copy[path[0]], path[1:], value)
    return copy


def lacking(data: Any, path: tuple[Any, ...]) -> Any:
    copy = dict(data) if isinstance(data, dict) else list(data)
    if len(path) == 1:
        del copy[path[0]]
    else:
        copy[path[0]] = lacking(copy[path[0]], path[1:])
    return copy


def used(plan: Any) -> None:
    """Read it and do what commands do with a plan; only sentences may come of it."""
    said = None
    try:
        loaded = plan_from_dict(plan, "The plan")
    except sw.SlackwaterError as error:
        said = str(error)
    if said is not None:
        assert said.startswith("The plan")
        assert len(said) < 700
        return
    loaded.metrics.to_dict()
    json.dumps(loaded.to_dict(), allow_nan=False)
    assert loaded.emissions_kg >= 0
    terminal.plan_summary(loaded)


NASTY: tuple[Any, ...] = (
    None, True, -1, 0, 3, 10**30, 10**400, 1.5, 1e308, float("nan"), float("inf"), "", "x", "٣", "\ud800", [], {}, [[]], [None],
    {"a": 1}, "9999-12-31T23:59:59-23:59", "2026-03-01T00:00Z", "2026-03-01T00:00",
    {"dtype": "|u1", "shape": [10**9, 10**9], "zlib": ""}, {"dtype": 3, "shape": None, "zlib": 1},
)  # fmt: skip


def test_any_value_in_any_place_is_read_or_refused(good: dict[str, Any]) -> None:
    first: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for path in places(good):  # entries of lists are alike: the first of each
        first.setdefault(tuple(0 if isinstance(key, int) else key for key in path), path)
    for path in first.values():
        for value in NASTY:
            used(spoilt(good, path, value))
        if path:
            used(lacking(good, path))


@settings(max_examples=200, derandomize=True, deadline=None)
@given(data=st.data())
def test_several_values_at_once_are_read_or_refused(good: dict[str, Any], data: st.DataObject) -> None:
    plan: Any = good
    anything = st.recursive(
        st.sampled_from(NASTY) | st.integers() | st.floats() | st.text(max_size=4),
        lambda inner: st.lists(inner),
        max_leaves=4,
    )
    for _ in range(data.draw(st.integers(1, 3))):
        listed = list(places(plan))
        plan = spoilt(plan, data.draw(st.sampled_from(listed)), data.draw(anything))
    used(plan)


# -- one thing where another belongs


def test_a_scenario_is_no_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("base.toml").write_text(SCENARIO)
    Path("base.txt").write_text(SCENARIO)
    assert refusal(Path("base.toml")) == (
        "base.toml is a scenario, not a plan. First run: slackwater plan base.toml --out run"
    )
    assert "base.txt is a scenario, not a plan." in refusal(Path("base.txt"))
    done = CliRunner().invoke(cli, ["plan", "base.toml", "--out", "run"])
    assert done.exit_code == 0, done.output
    assert sw.Plan.load("run")


@pytest.mark.parametrize("command", [["plan"], ["compare"], ["baseline"], ["run", "--app", "."]])
def test_a_plan_is_no_scenario(
    tmp_path: Path, good: dict[str, Any], monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("plan.json"), good)
    done = CliRunner().invoke(cli, [command[0], "plan.json", *command[1:]])
    assert done.exit_code == 2
    assert done.stderr.startswith(
        "error: plan.json is a plan, not a scenario. Train with it: slackwater train plan.json."
    )
    Path("other.json").write_text('{"a": 1}')
    assert "is not valid TOML" in CliRunner().invoke(cli, [command[0], "other.json", *command[1:]]).stderr


def test_the_file_of_a_run_is_no_plan(tmp_path: Path) -> None:
    (tmp_path / "run.db").write_bytes(b"SQLite format 3\0" + bytes(100))
    said = refusal(tmp_path / "run.db")
    assert (
        said
        == f"{tmp_path / 'run.db'} is the file of a run, not a plan. Show the run with: slackwater report {tmp_path}"
    )
