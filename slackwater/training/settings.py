"""Settings of a training run, and checks that plan, task and settings fit together."""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, dataclass, fields
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from slackwater.errors import MissingExtraError, ScenarioError
from slackwater.ledger.ledger import OverBudgetError
from slackwater.ledger.run import Run
from slackwater.ledger.score import ACCURACY
from slackwater.planning.exact import BUDGET_ROUNDING
from slackwater.planning.plan import DEFAULT_AGGREGATOR, Plan
from slackwater.planning.schedule import too_dear
from slackwater.planning.storage import plan_from_dict
from slackwater.training.aggregators import make_aggregator
from slackwater.training.global_model import IterateAverage, make_server
from slackwater.training.local import LocalWork, check_metric, resolved_precision
from slackwater.training.task import ModelMaker, Samples, Task

EVAL_EVERY = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one run; together with plan and task they determine its result bit for bit."""

    aggregator: str = DEFAULT_AGGREGATOR
    """Name, with a number if it takes one: `memory:0.8`."""
    local_steps: int = 30
    """The paper's tau; ignored if `local_epochs` is given."""
    local_epochs: int | None = None
    batch_size: int = 128
    lr: float = 0.1
    weight_decay: float = 5e-4
    seed: int = 0
    eval_every: int = EVAL_EVERY
    """Rounds (slots with participants) between evaluations on the test set; 0: only at the end."""
    training_loss: bool = True
    """Whether to compute F over all training data at the end; for a large set this takes as long as several rounds."""
    server: str = "plain"
    server_lr: float | None = None
    """Default: 1 for plain and momentum, 0.01 for adam."""
    memory_dtype: str = "float32"
    """Type of the updates that the aggregator stores. float32 keeps them unchanged; float16 and bfloat16 halve memory and
    disk space."""
    averaging: float | None = None
    """Number of last rounds whose global models are averaged, or their share if below 1; None: the last model."""
    devices_per_slot: int | None = None
    """Cross-device: number of devices of a scheduled client that train in a slot, drawn with equal probability."""
    device_kwh: float | None = None
    """Energy of one device in one slot; if set, the plan's energy of a client must be that of all its training devices."""
    device: str = "cpu"
    precision: str = "fp32"
    """Precision of the local steps: fp32, bf16, or auto (bf16 where the processor has instructions for it). A run stores
    the one that it uses, so that it resumes to the same bits elsewhere."""
    threads: int
    """Total processor threads; the last bits of a result depend on it."""
    tensorboard: bool = False

    def __post_init__(self) -> None:
        whole = {"local_steps": 1, "batch_size": 1, "seed": 0, "eval_every": 0, "threads": 1}
        whole |= {name: 1 for name in ("local_epochs", "devices_per_slot") if getattr(self, name) is not None}
        for name, least in whole.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ScenarioError(f"{name} must be a whole number of at least {least}, not {value!r}.")
        if not (self.lr > 0 and math.isfinite(self.lr)):
            raise ScenarioError(f"lr must be above 0, not {self.lr!r}.")
        if not (self.weight_decay >= 0 and math.isfinite(self.weight_decay)):
            raise ScenarioError(f"weight_decay must be 0 or above, not {self.weight_decay!r}.")
        if self.device_kwh is not None and (self.devices_per_slot is None or not self.device_kwh >= 0):
            raise ScenarioError(
                f"device_kwh is {self.device_kwh!r}; it must be 0 or above, and needs devices_per_slot."
            )
        make_aggregator(self.aggregator, self.memory_dtype)
        make_server(self.server, self.server_lr)
        if self.averaging is not None:
            IterateAverage(self.averaging, 1)
        if self.tensorboard and find_spec("tensorboard") is None:
            raise MissingExtraError("TensorBoard", "tensorboard")
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError) as error:
            raise ScenarioError(
                f"device {self.device!r} cannot be used ({str(error).splitlines()[0]}). Use device='cpu'."
            ) from None
        object.__setattr__(self, "precision", resolved_precision(self.precision, self.device))

    @property
    def work(self) -> LocalWork:
        """Return the local training of a client in a slot."""
        return LocalWork(
            steps=self.local_steps, epochs=self.local_epochs, batch_size=self.batch_size, lr=self.lr,
            weight_decay=self.weight_decay, precision=self.precision,
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Return the settings for the run's file."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Settings:
        """Return settings from the run's file; raise for those of a newer version."""
        unknown = set(data) - {field.name for field in fields(cls)}
        if unknown:
            raise ScenarioError(
                f"The run has settings that this version does not know: {', '.join(sorted(unknown))}. Upgrade with: "
                "pip install --upgrade slackwater"
            )
        return cls(**data)


def check(plan: Plan, task: Task, settings: Settings) -> None:
    """Raise if plan, task and settings do not fit together."""
    problem, count = plan.problem, len(plan.problem.fleet)
    if len(task.clients) != count:
        raise ScenarioError(
            f"The plan has {count} clients ({_named(problem.fleet.names)}), but the task {task.name!r} has data for "
            f"{len(task.clients)}. Make the task with clients={count}."
        )
    for what, given in (("client_tests", task.client_tests), ("devices", task.devices)):
        if given and len(given) != count:
            raise ScenarioError(
                f"The task {task.name!r} has {what} for {len(given)} clients, but the plan has {count}."
            )
    if not plan.packed.any():
        raise ScenarioError("No client trains in this plan. Plan with a larger budget.")
    if plan.emissions_kg > problem.budget_kg * (1 + 2 * BUDGET_ROUNDING):
        raise OverBudgetError(
            f"The plan emits {plan.emissions_kg:.9g} kg, over its budget of {problem.budget_kg:.9g} kg. Training "
            "does not start. Plan again."
        )
    if too_dear(problem, plan.money):
        raise OverBudgetError(
            f"The electricity of the plan costs {plan.money:.9g}, over budget_money = {problem.budget_money:.9g}. Training "
            "does not start. Plan again."
        )
    sampled = settings.devices_per_slot
    if bool(task.devices) != (sampled is not None):
        raise ScenarioError(
            f"The task {task.name!r} has devices: set devices_per_slot, the number that train in a scheduled slot."
            if task.devices
            else f"devices_per_slot is {sampled}, but the task {task.name!r} has no devices. Leave it out, or make a task with devices."
        )
    if sampled is not None:
        small = [i for i, region in enumerate(task.devices) if len(region) < sampled]
        if small:
            raise ScenarioError(
                f"devices_per_slot is {sampled}, but {problem.fleet.names[small[0]]!r} has "
                f"{len(task.devices[small[0]])} devices."
            )
    if sampled is not None and settings.device_kwh is not None:
        # A client of the plan is a region: the plan must charge its slot with the energy of all devices that train.
        together, fleet, planned = sampled * settings.device_kwh, problem.fleet, problem.costs.training_kwh
        wrong = np.flatnonzero(~np.isclose(planned, together * fleet.pue, rtol=1e-9, atol=0.0))
        if len(wrong):
            first = int(wrong[0])
            raise ScenarioError(
                f"{sampled} devices of {settings.device_kwh:g} kWh use {together:g} kWh in a slot, but the plan has "
                f"{planned[first] / fleet.pue[first]:g} kWh for {fleet.names[first]!r}, so the budget would not be kept. "
                f"Plan again with energy_kwh={together:g}."
            )


def check_model(task: Task, settings: Settings) -> None:
    """Raise if model, loss, metric and data do not fit together, before a run folder exists."""
    check_metric(ModelMaker(task, seed=settings.seed, device=torch.device(settings.device))(), task)


def notes_of(plan: Plan, task: Task, settings: Settings) -> tuple[str, ...]:
    """Return the warnings of a run, logged once at the start and kept in the result."""
    notes, names = [], plan.problem.fleet.names
    never = [str(names[client]) for client in plan.metrics.never] if plan.before else []
    if never:
        notes.append(
            f"{_named(never)} {'does' if len(never) == 1 else 'do'} not train before the fine-tuning window (pi = 0). The "
            f"global update is biased: the model learns little from {'it' if len(never) == 1 else 'them'}."
        )
    held = [s for region in task.devices for s in region] if task.devices else list(task.clients)
    small = sum(len(samples) < settings.batch_size for samples in held)
    if small:
        notes.append(
            f"{small} of {len(held)} {'devices' if task.devices else 'clients'} have fewer samples than a batch of "
            f"{settings.batch_size}; they use all samples in every step."
        )
    return tuple(notes)


def described(task: Task) -> dict[str, Any]:
    """Return the record of a task for the run's file: how it was made, and a fingerprint of its data."""
    digest = hashlib.sha256()
    for samples in task.clients:
        # Of a dataset that is read by the batch only the first sample: the whole would be read before every resume.
        first = samples.take(slice(0, 1))
        for tensor in (samples.y if isinstance(samples, Samples) else first[1], first[0]):
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return {
        "name": task.name,
        "record": dict(task.record),
        "samples": [len(samples) for samples in task.clients],
        "fingerprint": digest.hexdigest(),
        **({} if task.label == ACCURACY else {"metric": task.label.to_dict()}),
    }


def rebuilt(run: Run, data: str | None = None, named: str | None = None) -> Task:
    """Make a task again from its record.

    Args:
        run: The run.
        data: The new place of the data set's files.
        named: The task as the user names it now. Code from a file or module of one's own runs only if it is named, since a
            run folder may come from somebody else.
    """
    record: dict[str, Any] = run.task["record"]
    if "task" not in record:
        raise ScenarioError(
            f"The run in {run.folder} trains your own task {run.task['name']!r}, which cannot be recreated from its file. "
            "Resume it in Python with: slackwater.resume(out, task=task)."
        )
    from slackwater.training import tasks

    if named is not None:
        record = record | {"task": named}
    elif tasks.is_reference(record["task"]):
        raise ScenarioError(
            f"The run in {run.folder} trains the task {record['task']!r}. To run its code again, name it: "
            f"slackwater resume {run.folder} --task {record['task']}"
        )
    takes = tasks.option_names(record["task"])
    options = {key: value for key, value in record.items() if key in takes and value is not None}
    if data is not None and "data" in takes:
        options["data"] = data
    return tasks.make(record["task"], **options)


def plan_of(run: Run) -> Plan:
    """Return the plan that a run follows."""
    return plan_from_dict(run.plan, f"The plan of the run in {run.folder}")


def _named(names: Any, most: int = 8) -> str:
    listed = [str(name) for name in names]
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")
