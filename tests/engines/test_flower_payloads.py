"""Apps of any framework and arrays of any kind: NumPy and scikit-learn without PyTorch, subsets, complex numbers, bfloat16."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from light_app import light_app
from numpy.typing import NDArray
from plans import ZONES, small_plan
from recount import check

from slackwater.engines.flower.app import App
from slackwater.engines.flower.records import as_arrays, from_arrays, to_arrays
from slackwater.errors import ScenarioError
from slackwater.flower import GridTransport, InProcessGrid, measured, register
from slackwater.ledger import schema
from slackwater.ledger.run import Run
from slackwater.live.folder import LiveResult, LiveSettings, prepare
from slackwater.live.runner import carry_out
from slackwater.training.process import save_arrays
from slackwater.training.vectors import BFLOAT16, as_float, in_type

ROOT = Path(__file__).parents[2]
WITHOUT_TORCH = """
import sys
from importlib.machinery import PathFinder

class Without:
    find_distributions = PathFinder.find_distributions

    @staticmethod
    def find_spec(name, path=None, target=None):
        return None if name.split(".")[0] == "torch" else PathFinder.find_spec(name, path, target)

sys.meta_path[:] = [Without if finder is PathFinder else finder for finder in sys.meta_path]
from slackwater.cli.main import cli
try:
    cli()
finally:
    assert "torch" not in sys.modules
"""
Arrays = dict[str, NDArray[Any]]


def without_torch(*arguments: object, folder: Path) -> Any:
    """Return what a command printed as JSON, in a process that cannot import PyTorch."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "SLACKWATER_STATE": str(folder / "known")}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *map(str, arguments), "--json"],
        capture_output=True, text=True, cwd=folder, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(("name", "least"), [("numpy_app", 0.9), ("sklearn_app", 0.9)])
def test_the_examples_run_without_pytorch(tmp_path: Path, name: str, least: float) -> None:
    app = ROOT / "examples" / name
    found = without_torch(
        "rehearse", app / "scenario.toml", "--app", app, "--out", "run", "--aggregator", "echo", folder=tmp_path
    )
    assert found["stands"] == "done"
    assert found["accuracy"] > least
    assert found["spent_kg"] <= found["budget_kg"]
    assert not (tmp_path / "run" / "model.pt").exists()
    with np.load(tmp_path / "run" / "model.npz") as model, Run.open(tmp_path / "run", read_only=True) as run:
        assert sum(int(np.size(array)) for array in model.values()) == _numbers(run)
        assert "torch" not in str(run.task)
    assert without_torch("resume", "run", folder=tmp_path)["rounds"] == found["rounds"]


def _numbers(run: Run) -> int:
    (theta,) = (part for part in run.last_parts() if part.name == "model/theta")
    return int(np.prod(theta.shape))


def test_the_same_run_with_and_without_pytorch_gives_the_same_bits(tmp_path: Path) -> None:
    """The server computes with NumPy in both: the model does not depend on what else is installed."""
    app = light_app(tmp_path / "app")
    scenario = tmp_path / "scenario.toml"
    scenario.write_text((ROOT / "examples" / "numpy_app" / "scenario.toml").read_text())
    found = without_torch("rehearse", scenario, "--app", app, "--out", "one", "--replan", "never", folder=tmp_path)
    assert found["stands"] == "done"
    from slackwater import rehearse

    rehearse(scenario, app=app, out=tmp_path / "two", replan="never")
    with np.load(tmp_path / "one" / "model.npz") as one:
        two = torch.load(tmp_path / "two" / "model.pt", weights_only=True)
        assert np.array_equal(one["w"], two["w"].numpy())


def site_app(train: Callable[[Arrays, int], Arrays]) -> ClientApp:
    """An app whose clients apply a function to the model's arrays; the second argument is the partition."""
    app = register(ClientApp())

    @app.train()
    def local(msg: Message, context: Context) -> Message:
        with measured(msg, context, energy=False) as meter:
            sent = train(from_arrays(msg.content["arrays"]), int(context.node_config["partition-id"]))
        return meter.reply(sent, num_examples=10, loss=0.5)

    return app


def carried(folder: Path, initial: Arrays, train: Callable[[Arrays, int], Arrays], **settings: Any) -> LiveResult:
    prepare(folder, small_plan(), LiveSettings(**{"slot_seconds": 0.0, "aggregator": "echo"} | settings))
    grid = InProcessGrid(site_app(train), {name: {"zone": zone, "power-w": 300} for name, zone in ZONES.items()})
    done = carry_out(folder, GridTransport(grid, names=list(ZONES)), initial)
    check(folder)
    return done


def rejected(folder: Path) -> set[str]:
    with Run.open(folder, read_only=True) as run:
        return {one.error for one in run.journal.attempts(outcome="rejected")}


def halfway(target: complex, dtype: Any = None) -> Callable[[Arrays, int], Arrays]:
    return lambda arrays, partition: {
        name: (a + 0.5 * (target - a)).astype(dtype or a.dtype) for name, a in arrays.items()
    }


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_models(tmp_path: Path, dtype: Any) -> None:
    done = carried(tmp_path, {"w": np.zeros((2, 2), dtype), "f": np.zeros(3, np.float32)}, _complex)
    assert done.arrays["w"].dtype == dtype
    assert done.arrays["w"] == pytest.approx(np.full((2, 2), 1 + 2j), abs=0.1)
    assert done.arrays["f"].dtype == np.float32
    assert done.arrays["f"] == pytest.approx(np.ones(3), abs=0.1)
    assert torch.load(tmp_path / "model.pt", weights_only=True)["w"].is_complex()


def _complex(arrays: Arrays, partition: int) -> Arrays:
    return halfway(1 + 2j)({"w": arrays["w"]}, partition) | halfway(1.0)({"f": arrays["f"]}, partition)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_real_models_keep_their_type(tmp_path: Path, dtype: Any) -> None:
    done = carried(tmp_path, {"w": np.zeros(4, dtype)}, halfway(2.0))
    assert done.arrays["w"].dtype == dtype
    assert done.arrays["w"] == pytest.approx(np.full(4, 2.0), abs=0.1)


def test_bfloat16_as_jax_sends_it(tmp_path: Path) -> None:
    def train(arrays: Arrays, partition: int) -> Arrays:
        assert arrays["w"].dtype == BFLOAT16
        return {"w": in_type(0.5 * as_float(arrays["w"]) + 1.0, BFLOAT16)}

    done = carried(tmp_path, {"w": in_type(np.zeros(4), BFLOAT16)}, train, memory_dtype="bfloat16")
    assert as_float(done.arrays["w"]) == pytest.approx(np.full(4, 2.0), abs=0.1)
    assert torch.load(tmp_path / "model.pt", weights_only=True)["w"].dtype == torch.bfloat16


def test_bfloat16_tensors_become_float32_since_flower_cannot_send_them() -> None:
    tensor = torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16)
    with pytest.raises(TypeError):
        Array(tensor)
    arrays = as_arrays({"w": tensor, "i": torch.tensor([1j]).conj()})
    assert arrays["w"].dtype == np.float32
    assert arrays["w"].tolist() == [[1.5, -2.0]]
    assert arrays["i"].tolist() == [-1j]


def test_bfloat16_passes_through_flowers_records() -> None:
    model = {"w": in_type(np.array([[1.5], [-2.25]]), BFLOAT16), "b": np.array([0, 255, 7], dtype=np.uint8)}
    record = to_arrays(model)
    assert (record["w"].dtype, record["w"].shape) == ("bfloat16", (2, 1))
    back = from_arrays(ArrayRecord(dict(record)))
    assert all(np.array_equal(back[name], model[name]) for name in model)


def test_rounding_to_bfloat16_is_pytorchs() -> None:
    random = np.random.default_rng(0)
    values = (random.standard_normal(5000) * 10.0 ** random.uniform(-38, 38, 5000)).astype(np.float32)
    values[:4] = [0.0, -0.0, np.inf, np.nan]
    wanted = torch.from_numpy(values).bfloat16().float().numpy()
    np.testing.assert_array_equal(as_float(in_type(values, BFLOAT16)), wanted)


def test_a_client_may_return_some_of_the_models_arrays(tmp_path: Path) -> None:
    """A frozen body is never sent back; heads that are, are aggregated as in a model of heads alone."""
    body, head = np.arange(4, dtype=np.float32), np.zeros(3, np.float32)

    def train(arrays: Arrays, partition: int) -> Arrays:
        assert np.array_equal(arrays["body"], body)
        return halfway(1.0 + partition)({"head": arrays["head"]}, partition)

    done = carried(tmp_path / "whole", {"body": body, "head": head, "count": np.zeros((), np.int64)}, train)
    alone = carried(tmp_path / "alone", {"head": head}, lambda a, p: halfway(1.0 + p)(a, p))
    assert np.array_equal(done.arrays["body"], body)
    assert np.array_equal(done.arrays["head"], alone.arrays["head"])
    assert rejected(tmp_path / "whole") == set()
    with Run.open(tmp_path / "whole", read_only=True) as run:
        said = [message for _, _, _, message in run.events() if "of the model's" in message]
    assert len(said) == len(ZONES)  # once for each client, not in every round
    assert "lyon sends 1 of the model's 3 arrays; it keeps the others." in said


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        ({}, "replied without a model|none of the model's arrays"),
        ({"other": np.zeros(2)}, "its arrays differ from the model's (other)"),
        ({"w": np.zeros(2, complex)}, "w has type complex128, but the model has float32"),
        ({"w": np.array([b"ab", b"c"])}, "w has type bytes16, but the model has float32"),
    ],
)
def test_other_arrays_are_rejected_with_a_reason(tmp_path: Path, sent: Arrays, why: str) -> None:
    def train(arrays: Arrays, partition: int) -> Arrays:
        return sent if partition else halfway(1.0)(arrays, partition)

    done = carried(tmp_path, {"w": np.zeros(2, np.float32)}, train, max_rejections=99)
    assert {name for one in done.history for name in one.participants} == {"lyon"}  # the others are not used
    assert {any(one in error for one in why.split("|")) for error in rejected(tmp_path)} == {True}


@pytest.mark.parametrize(
    "model",
    [{"tree": np.frombuffer(b"a tree", dtype=np.uint8)}, {"w": np.zeros(2), "name": np.array(["a", "b"])}],
    ids=["bytes", "text"],
)
def test_a_model_that_cannot_be_averaged_is_told_before_anything_is_charged(tmp_path: Path, model: Arrays) -> None:
    with pytest.raises(ScenarioError, match=r"CarbonAware\(FedXgbBagging"):
        carried(tmp_path, model, halfway(1.0))
    with Run.open(tmp_path, read_only=True) as run:
        assert list(run.ledger.charges()) == []


def test_byte_arrays_beside_parameters_are_kept_as_they_are_sent(tmp_path: Path) -> None:
    mask = np.array([0, 255, 1], dtype=np.uint8)
    done = carried(tmp_path, {"w": np.zeros(2, np.float32), "mask": mask}, _train_w)
    assert np.array_equal(done.arrays["mask"], mask)


def _train_w(arrays: Arrays, partition: int) -> Arrays:
    return dict(arrays) | {"w": arrays["w"] + np.float32(1 + partition)}


def test_a_model_larger_than_a_value_of_sqlite_is_stored_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite holds at most 1 GB in one value; here 200 kB, for a model of 400 kB."""
    connect, limit = sqlite3.connect, 200_000
    limited: list[int] = []

    def small(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        limited.append(connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, limit))
        return connection

    monkeypatch.setattr(schema.sqlite3, "connect", small)
    large = {"w": np.zeros(100_000, np.float32)}
    assert large["w"].nbytes > limit
    done = carried(tmp_path, large, halfway(1.0))
    assert limited
    assert done.arrays["w"] == pytest.approx(np.ones(100_000), abs=0.1)
    again = carry_out(tmp_path, GridTransport(InProcessGrid(site_app(halfway(1.0)), {}), names=list(ZONES)), large)
    assert np.array_equal(again.arrays["w"], done.arrays["w"])


def test_a_type_that_pytorch_lacks_goes_to_npz(tmp_path: Path) -> None:
    model = {"file": np.zeros(2, np.longdouble), "a/b": np.ones((1, 2), np.float32)}
    path = save_arrays(tmp_path / "model.pt", model)
    assert path == tmp_path / "model.npz"
    with np.load(path) as found:
        assert {name: found[name].dtype for name in found} == {name: array.dtype for name, array in model.items()}


def test_an_app_that_needs_a_missing_package_says_which(tmp_path: Path) -> None:
    app = light_app(tmp_path / "app")
    client = app / "lightapp" / "client_app.py"
    client.write_text("import no_such_package.part\n" + client.read_text())
    found = App.read(app)
    with pytest.raises(ScenarioError, match="needs the package 'no_such_package', which is not installed"):
        found.load(found.client)
