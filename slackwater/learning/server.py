"""The server's step with the aggregated update, plain or by an optimiser, and the average of its models."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from slackwater.errors import ScenarioError
from slackwater.registry import did_you_mean

State = dict[str, Tensor]


class ServerOptimiser:
    """Moves the global model. `model` and `update` are flat vectors, and are not changed."""

    kept: tuple[str, ...] = ()  # attributes that `step` depends on, each a vector of the model's length

    def __init__(self, lr: float = 1.0) -> None:
        self.lr = lr

    def step(self, model: Tensor, update: Tensor) -> Tensor:
        """Return the new model, a new vector."""
        raise NotImplementedError

    def state(self) -> State:
        """Return what `step` depends on besides its arguments."""
        return {name: value for name in self.kept if (value := getattr(self, name)) is not None}

    def restore(self, state: State) -> None:
        """Continue from a state."""
        for name in self.kept:
            setattr(self, name, state.get(name))


class Plain(ServerOptimiser):
    """theta <- theta - lr Delta; with lr = 1 lines 12 and 15 of Algorithm 1."""

    def step(self, model: Tensor, update: Tensor) -> Tensor:
        """Return the new model."""
        return model.sub(update, alpha=self.lr)


class Momentum(ServerOptimiser):
    """v <- beta v + Delta, theta <- theta - lr v: FedAvgM, Hsu, Qi and Brown 2019."""

    kept = ("velocity",)

    def __init__(self, lr: float = 1.0, beta: float = 0.9) -> None:
        super().__init__(lr)
        self.beta = beta
        self.velocity: Tensor | None = None

    def step(self, model: Tensor, update: Tensor) -> Tensor:
        """Return the new model."""
        self.velocity = update.clone() if self.velocity is None else (self.velocity * self.beta).add_(update)
        return model.sub(self.velocity, alpha=self.lr)


class Adam(ServerOptimiser):
    """FedAdam, Algorithm 2 of Reddi et al., ICLR 2021: no bias correction, `tau` bounds the step where v is small."""

    kept = ("first", "second")

    def __init__(self, lr: float = 0.01, beta_1: float = 0.9, beta_2: float = 0.99, tau: float = 1e-3) -> None:
        super().__init__(lr)
        self.beta_1, self.beta_2, self.tau = beta_1, beta_2, tau
        self.first: Tensor | None = None
        self.second: Tensor | None = None

    def step(self, model: Tensor, update: Tensor) -> Tensor:
        """Return the new model."""
        first = torch.zeros_like(update) if self.first is None else self.first
        # Reddi et al. begin with v = tau^2.
        second = torch.full_like(update, self.tau**2) if self.second is None else self.second
        self.first = (first * self.beta_1).add_(update, alpha=1 - self.beta_1)
        self.second = (second * self.beta_2).addcmul_(update, update, value=1 - self.beta_2)
        return model.addcdiv(self.first, self.second.sqrt().add_(self.tau), value=-self.lr)


SERVERS: dict[str, type[ServerOptimiser]] = {"plain": Plain, "momentum": Momentum, "adam": Adam}


def make_server(name: str, lr: float | None = None) -> ServerOptimiser:
    """Return a server optimiser by name; `lr` None is its default: 1 for plain and momentum, 0.01 for adam."""
    if name not in SERVERS:
        hint = did_you_mean(name, SERVERS)
        raise ScenarioError(f"There is no server optimiser {name!r}.{hint} Known are {', '.join(SERVERS)}.")
    if lr is None:
        return SERVERS[name]()
    if not (lr > 0 and math.isfinite(lr)):
        raise ScenarioError(f"server_lr must be above 0, not {lr!r}.")
    return SERVERS[name](lr)


class IterateAverage:
    """Mean of the global models after the last rounds, after Polyak and Ruppert; for federated models IMA, 2023.

    `last` is how many rounds, or the share of them if it is below 1; rounds of the window count too.
    """

    def __init__(self, last: float, rounds: int) -> None:
        whole = math.ceil(last * rounds) if last < 1 else int(last)
        if not last > 0 or (last >= 1 and whole != last):
            raise ScenarioError(
                f"averaging must be a number of rounds (1, 2, ..) or a share of them below 1, not {last!r}."
            )
        self.first = max(0, rounds - whole)  # number of the first round that counts
        self.count = 0
        self.total: Tensor | None = None

    def add(self, number: int, model: Tensor) -> None:
        """Add the model after a round."""
        if number < self.first:
            return
        # In double precision, so that a long average is as good as its models.
        precise = model if model.device.type == "mps" else model.double()
        self.total = precise.clone() if self.total is None else self.total + precise
        self.count += 1

    def mean(self, model: Tensor) -> Tensor:
        """Return the average; `model` where there is none yet."""
        return model if self.total is None else (self.total / self.count).to(model.dtype)

    def state(self) -> State:
        """Return the sum so far."""
        return {} if self.total is None else {"total": self.total, "count": torch.tensor(self.count)}

    def restore(self, state: State) -> None:
        """Continue from a state."""
        self.total = state.get("total")
        self.count = int(state["count"]) if "count" in state else 0
