"""What the server does with the aggregated update: a step, plain or by an optimiser; and the average of its models."""

from __future__ import annotations

import difflib
import math
from typing import Protocol

import torch
from torch import Tensor

from slackwater.errors import ScenarioError

State = dict[str, Tensor]


class ServerOptimiser(Protocol):
    """Moves the global model. `model` and `update` are flat vectors, and are not changed."""

    def step(self, model: Tensor, update: Tensor) -> Tensor:
        """The new model, a new vector."""
        ...

    def state(self) -> State:
        """What `step` depends on besides its arguments."""
        ...

    def restore(self, state: State) -> None:
        """Take up a state."""
        ...


class Plain:
    """theta <- theta - lr Delta; with lr = 1 lines 12 and 15 of Algorithm 1."""

    def __init__(self, lr: float = 1.0) -> None:
        self.lr = lr

    def step(self, model: Tensor, update: Tensor) -> Tensor:
        """One step."""
        return model.sub(update, alpha=self.lr)

    def state(self) -> State:
        """Nothing."""
        return {}

    def restore(self, state: State) -> None:
        """Nothing to take up."""


class Momentum:
    """v <- beta v + Delta, theta <- theta - lr v: FedAvgM, Hsu, Qi and Brown 2019."""

    def __init__(self, lr: float = 1.0, beta: float = 0.9) -> None:
        self.lr, self.beta = lr, beta
        self.velocity: Tensor | None = None

    def step(self, model: Tensor, update: Tensor) -> Tensor:
        """One step."""
        self.velocity = update.clone() if self.velocity is None else (self.velocity * self.beta).add_(update)
        return model.sub(self.velocity, alpha=self.lr)

    def state(self) -> State:
        """The velocity."""
        return {} if self.velocity is None else {"velocity": self.velocity}

    def restore(self, state: State) -> None:
        """Take it up."""
        self.velocity = state.get("velocity")


class Adam:
    """FedAdam, Algorithm 2 of Reddi et al., ICLR 2021: no bias correction, `tau` bounds the step where v is small."""

    def __init__(self, lr: float = 0.01, beta_1: float = 0.9, beta_2: float = 0.99, tau: float = 1e-3) -> None:
        self.lr, self.beta_1, self.beta_2, self.tau = lr, beta_1, beta_2, tau
        self.first: Tensor | None = None
        self.second: Tensor | None = None

    def step(self, model: Tensor, update: Tensor) -> Tensor:
        """One step."""
        first = torch.zeros_like(update) if self.first is None else self.first
        # Reddi et al. begin with v = tau^2.
        second = torch.full_like(update, self.tau**2) if self.second is None else self.second
        self.first = (first * self.beta_1).add_(update, alpha=1 - self.beta_1)
        self.second = (second * self.beta_2).addcmul_(update, update, value=1 - self.beta_2)
        return model.addcdiv(self.first, self.second.sqrt().add_(self.tau), value=-self.lr)

    def state(self) -> State:
        """The two moments."""
        return {} if self.first is None or self.second is None else {"first": self.first, "second": self.second}

    def restore(self, state: State) -> None:
        """Take them up."""
        self.first, self.second = state.get("first"), state.get("second")


SERVERS: dict[str, type[Plain] | type[Momentum] | type[Adam]] = {"plain": Plain, "momentum": Momentum, "adam": Adam}


def make_server(name: str, lr: float | None = None) -> ServerOptimiser:
    """By name; `lr` None is the optimiser's own default: 1 for plain and momentum, 0.01 for adam."""
    if name not in SERVERS:
        near = difflib.get_close_matches(name, SERVERS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ScenarioError(f"There is no server optimiser {name!r}.{hint} Known are {', '.join(SERVERS)}.")
    if lr is None:
        return SERVERS[name]()
    if not (lr > 0 and math.isfinite(lr)):
        raise ScenarioError(f"server_lr must be above 0, not {lr!r}.")
    return SERVERS[name](lr)


class IterateAverage:
    """Mean of the global models after the last rounds, after Polyak and Ruppert; for federated models IMA, 2023.

    `last` is how many rounds, or the share of them if it is below 1; rounds are slots with participants, the window's
    included.
    """

    def __init__(self, last: float, rounds: int) -> None:
        whole = math.ceil(last * rounds) if last < 1 else int(last)
        if not last > 0 or (last >= 1 and whole != last):
            raise ScenarioError(
                f"averaging must be a number of rounds (1, 2, ..) or a share of them below 1, not {last!r}."
            )
        self.first = max(0, rounds - whole)
        """Number of the first round that counts."""
        self.count = 0
        self.total: Tensor | None = None

    def add(self, number: int, model: Tensor) -> None:
        """Take in the model after a round."""
        if number < self.first:
            return
        # In double precision, so that a long average is as good as its models.
        precise = model if model.device.type == "mps" else model.double()
        self.total = precise.clone() if self.total is None else self.total + precise
        self.count += 1

    def mean(self, model: Tensor) -> Tensor:
        """The average; `model` where there is none yet."""
        return model if self.total is None else (self.total / self.count).to(model.dtype)

    def state(self) -> State:
        """The sum so far."""
        return {} if self.total is None else {"total": self.total, "count": torch.tensor(self.count)}

    def restore(self, state: State) -> None:
        """Take it up."""
        self.total = state.get("total")
        self.count = int(state["count"]) if "count" in state else 0
