"""A task: the model, the data of each client and the test set. Also a model as one flat vector."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from slackwater.errors import ScenarioError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Samples:
    """Inputs and targets, in memory; the first dimension is the sample."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """One learning task, split over the clients of a plan, in the plan's order."""

    name: str
    clients: Sequence[Samples]
    """Training data of each client."""
    test: Samples
    """The global test set."""
    model: Callable[[], nn.Module]
    """Returns a new model; the caller has seeded torch's generator."""
    loss: Callable[[Tensor, Tensor], Tensor] = nn.functional.cross_entropy
    """loss(outputs, targets), the mean over the batch."""
    client_tests: Sequence[Samples] = ()
    """Test data of each client's own distribution, for accuracy per client; may be empty."""
    devices: Sequence[Sequence[Samples]] = ()
    """Cross-device: the devices of each client, where a client of the plan is a region; may be empty."""
    record: Mapping[str, object] = field(default_factory=dict)
    """How the task was made, for the run's file: data set, partition, seed."""

    def __post_init__(self) -> None:
        empty = [i for i, samples in enumerate(self.clients) if len(samples) == 0]
        if empty:
            raise ScenarioError(
                f"Task {self.name!r}: client number {empty[0] + 1} has no data ({len(empty)} of {len(self.clients)} clients have none). "
                "Use another seed, a larger beta or fewer clients."
            )

    @staticmethod
    def correct(outputs: Tensor, targets: Tensor) -> Tensor:
        """Return how many predictions are right."""
        return torch.count_nonzero(outputs.argmax(dim=1) == targets)


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

    def __init__(self, task: Task, *, seed: int, device: torch.device) -> None:
        with torch.random.fork_rng(devices=[]):  # do not change the user's random state
            torch.manual_seed(seed)
            self._module = task.model()
        self._device = device
        self.channels_last = any(p.dim() == 4 for p in self._module.parameters())
        self.random = False
        """Whether training draws from PyTorch's global generator, as dropout does: then clients train one by one."""
        self.flops = 0.0
        """Floating-point operations of a step per sample: about three times those of the forward pass."""
        with torch.random.fork_rng(devices=[]):
            try:
                self._try(task)
            except RuntimeError:
                if not self.channels_last:
                    raise
                # A model that calls .view() on the output of a convolution needs the usual memory order.
                self.channels_last = False
                self._try(task)

    def __call__(self) -> FlatModel:
        """Return a new model with the initial parameters."""
        return FlatModel(copy.deepcopy(self._module), device=self._device, channels_last=self.channels_last)

    def _try(self, task: Task) -> None:
        """Run a forward pass over two samples (one is too few for BatchNorm)."""
        model, samples = self(), task.clients[0]
        x, y = samples.x[:2].to(self._device), samples.y[:2].to(self._device)
        model.module.train(len(x) == 2)
        before = torch.get_rng_state()
        with _products(model.module) as counted:
            task.loss(model.module(model.inputs(x)), y)
        self.random = not torch.equal(before, torch.get_rng_state())
        self.flops = 6.0 * max(sum(counted) / len(x), len(model.vector))


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
