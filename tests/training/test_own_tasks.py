"""A task of the user's own: from tensors, datasets and loaders, with an optimiser and a step, named by its file."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from small_tasks import SCHEDULE, classes, plan_of
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from slackwater.cli.main import cli
from slackwater.errors import ScenarioError
from slackwater.training import tasks
from slackwater.training.local import LocalWork, batches, stream, train_locally
from slackwater.training.loop import Result, TrainingDiverged, resume, train
from slackwater.training.scoring import Metric
from slackwater.training.task import DatasetSamples, LocalStep, ModelMaker, Samples, Task, as_samples

FAST: dict[str, Any] = {"local_steps": 3, "batch_size": 16, "threads": 1}
PLAN = plan_of(SCHEDULE, window=1)
CPU = torch.device("cpu")


def same(one: Result, other: Result) -> bool:
    return all(torch.equal(one.model[key], other.model[key]) for key in one.model)


class Rows(Dataset[tuple[Tensor, Tensor]]):
    """A dataset that counts how often it is read."""

    def __init__(self, samples: Samples) -> None:
        self.samples, self.read = samples, 0

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        self.read += 1
        return self.samples.x[row], self.samples.y[row]


class Records(Rows):
    """A dataset whose items are dicts."""

    def __getitem__(self, row: int) -> Any:
        x, y = super().__getitem__(row)
        return {"features": x, "label": y}


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(zip(self.samples.x, self.samples.y, strict=True))


@pytest.mark.parametrize(
    "form",
    [
        lambda s: (s.x, s.y),
        lambda s: (s.x.double().numpy(), s.y.numpy()),
        lambda s: TensorDataset(s.x, s.y),
        Rows,
        lambda s: DataLoader(TensorDataset(s.x, s.y), batch_size=5, shuffle=True),
        lambda s: DataLoader(Stream(s), batch_size=7),
    ],
    ids=["tensors", "arrays", "tensor-dataset", "dataset", "loader", "stream"],
)
def test_every_form_of_data_trains_to_the_same_bits(form: Any) -> None:
    task = classes()
    wanted = train(PLAN, task, **FAST)
    other = replace(
        task,
        clients=[form(one) for one in task.clients],
        test=form(task.test),
        client_tests=[form(one) for one in task.client_tests],
    )
    found = train(PLAN, other, **FAST)
    assert same(wanted, found)
    assert (found.score, found.client_scores) == (wanted.score, wanted.client_scores)


def test_a_dataset_is_read_by_the_batch_only() -> None:
    task = classes(1, samples=400)
    rows = Rows(task.clients[0])
    model = ModelMaker(replace(task, clients=[rows]), seed=0, device=CPU)()
    rows.read = 0
    work = LocalWork(steps=2, epochs=None, batch_size=16, lr=0.1, weight_decay=0.0)
    train_locally(model, model.vector.clone(), {}, DatasetSamples(dataset=rows, collate=_stacked), task, work, 1)
    assert rows.read == 32


def _stacked(items: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    return torch.stack([x for x, _ in items]), torch.stack([y for _, y in items])


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ("x", "is str; give sw.Samples"),
        (torch.zeros(3), "is Tensor"),
        ({"x": 1}, "is dict"),
        (lambda: DataLoader(Stream(Samples(x=torch.zeros(0, 1), y=torch.zeros(0)))), "no batches"),
        ((torch.zeros(2, 5), ["a", "b"]), "The targets y are list; give a tensor or an array of numbers"),
        ((np.array(["a", "b"]), np.zeros(2)), "The inputs x are an array of <U1"),
        ((torch.zeros(0, 5), torch.zeros(0)), "client number 1 has no data .* leave the client out of the scenario"),
    ],
)
def test_data_that_is_none_is_a_sentence(data: Any, sentence: str) -> None:
    with pytest.raises(ScenarioError, match=sentence):
        replace(classes(1), clients=[data() if callable(data) else data])


def test_unequal_lengths_and_odd_items_are_sentences() -> None:
    with pytest.raises(ScenarioError, match="3 inputs x and 2 targets y"):
        Samples(x=torch.zeros(3, 1), y=torch.zeros(2))
    with pytest.raises(ScenarioError, match=r"each item of the dataset must be \(input, target\)"):
        ModelMaker(replace(classes(1), clients=[[torch.zeros(5), torch.ones(5)] * 2]), seed=0, device=CPU)


def test_items_that_are_dicts_need_a_collate_function() -> None:
    task = classes()
    dicts = [Records(one) for one in task.clients]
    with pytest.raises(
        ScenarioError, match=r"dict with features, label, .* give a DataLoader whose collate_fn returns"
    ):
        train(PLAN, replace(task, clients=dicts), **FAST)

    def pair(items: list[dict[str, Tensor]]) -> tuple[Tensor, Tensor]:
        return torch.stack([one["features"] for one in items]), torch.stack([one["label"] for one in items])

    loaders = [DataLoader(one, collate_fn=pair) for one in dicts]
    assert same(train(PLAN, task, **FAST), train(PLAN, replace(task, clients=loaders), **FAST))


def test_a_table_of_pandas_is_an_array() -> None:
    class Table:
        def to_numpy(self) -> Any:
            return np.ones((2, 3))

    samples = as_samples((Table(), np.array([0, 1])))
    assert isinstance(samples, Samples)
    assert (samples.x.dtype, samples.y.dtype) == (torch.float32, torch.int64)


def spoilt(samples: Samples, part: str, row: int, value: Any) -> Samples:
    kept = {"x": samples.x.clone(), "y": samples.y.clone()}
    kept[part][row] = value
    return Samples(**kept)


def regression(**changes: Any) -> Task:
    rng = torch.Generator().manual_seed(0)
    held = [Samples(x=x, y=x.sum(dim=1, keepdim=True)) for x in torch.randn(4, 30, 5, generator=rng)]
    fields: dict[str, Any] = {"clients": held[:3], "test": held[3], "loss": nn.functional.mse_loss, "metric": "mae"}
    return Task(name="sums", model=lambda: nn.Linear(5, 1), **fields | changes)


def fails(outputs: Tensor, targets: Tensor) -> float:
    return {"a": 1.0}["b"]


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        (lambda t: {"clients": [t.clients[0], spoilt(t.clients[1], "y", 7, math.nan), t.clients[2]]},
         "client number 2: sample 8 has no finite loss, because the target is not a finite number"),
        (lambda t: {"clients": [t.clients[0], t.clients[1], spoilt(t.clients[2], "x", 29, math.inf)]},
         "client number 3: sample 30 has no finite loss, because an input is not a finite number"),
        (lambda t: {"test": spoilt(t.test, "y", 3, math.nan)}, "the test set: sample 4 has no finite loss"),
        (lambda t: {"clients": [*t.clients[:2], Samples(x=torch.zeros(9, 6), y=torch.zeros(9, 1))]},
         r"client number 3: the model fails on inputs \[2, 6\] of torch.float32: RuntimeError: mat1 and mat2 shapes"),
        (lambda t: {"clients": [Samples(x=one.x.double(), y=one.y) for one in t.clients]},
         "'sums': the model fails on inputs .* of torch.float64: RuntimeError: .* same dtype"),
        (lambda t: {"client_tests": [*t.clients[:2], Samples(x=torch.zeros(9, 6), y=torch.zeros(9, 1))]},
         "the test set of client number 3: the model fails"),
        (lambda t: {"test": (torch.zeros(0, 5), torch.zeros(0, 1))}, "the test set is empty"),
        (lambda t: {"model": nn.Linear(5, 1)}, r"model is a module, .* a function that returns it: model=lambda: MyModel\(\)"),
        (lambda t: {"model": lambda: 3}, "model returns int, not a PyTorch module"),
        (lambda t: {"model": lambda: nn.Linear(5, "one")}, r"model fails: TypeError: .* \(test_own_tasks.py, line"),
        (lambda t: {"loss": "mse"}, "loss must be a function, not 'mse'"),
        (lambda t: {"optimiser": "adamw"}, "optimiser must be a function, not 'adamw'"),
        (lambda t: {"optimiser": lambda parameters, lr: None}, "optimiser returns NoneType, not a PyTorch optimiser"),
        (lambda t: {"optimiser": lambda parameters: None}, "optimiser fails: TypeError: .* takes 1 positional argument"),
        (lambda t: {"step": lambda step: 1 / 0}, "step fails on inputs .* ZeroDivisionError"),
        (lambda t: {"metric": fails}, r"The metric 'fails' fails on outputs \[30, 1\] .* KeyError: 'b' \(test_own_tasks.py, line"),
        (lambda t: {"metric": Metric(name="parts", compute=lambda o, y: o)}, r"'parts' returns \[30, 1\] for outputs"),
        (lambda t: {"model": lambda: nn.Linear(5, 2), "metric": "accuracy", "loss": nn.functional.cross_entropy,
                    "clients": [(one.x, torch.arange(30) % (4 if one is t.clients[2] else 2)) for one in t.clients],
                    "test": (t.test.x, torch.arange(30) % 2)},
         "client number 3: the loss fails on .* IndexError: Target 3 is out of bounds"),
    ],
)  # fmt: skip
def test_what_does_not_fit_in_any_part_of_the_data_is_a_sentence_before_training(
    broken: Any, sentence: str, tmp_path: Path
) -> None:
    task = regression()
    with pytest.raises(ScenarioError, match=sentence):
        train(PLAN, replace(task, **broken(task)), out=tmp_path / "run", **FAST)
    assert not (tmp_path / "run").exists()


def test_accuracy_of_a_regression_is_an_error_also_of_a_dataset() -> None:
    task = regression(metric="accuracy")
    with pytest.raises(ScenarioError, match="accuracy needs classes, but a target of the test set is"):
        train(PLAN, replace(task, test=Rows(task.test)), **FAST)


def test_clients_that_are_alike_are_not_tried_again() -> None:
    """A thousand clients must not cost a thousand forward passes."""
    passes: list[int] = []

    class Counted(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            passes.append(len(x))
            return super().forward(x)

    task = classes(1)
    many = replace(task, clients=[task.clients[0]] * 200, client_tests=(), model=lambda: Counted(5, 3))
    ModelMaker(many, seed=0, device=CPU)
    assert len(passes) <= 4


def test_a_model_may_fill_in_missing_values() -> None:
    """A missing measurement is NaN in many tables: it is an error only if the model cannot use it."""

    class Filled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(torch.nan_to_num(x))

    task = replace(regression(), model=lambda: Filled(5, 1))
    gaps = [spoilt(one, "x", 2, math.nan) for one in task.clients]
    assert math.isfinite(train(PLAN, replace(task, clients=gaps), **FAST).score)


def test_a_metric_of_ones_own_that_fails_for_one_client_only_is_met_before_training(tmp_path: Path) -> None:
    def positive(outputs: Tensor, targets: Tensor) -> float:
        if not (targets > 0).any():
            raise ValueError("only one class")
        return 1.0

    task = regression(metric=positive)
    tests = [*task.clients[:2], Samples(x=torch.zeros(9, 5), y=torch.zeros(9, 1))]
    with pytest.raises(ScenarioError, match=r"'positive' fails on .* ValueError: only one class"):
        train(PLAN, replace(task, client_tests=tests), out=tmp_path / "run", **FAST)
    assert not (tmp_path / "run").exists()


def test_an_error_in_the_middle_of_training_names_the_users_line() -> None:
    class Late(Rows):
        def __getitem__(self, row: int) -> Any:
            if row == 25:
                raise FileNotFoundError("row 25 is gone")
            return super().__getitem__(row)

    task = regression()
    sentence = r"A dataset cannot be read: FileNotFoundError: row 25 is gone \(test_own_tasks.py, line \d+\)\.$"
    with pytest.raises(ScenarioError, match=sentence):
        train(PLAN, replace(task, clients=[Late(one) for one in task.clients]), local_steps=9, batch_size=9, threads=1)


def test_a_dataset_with_a_gap_says_where_to_look() -> None:
    task = regression()
    gaps = [Rows(spoilt(one, "y", 20, math.nan)) for one in task.clients]
    with pytest.raises(TrainingDiverged, match="Or look for values that are not numbers in its dataset"):
        train(PLAN, replace(task, clients=gaps), local_steps=9, batch_size=9, threads=1)


def test_ones_own_optimiser_is_pytorchs() -> None:
    task = replace(classes(1), optimiser=torch.optim.AdamW)
    flat = ModelMaker(task, seed=3, device=CPU)()
    work = LocalWork(steps=4, epochs=None, batch_size=16, lr=0.01, weight_decay=5e-4)
    sent = train_locally(flat, flat.vector.clone(), {}, task.clients[0], task, work, 9)

    torch.manual_seed(3)
    module = task.model()
    before = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    optimiser = torch.optim.AdamW(module.parameters(), lr=0.01)
    for index in batches(len(task.clients[0]), work, stream(9, 0)):
        optimiser.zero_grad()
        task.loss(module(task.clients[0].x[index]), task.clients[0].y[index]).backward()
        optimiser.step()
    after = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    assert torch.equal(sent.update, before - after)
    assert all(p.grad is None for p in flat.parameters)


def test_ones_own_step_may_pull_towards_the_global_model() -> None:
    """FedProx: with a large pull the client stays nearer to the model from which it began."""
    seen: list[int] = []

    def step(strength: float) -> Any:
        def loss(now: LocalStep) -> Tensor:
            seen.append(now.number)
            apart = sum(((p - p0) ** 2).sum() for p, p0 in zip(now.module.parameters(), now.start, strict=True))
            return nn.functional.cross_entropy(now.module(now.x), now.y) + strength * apart

        return loss

    def norm(task: Task) -> float:
        flat = ModelMaker(task, seed=0, device=CPU)()
        work = LocalWork(steps=5, epochs=None, batch_size=16, lr=0.1, weight_decay=0.0)
        return float(train_locally(flat, flat.vector.clone(), {}, task.clients[0], task, work, 1).update.norm())

    plain = norm(classes(1))
    assert norm(replace(classes(1), step=step(0.0))) == pytest.approx(plain)
    assert norm(replace(classes(1), step=step(2.0))) < 0.8 * plain
    assert seen[-5:] == [0, 1, 2, 3, 4]


SOURCE = """
import torch
from torch import nn
import slackwater as sw

def make_task(clients=2, seed=0):
    rng = torch.Generator().manual_seed(seed)
    def draw(count):
        x = torch.randn(count, 3, generator=rng)
        return x, (x.sum(dim=1, keepdim=True) > 0).float()
    return sw.Task(
        name="mine", clients=[draw(40) for _ in range(clients)], test=draw(200), model=lambda: nn.Linear(3, 1),
        loss=nn.functional.binary_cross_entropy_with_logits, metric="auroc",
    )

def wrong():
    return 3

def fails(clients):
    raise RuntimeError("the database is down")

def needs(database):
    return 3

ready = make_task(3)
number = 3
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(tasks, "_imported", {})
    (tmp_path / "mine.py").write_text(SOURCE)
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "tasks.py").write_text(SOURCE)
    PLAN.save("plan.json")
    yield tmp_path
    for name in [name for name in sys.modules if name in ("_task_mine", "packed", "packed.tasks")]:
        del sys.modules[name]


NAMES = ("client-1", "client-2", "client-3")


@pytest.mark.parametrize("name", ["mine.py:make_task", "packed.tasks:make_task", "mine.py:ready"])
def test_a_task_is_named_by_its_place(here: Path, name: str) -> None:
    task = tasks.make_for(name, NAMES, seed=0)
    assert (task.name, len(task.clients)) == ("mine", 3)
    assert task.record["task"] == (f"{here / 'mine.py'}:{name.split(':')[1]}" if ".py" in name else name)


def test_a_site_makes_its_own_part(here: Path) -> None:
    (here / "sites.py").write_text(
        "from mine import make_task as whole\nfrom dataclasses import replace\n"
        "def make_task(client=None, names=None):\n"
        "    task = whole(3)\n"
        "    return task if client is None else replace(task, clients=task.clients[1:2] if client else ())\n"
    )
    assert len(tasks.make_for("sites.py:make_task", NAMES).clients) == 3
    assert len(tasks.make_for("sites.py:make_task", NAMES, client="client-2").clients) == 1
    assert len(tasks.make_for("sites.py:make_task", NAMES, client="").clients) == 0


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("mine.py", "names a file. Name the function in it"),
        ("mine.py:make_taks", "has no 'make_taks'. Did you mean 'make_task'?"),
        ("gone.py:make_task", "There is no file"),
        ("gone.tasks:make_task", "there is no module 'gone'"),
        ("mine.py:", "names no task. Write a file and its function"),
        ("mine.py:number", "neither a function that returns a Task, nor a Task"),
        ("mine.py:wrong", "returns int, not a sw.Task"),
        (
            "mine.py:fails",
            "function of task 'mine.py:fails' failed: RuntimeError: the database is down (mine.py, line 20).",
        ),
        ("mine.py:needs", "TypeError: needs() missing 1 required positional argument: 'database'"),
        ("broken.py:make_task", "cannot be loaded: ZeroDivisionError"),
    ],
)
def test_a_wrong_name_is_a_sentence(here: Path, name: str, sentence: str) -> None:
    (here / "broken.py").write_text("1 / 0")
    result = CliRunner().invoke(cli, ["train", "plan.json", "--task", name])
    assert result.exit_code == 2
    assert sentence in result.output
    assert not (here / "run").exists()


def test_train_and_resume_on_the_command_line(here: Path) -> None:
    run = ["train", "plan.json", "--task", "mine.py:make_task", "--no-baseline", "--out", "run", "--local-steps", "5"]
    result = CliRunner().invoke(cli, run)
    assert result.exit_code == 0, result.output
    assert "AUROC 0." in result.output
    assert "ccuracy" not in result.output
    refused = CliRunner().invoke(cli, ["resume", "run"])
    assert refused.exit_code == 2
    assert f"name it: slackwater resume run --task {here / 'mine.py'}:make_task" in refused.output
    resumed = CliRunner().invoke(cli, ["resume", "run", "--task", "mine.py:make_task", "--json"])
    assert resumed.exit_code == 0, resumed.output
    assert '"metric": {"name": "AUROC", "higher_is_better": true, "unit": ""}' in resumed.output
    report = CliRunner().invoke(cli, ["report", "run"])
    assert "AUROC" in report.output
    with pytest.raises(ScenarioError, match="To run its code again, name it"):
        resume("run")


def test_a_run_folder_cannot_make_us_run_code(here: Path) -> None:
    """The record of a foreign run names a file; it runs only if the user names it."""
    CliRunner().invoke(cli, ["train", "plan.json", "--task", "mine.py:make_task", "--no-baseline", "--out", "run"])
    tasks._imported.clear()
    (here / "mine.py").write_text("raise SystemExit('ran')")
    assert "ran" not in CliRunner().invoke(cli, ["resume", "run"]).output


def test_a_task_that_does_not_fit_leaves_no_run_behind(here: Path) -> None:
    task = replace(
        tasks.make_for("mine.py:make_task", NAMES), metric="rmse", test=(torch.zeros(4, 3), torch.zeros(4, 2))
    )
    bad = replace(task, clients=[(torch.zeros(4, 3), torch.zeros(4, 1)) for _ in NAMES], model=lambda: nn.Linear(3, 2))
    with pytest.raises(ScenarioError, match="needs the same shape"):
        train(PLAN, bad, out="run", **FAST)
    assert not (here / "run").exists()


def test_the_number_of_clients_is_checked(here: Path) -> None:
    two = plan_of(np.ones((2, 3)))
    with pytest.raises(ScenarioError, match="The plan has 2 clients"):
        train(two, tasks.make_for("mine.py:ready", NAMES[:2]), **FAST)
