"""Settings of a training run, checked when made and kept in the run's file."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from importlib.util import find_spec
from typing import Any

import torch

from slackwater.errors import MissingExtraError, ScenarioError
from slackwater.learning.local import LocalWork
from slackwater.learning.registry import make_aggregator
from slackwater.learning.server import IterateAverage, make_server
from slackwater.planning.plan import DEFAULT_AGGREGATOR

EVAL_EVERY = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one run; together with plan and task they determine its result bit for bit."""

    aggregator: str = DEFAULT_AGGREGATOR
    """Name, with a number where it takes one: `memory:0.8`."""
    local_steps: int = 30
    """The paper's tau; ignored if `local_epochs` is given."""
    local_epochs: int | None = None
    batch_size: int = 128
    lr: float = 0.1
    weight_decay: float = 5e-4
    seed: int = 0
    eval_every: int = EVAL_EVERY
    """Rounds (slots with participants) from one evaluation on the test set to the next; 0 is only at the end."""
    training_loss: bool = True
    """Whether F over all training data is computed at the end: for a large set as long as several rounds."""
    server: str = "plain"
    server_lr: float | None = None
    """None is the optimiser's own: 1 for plain and momentum, 0.01 for adam."""
    memory_dtype: str = "float32"
    """Type of the updates that the aggregator stores for each client: float32 as they are, float16 or bfloat16 halves
    the memory and the disk space of a run."""
    averaging: float | None = None
    """Average the global models of so many last rounds, or of this share of them if below 1; None: the last model."""
    devices_per_slot: int | None = None
    """Cross-device: how many devices of a client that is scheduled train in a slot, drawn with equal probability."""
    device_kwh: float | None = None
    """Energy of one device in one slot; if given, the plan's energy for a client must be that of all that train."""
    device: str = "cpu"
    threads: int
    """Processor threads in all; the bits of a result depend on it."""
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
                f"device_kwh is {self.device_kwh!r}; it must be 0 or above, and needs devices_per_slot beside it."
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
                f"device {self.device!r} cannot be used: {str(error).splitlines()[0]} Use device='cpu'."
            ) from None

    @property
    def work(self) -> LocalWork:
        """Return what a client does in a slot."""
        return LocalWork(
            steps=self.local_steps, epochs=self.local_epochs, batch_size=self.batch_size, lr=self.lr,
            weight_decay=self.weight_decay,
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
