"""Flower's kinds of example apps, made carbon-aware by `slackwater flower adopt` and run: rounds, kg and metrics are kept."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from example_apps import EXAMPLES, write_example
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import FedXgbBagging
from plans import ZONES, final_model, small_plan
from processes import LINK, Deployment, flower_home, has_flower, slot_seconds
from recount import check

from slackwater.cli.main import cli
from slackwater.engines.flower.adopt import adopt
from slackwater.engines.flower.app import App
from slackwater.errors import ScenarioError, SlackwaterError
from slackwater.flower import CarbonAware, InProcessGrid, deployed, in_process
from slackwater.ledger.run import Run
from slackwater.live.folder import LiveSettings, prepare
from slackwater.live.status import read_status

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "live-on-flower.md"


def forget() -> None:
    """Unload the app, since every test has another of the same name."""
    for name in [name for name in sys.modules if name.split(".")[0] == "theirs"]:
        del sys.modules[name]
    importlib.invalidate_caches()


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    forget()
    yield
    forget()


def adopted(folder: Path, name: str) -> Path:
    app = write_example(folder, name)
    found = adopt(app)
    assert found.notes == ()
    found.write()
    return app


def lines_changed(app: Path) -> int:
    """Count the lines that adoption adds to the Python files; it removes none."""
    found = adopt(app)
    diffs = "".join(change.diff for change in found.changes if change.path.suffix == ".py")
    assert not re.findall(r"^-(?!--)", diffs, flags=re.MULTILINE)
    return len(re.findall(r"^\+(?!\+\+)", diffs, flags=re.MULTILINE))


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_adopted_example_is_planned_charged_and_keeps_its_metrics(name: str, tmp_path: Path) -> None:
    if EXAMPLES[name].needs:
        pytest.importorskip(EXAMPLES[name].needs)
    plan = small_plan()
    app, folder = adopted(tmp_path / "app", name), prepare(tmp_path / "run", plan, LiveSettings(slot_seconds=0.0))
    in_process(app, folder)
    found = check(folder)
    planned = int(np.count_nonzero(plan.matrix.any(axis=0)))
    assert found["rounds"] == planned
    with Run.open(folder, read_only=True) as run:
        spent, kept, rounds = run.ledger.spent_kg(), run.journal.metrics(), list(run.rounds())
    if name == "XGBoost cyclic":  # one client of those that are due
        assert spent < plan.emissions_kg
        assert {len(one.participants) for one in rounds} == {1}
    else:
        assert spent == pytest.approx(plan.emissions_kg)
    for one in rounds:
        assert EXAMPLES[name].metric in kept[one.slot][""]
        assert all(EXAMPLES[name].metric in kept[one.slot][client] for client in one.participants)
    if "analytics" not in name:
        assert any(np.any(value != 0) for value in final_model(folder).values())
    assert read_status(folder).metrics[EXAMPLES[name].metric] == pytest.approx(
        kept[rounds[-1].slot][""][EXAMPLES[name].metric]
    )


def test_what_each_example_shows(tmp_path: Path) -> None:
    """Trees grow by a tree a client, adapters leave the base alone, FedProx is sent its term, and noise is in the model."""
    pytest.importorskip("xgboost")
    import json

    models = {}
    for name in ("XGBoost bagging", "LoRA adapters", "NumPy, JAX", "central DP"):
        app = adopted(tmp_path / name / "app", name)
        folder = prepare(tmp_path / name / "run", small_plan(), LiveSettings(slot_seconds=0.0))
        in_process(app, folder)
        models[name] = final_model(folder)
        forget()
    trees = json.loads(models["XGBoost bagging"]["0"].tobytes())
    grown = int(trees["learner"]["gradient_booster"]["model"]["gbtree_model_param"]["num_trees"])
    assert grown == small_plan().matrix.sum()
    np.testing.assert_array_equal(models["LoRA adapters"]["base"], np.ones(4, dtype=np.float32))
    assert models["LoRA adapters"]["adapter"].any()
    assert not np.allclose(models["central DP"]["w"], models["NumPy, JAX"]["w"], atol=1e-4)


def test_trees_are_resumed(tmp_path: Path) -> None:
    pytest.importorskip("xgboost")
    app = App.read(adopted(tmp_path / "app", "XGBoost bagging"))
    client = app.load(app.client)
    models = {}
    for folder, limits in {"whole": [None], "parts": [2, None]}.items():
        for rounds in limits:
            carbon = CarbonAware(FedXgbBagging(), plan=small_plan(), ledger=tmp_path / folder, wait=False)
            first = ArrayRecord([np.frombuffer(b"", dtype=np.uint8)])
            grid = InProcessGrid(client, {name: {"zone": zone} for name, zone in ZONES.items()})
            result = carbon.start(grid, first, num_rounds=rounds, train_config=ConfigRecord({"lr": 0.1}))
        models[folder] = result.arrays["0"].numpy().tobytes()
    assert models["whole"] == models["parts"] != b""


def test_the_guide_has_the_table_of_examples(tmp_path: Path) -> None:
    rows = dict(re.findall(r"^\| ([^|]+?) \| [^|]+ \| (\d+) \|$", GUIDE.read_text(), flags=re.MULTILINE))
    wanted = {name: str(lines_changed(write_example(tmp_path / str(n), name))) for n, name in enumerate(EXAMPLES)}
    assert rows == wanted


def test_without_adoption_nothing_is_trained(tmp_path: Path) -> None:
    app = write_example(tmp_path / "app", "NumPy, JAX")
    folder = prepare(tmp_path / "run", small_plan(), LiveSettings(slot_seconds=0.0))
    with pytest.raises(ScenarioError, match=r"never calls Slackwater.*slackwater flower adopt"):
        in_process(app, folder)
    assert not Run.begun(folder)


def test_an_app_that_bypasses_its_wrapper_is_stopped_before_it_trains(tmp_path: Path) -> None:
    app = adopted(tmp_path / "app", "NumPy, JAX")
    server = app / "theirs" / "server_app.py"
    server.write_text(server.read_text().replace("strategy = CarbonAware(strategy, context=context)", "pass"))
    folder = prepare(tmp_path / "run", small_plan(), LiveSettings(slot_seconds=0.0))
    with pytest.raises(SlackwaterError, match="without Slackwater, so it would be neither planned nor charged"):
        in_process(app, folder)
    server.write_text(re.sub(r"(?s)    result = .*", "    assert strategy\n", server.read_text()))
    forget()
    with pytest.raises(SlackwaterError, match="ended without starting the run"):
        in_process(app, folder)


def test_an_app_whose_nodes_cannot_be_named_is_stopped_at_once(tmp_path: Path) -> None:
    app = adopted(tmp_path / "app", "NumPy, JAX")
    client = app / "theirs" / "client_app.py"
    client.write_text(client.read_text().replace("register(app, measure=True)\n", ""))
    folder = prepare(tmp_path / "run", small_plan(), LiveSettings(slot_seconds=0.0))
    with pytest.raises(ScenarioError, match=r"No node can be used.*register\(app\)"):
        in_process(app, folder)
    assert (folder / "refused.txt").read_text().startswith("No node can be used")
    assert not Run.begun(folder)


def test_adopt_shows_and_writes(tmp_path: Path) -> None:
    app = write_example(tmp_path / "app", "NumPy, JAX")
    before = (app / "pyproject.toml").read_text()
    shown = CliRunner().invoke(cli, ["flower", "adopt", str(app)])
    assert shown.exit_code == 0, shown.output
    assert '+slackwater-run = ""' in shown.output
    assert "+    strategy = CarbonAware(strategy, context=context)" in shown.output
    assert "+register(app, measure=True)" in shown.output
    assert "--node-config 'name=" in shown.output
    assert (app / "pyproject.toml").read_text() == before
    written = CliRunner().invoke(cli, ["flower", "adopt", str(app), "--write"])
    assert written.exit_code == 0, written.output
    text = (app / "pyproject.toml").read_text()
    assert 'slackwater-run = ""' in text
    assert "# of local training" in text  # comments stay
    assert "slackwater[flower]" in text
    again = CliRunner().invoke(cli, ["flower", "adopt", str(app)])
    assert "needs no changes" in again.output


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("server_app.py", "strategy.start(", "strategy.begin(", r"No strategy.start\(grid, ..\) was found"),
        ("client_app.py", "app = ClientApp()", "app = ClientApp(client_fn=print)", "has a client_fn"),
        ("client_app.py", "app = ClientApp()", "(app) = other = ClientApp()", "it was not found"),
    ],
)
def test_what_adopt_cannot_do_is_a_note(file: str, old: str, new: str, said: str, tmp_path: Path) -> None:
    app = write_example(tmp_path / "app", "NumPy, JAX")
    path = app / "theirs" / file
    path.write_text(path.read_text().replace(old, new))
    found = adopt(app)
    assert re.search(said, " ".join(found.notes))
    assert path not in [change.path for change in found.changes]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    sites = {
        name: {"zone": zone, "power-w": 300, "partition-id": i, "num-partitions": len(ZONES)}
        for i, (name, zone) in enumerate(ZONES.items())
    }
    with Deployment(tmp_path_factory.mktemp("net"), sites) as running, flower_home(running):
        yield running


@pytest.mark.processes
@pytest.mark.skipif(not has_flower() or os.name != "posix", reason="needs Flower's commands")
@pytest.mark.parametrize("name", ["own strategy", "custom mods"])
def test_on_a_superlink(name: str, federation: Deployment, tmp_path: Path) -> None:
    app, plan = adopted(tmp_path / "app", name), small_plan(rounds=2, slack=0, fine_tune=1)
    here = prepare(tmp_path / "here", plan, LiveSettings(slot_seconds=0.0))
    in_process(app, here)
    for longer in (1, 2):  # a machine that became busy meanwhile has another chance
        there = prepare(tmp_path / f"there-{longer}", plan, LiveSettings(slot_seconds=longer * slot_seconds(15.0)))
        deployed(app, LINK, there)
        check(there)
        with Run.open(there, read_only=True) as run:
            outcomes = {one.outcome for one in run.journal.attempts()}
            kept = run.journal.metrics()
        if outcomes == {"done"}:
            break
    else:
        pytest.fail(f"{outcomes}\n{federation.tail()}")
    np.testing.assert_allclose(final_model(there)["w"], final_model(here)["w"], rtol=0, atol=1e-6)
    assert all(EXAMPLES[name].metric in numbers[""] for numbers in kept.values())


@pytest.mark.processes
@pytest.mark.skipif(not has_flower() or os.name != "posix", reason="needs Flower's commands")
def test_on_a_superlink_an_app_that_never_starts_the_run_is_not_started_again(
    federation: Deployment, tmp_path: Path
) -> None:
    app = adopted(tmp_path / "app", "NumPy, JAX")
    server = app / "theirs" / "server_app.py"
    server.write_text(re.sub(r"(?s)    result = .*", "    assert strategy\n", server.read_text()))
    folder = prepare(tmp_path / "run", small_plan(rounds=2, slack=0), LiveSettings(slot_seconds=15.0))
    with pytest.raises(SlackwaterError, match="ended without starting the run"):
        deployed(app, LINK, folder)
