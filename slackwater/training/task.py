"""A task: the model, the data of each client, the test set and the metric. Also a model as one flat vector."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from slackwater.errors import ScenarioError
from slackwater.ledger.score import MetricLabel
from slackwater.training import scoring
from slackwater.training.scoring import Compute, Metric
from slackwater.training.users_code import users_code

if TYPE_CHECKING:
    from torch.optim import Optimizer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Samples:
    """Inputs and targets, in memory; the first dimension is the sample."""

    x: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ScenarioError(
                f"There are {len(self.x)} inputs x and {len(self.y)} targets y; give one target for each input."
            )

    def __len__(self) -> int:
        return len(self.x)

    def take(self, index: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Return the inputs and targets of some samples."""
        if isinstance(index, Tensor):
            index = index.to(self.x.device, non_blocking=True)
        return self.x[index], self.y[index]

    def on(self, device: torch.device) -> Samples:
        """Return the samples on a device."""
        return Samples(x=self.x.to(device), y=self.y.to(device))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DatasetSamples:
    """A PyTorch dataset that is read by the batch, so that it need not fit into memory."""

    dataset: Any
    """A map-style dataset: it has a length, and item i is an input and a target."""
    collate: Callable[[list[Any]], Any]

    def __len__(self) -> int:
        return len(self.dataset)

    def take(self, index: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Return the inputs and targets of some samples."""
        rows = range(len(self))[index] if isinstance(index, slice) else index.tolist()
        with users_code("A dataset cannot be read"):
            batch = self.collate([self.dataset[row] for row in rows])
        return _pair(batch)

    def on(self, device: torch.device) -> DatasetSamples:
        """Return the same: each batch is moved when it is read."""
        return self


Data = Samples | DatasetSamples


def as_samples(data: Any) -> Data:
    """Return samples from tensors or arrays (x, y), from a `Dataset`, or from a `DataLoader`.

    Arrays of NumPy and pandas become tensors; 64-bit floats, their default, become 32-bit as models are. Of a `DataLoader`
    its dataset and its collate function are used: the run chooses the batches, so that it can be resumed to the same bits.
    One over an `IterableDataset` is read into memory once.
    """
    if isinstance(data, Samples | DatasetSamples):
        return data
    if isinstance(data, tuple | list) and len(data) == 2 and any(_is_array(part) for part in data):
        return Samples(x=_tensor(data[0], "inputs x"), y=_tensor(data[1], "targets y"))
    from torch.utils.data import DataLoader, IterableDataset, default_collate

    if isinstance(data, DataLoader):
        if not isinstance(data.dataset, IterableDataset):
            return DatasetSamples(dataset=data.dataset, collate=data.collate_fn)
        pairs = [_pair(batch) for batch in data]
        if not pairs:
            raise ScenarioError("A DataLoader has no batches; give every client data.")
        return Samples(x=torch.cat([x for x, _ in pairs]), y=torch.cat([y for _, y in pairs]))
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, str | Mapping | Tensor):
        return DatasetSamples(dataset=data, collate=default_collate)
    raise ScenarioError(
        f"The data of a client is {type(data).__name__}; give sw.Samples(x=.., y=..), a pair of tensors or arrays, a Dataset "
        "with a length, or a DataLoader."
    )


def _is_array(part: Any) -> bool:
    return isinstance(part, Tensor | np.ndarray) or hasattr(part, "to_numpy")


def _tensor(part: Any, what: str) -> Tensor:
    """Return a tensor of a part of the data, which may be an array of NumPy or a column or table of pandas."""
    if isinstance(part, Tensor):
        return part
    array = np.asarray(part.to_numpy() if hasattr(part, "to_numpy") else part)
    if not _is_array(part) or array.dtype.kind not in "biuf":
        kind = f"an array of {array.dtype}" if _is_array(part) else type(part).__name__
        raise ScenarioError(f"The {what} are {kind}; give a tensor or an array of numbers.")
    made = torch.tensor(array)
    return made.float() if made.dtype == torch.float64 else made


def _pair(batch: Any) -> tuple[Tensor, Tensor]:
    if isinstance(batch, tuple | list) and len(batch) == 2 and all(isinstance(part, Tensor) for part in batch):
        return batch[0], batch[1]
    keys = f" with {', '.join(map(str, batch))}" if isinstance(batch, Mapping) else ""
    raise ScenarioError(
        f"A batch is {type(batch).__name__}{keys}, not a pair of tensors: each item of the dataset must be (input, target). For "
        "other items give a DataLoader whose collate_fn returns (inputs, targets)."
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LocalStep:
    """One step of local training, as a task's own `step` receives it."""

    module: nn.Module
    x: Tensor
    y: Tensor
    start: tuple[Tensor, ...]
    """Parameters of the global model from which the client began, in the order of `module.parameters()`."""
    number: int
    """Step in this round, counted from 0."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """One learning task, split over the clients of a plan, in the plan's order."""

    name: str
    clients: Sequence[Any]
    """Training data of each client: `Samples`, a pair of tensors or arrays (x, y), a `Dataset` or a `DataLoader`."""
    test: Any
    """The global test set, in the same forms."""
    model: Callable[[], nn.Module]
    """Returns a new model; the caller has seeded torch's generator."""
    loss: Callable[[Tensor, Tensor], Tensor] = nn.functional.cross_entropy
    """loss(outputs, targets), the mean over the batch."""
    metric: str | Metric | Compute = "accuracy"
    """Score on the test set: accuracy, auroc, f1, mae, rmse, perplexity, a function of (outputs, targets), or a `Metric`."""
    optimiser: Callable[..., Optimizer] | None = None
    """Local optimiser, called with the parameters and the learning rate in each round: `torch.optim.AdamW`. Default: plain
    SGD with the run's weight decay; an own optimiser has its own."""
    step: Callable[[LocalStep], Tensor] | None = None
    """Returns the loss of a local step, which is then differentiated: for a proximal term or a second input. Default: `loss`
    of the model's outputs."""
    client_tests: Sequence[Any] = ()
    """Test data of each client's own distribution, for a score per client; may be empty."""
    devices: Sequence[Sequence[Any]] = ()
    """Cross-device: the devices of each client, where a client of the plan is a region; may be empty."""
    record: Mapping[str, object] = field(default_factory=dict)
    """How the task was made, for the run's file: data set, partition, seed."""

    def __post_init__(self) -> None:
        put = object.__setattr__
        for key in ("clients", "client_tests"):
            put(self, key, tuple(as_samples(data) for data in getattr(self, key)))
        put(self, "test", as_samples(self.test))
        put(self, "devices", tuple(tuple(as_samples(data) for data in region) for region in self.devices))
        _ = self.label  # an unknown metric is an error now
        for key in ("model", "loss", "optimiser", "step"):
            given = getattr(self, key)
            if isinstance(given, nn.Module) and key == "model":
                raise ScenarioError(
                    f"Task {self.name!r}: model is a module, but every run starts with a new one. Give a function that returns "
                    "it: model=lambda: MyModel()."
                )
            if not callable(given) and not (given is None and key in ("optimiser", "step")):
                raise ScenarioError(f"Task {self.name!r}: {key} must be a function, not {given!r:.60}.")
        empty = [i for i, samples in enumerate(self.clients) if len(samples) == 0]
        if empty:
            split = "Use another seed, a larger beta or fewer clients."
            raise ScenarioError(
                f"Task {self.name!r}: client number {empty[0] + 1} has no data ({len(empty)} of {len(self.clients)} clients have none). "
                + (split if self.record.get("partition") else "Give it data, or leave the client out of the scenario.")
            )

    @property
    def scored_by(self) -> str | Metric:
        """Return the metric: the key of a known one, or the user's own."""
        return scoring.resolved(self.metric)

    @property
    def label(self) -> MetricLabel:
        """Return name, direction and unit of the metric."""
        return scoring.label(self.scored_by)

    def training_loss(self, step: LocalStep, inputs: Tensor) -> Tensor:
        """Return the loss of a local step; `inputs` is x in the model's memory order."""
        if self.step is not None:
            return self.step(step)
        return self.loss(step.module(inputs), step.y)


class FlatModel:
    """A module on a device, with its parameters in `vector` and its buffers (BatchNorm's statistics) beside it."""

    def __init__(self, module: nn.Module, *, device: torch.device, channels_last: bool) -> None:
        self.module = module.to(device)
        self.channels_last = channels_last
        self.parameters = [p for p in self.module.parameters() if p.requires_grad]
        if not self.parameters:
            raise ScenarioError(
                "The task's model has no trainable parameters: it has none, or all have requires_grad=False."
            )
        kinds = {p.dtype for p in self.parameters}
        if len(kinds) > 1:
            raise ScenarioError(
                f"The model mixes parameters of {', '.join(sorted(map(str, kinds)))}; give them one type."
            )
        self.vector = torch.empty(sum(p.numel() for p in self.parameters), dtype=kinds.pop(), device=device)
        self.buffers = dict(self.module.named_buffers())
        offset = 0
        for parameter in self.parameters:
            part = self.vector[offset : offset + parameter.numel()]
            offset += parameter.numel()
            view = part.view_as(parameter)
            if channels_last and parameter.dim() == 4:
                # Convolutions are fastest in this memory order: 15 to 30 % less time per step on a CPU.
                outputs, inputs, height, width = parameter.shape
                view = part.view(outputs, height, width, inputs).permute(0, 3, 1, 2)
            view.copy_(parameter.detach())
            parameter.data = view

    def load(self, vector: Tensor, buffers: Mapping[str, Tensor]) -> None:
        """Load a global model."""
        self.vector.copy_(vector)
        for name, buffer in self.buffers.items():
            buffer.copy_(buffers[name])

    def copy_buffers(self) -> dict[str, Tensor]:
        """Return a copy of the buffers."""
        return {name: buffer.detach().clone() for name, buffer in self.buffers.items()}

    def state_dict(self) -> dict[str, Tensor]:
        """Return a copy to save, as PyTorch's usual state dict."""
        return {
            name: value.detach().cpu().clone(memory_format=torch.contiguous_format)
            for name, value in self.module.state_dict().items()
        }

    def inputs(self, x: Tensor) -> Tensor:
        """Return inputs in the model's memory order."""
        if self.channels_last and x.dim() == 4:
            return x.contiguous(memory_format=torch.channels_last)
        return x


class ModelMaker:
    """Makes flat models of a task with the same initial parameters, and holds what a trial pass showed."""

    def __init__(self, task: Task, *, seed: int, device: torch.device, trial: bool = True) -> None:
        """Make the model; `trial=False` skips the trial pass, which a server without training data cannot run."""
        with torch.random.fork_rng(devices=[]):  # do not change the user's random state
            torch.manual_seed(seed)
            with users_code(f"Task {task.name!r}: model fails"):
                self._module = task.model()
        if not isinstance(self._module, nn.Module):
            raise ScenarioError(
                f"Task {task.name!r}: model returns {type(self._module).__name__}, not a PyTorch module."
            )
        self._device = device
        self.channels_last = any(p.dim() == 4 for p in self._module.parameters())
        self.random = False
        """Whether training draws from PyTorch's global generator, as dropout does: then clients train one by one."""
        self.flops = 0.0
        """Floating-point operations of a step per sample: about three times those of the forward pass."""
        if not trial:
            return
        if len(task.test):
            whole = isinstance(task.test, Samples)
            targets = task.test.take(slice(None if whole else _LOOKED))[1]
            scoring.check_test_set(task.name, task.scored_by, targets, whole=whole)
        with torch.random.fork_rng(devices=[]):
            try:
                self._try(task)
            except ScenarioError as error:
                if not (self.channels_last and isinstance(error.__cause__, RuntimeError)):
                    raise
                # A model that calls .view() on the output of a convolution needs the usual memory order.
                self.channels_last = False
                self._try(task)

    def __call__(self) -> FlatModel:
        """Return a new model with the initial parameters."""
        return FlatModel(copy.deepcopy(self._module), device=self._device, channels_last=self.channels_last)

    def _try(self, task: Task) -> None:
        """Run a forward pass over two samples of the first client, then over those of the others that may differ."""
        model = self()
        before = torch.get_rng_state()  # a dataset may draw random numbers too, to augment its images
        told = f"Task {task.name!r}"
        first = task.clients[0].take(slice(0, 2))  # one is too few for BatchNorm
        with _products(model.module) as counted:
            self._try_samples(model, task, told, first)
        if task.optimiser is not None:
            with users_code(f"{told}: optimiser fails"):
                made = task.optimiser(model.parameters, 0.1)
            if not isinstance(made, torch.optim.Optimizer):
                raise ScenarioError(f"{told}: optimiser returns {type(made).__name__}, not a PyTorch optimiser.")
        if task.step is not None:
            x, y = (part.to(self._device) for part in first)
            began = tuple(p.detach().clone() for p in model.parameters)
            with users_code(f"{told}: step fails on inputs {list(x.shape)} and targets {list(y.shape)}"):
                loss = task.step(LocalStep(module=model.module, x=x, y=y, start=began, number=0))
            scoring.check_loss(told, "step", loss)
        self.random = not torch.equal(before, torch.get_rng_state())
        self.flops = 6.0 * max(sum(counted) / len(first[0]), len(model.vector))
        seen = {_form(*first): _largest_class(first[1])}
        for whose, data in _parts(task):
            for number, samples in _unlike(data):
                form, largest = _form(*samples), _largest_class(samples[1])
                if largest > seen.get(form, _NEVER) or not _finite(*samples):
                    seen[form] = max(largest, seen.get(form, _NEVER))
                    self._try_samples(model, task, f"{told}, {whose}", samples, number)

    def _try_samples(
        self, model: FlatModel, task: Task, told: str, samples: tuple[Tensor, Tensor], number: int | None = None
    ) -> None:
        """Raise if model, loss and metric do not fit some samples; `number` counts the one that is tried for its values."""
        x, y = (part.to(self._device) for part in samples)
        model.module.train(len(x) == 2)
        with users_code(f"{told}: the model fails on inputs {list(x.shape)} of {x.dtype}"):
            outputs = model.module(model.inputs(x))
        loss = scoring.check_outputs(told, task.scored_by, task.loss, outputs, y)
        if number is not None and not _finite(x, y) and not _finite(loss):
            what = "an input" if _finite(y) else "the target"
            raise ScenarioError(
                f"{told}: sample {number} has no finite loss, because {what} is not a finite number. Remove such samples, or "
                "replace the value."
            )


def _parts(task: Task) -> Iterator[tuple[str, Data]]:
    """Return whose data it is, and the data, without empty parts: a site may have no test set."""
    named = [(f"client number {number}", data) for number, data in enumerate(task.clients, start=1)]
    named += [("the test set", task.test)]
    named += [
        (f"the test set of client number {number}", data) for number, data in enumerate(task.client_tests, start=1)
    ]
    return ((whose, data) for whose, data in named if len(data))


def _unlike(data: Data) -> Iterator[tuple[int | None, tuple[Tensor, Tensor]]]:
    """Yield the first two samples, then those in memory that a model may reject for their values, twice, with their numbers.

    They are the first with a value that is not finite, and the one with the largest class.
    """
    yield None, data.take(slice(0, 2))
    if not isinstance(data, Samples):
        return
    odd = {_odd_row(data.x), _odd_row(data.y)} - {None}
    if _largest_class(data.y) >= 0:
        odd.add(int(data.y.reshape(len(data), -1).amax(dim=1).argmax()))
    for row in sorted(int(row) for row in odd if row is not None):
        yield row + 1, data.take(torch.tensor([row, row]))


def _odd_row(values: Tensor) -> int | None:
    """Return the first row with a value that is not finite; a finite sum spares the search."""
    if not values.is_floating_point() or bool(torch.isfinite(values.sum())):
        return None
    rows = ~torch.isfinite(values.reshape(len(values), -1)).all(dim=1)
    return int(rows.int().argmax()) if bool(rows.any()) else None


def _finite(*values: Tensor) -> bool:
    return all(bool(torch.isfinite(one).all()) for one in values)


_NEVER, _NO_CLASS = -2, -1


def _largest_class(targets: Tensor) -> int:
    """Return the largest of whole-numbered targets, which may be a class that the model lacks."""
    whole = not targets.is_floating_point() and targets.dtype != torch.bool
    return int(targets.max()) if whole and targets.numel() else _NO_CLASS


_LOOKED = 250
"""Targets of a test set that is read by the batch which are looked at before training."""


def _form(x: Tensor, y: Tensor) -> tuple[object, ...]:
    return x.shape[1:], x.dtype, y.shape[1:], y.dtype


@contextmanager
def _products(module: nn.Module) -> Iterator[list[float]]:
    """Count the multiplications of each layer with a weight matrix: its weights times its output positions.

    PyTorch's FlopCounterMode is exact but takes two seconds to load; this only has to separate long steps from short ones.
    """
    counted: list[float] = []

    def count(layer: nn.Module, inputs: object, output: object) -> None:
        weight = getattr(layer, "weight", None)
        if isinstance(weight, Tensor) and weight.dim() > 1 and isinstance(output, Tensor):
            counted.append(output.numel() / weight.shape[0] * weight.numel())

    hooks = [layer.register_forward_hook(count) for layer in module.modules()]
    try:
        yield counted
    finally:
        for hook in hooks:
            hook.remove()
