"""Methods by name: plans made in advance, and policies that choose online, with those that other packages bring."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points

from slackwater.errors import ScenarioError
from slackwater.lab.policies.cafe import Cafe
from slackwater.lab.policies.carbon_policies import CaFed, FedCarbon, Greed, Lowcarb, Random
from slackwater.lab.policies.fedzero import FedZero, FreshFedZero
from slackwater.lab.policies.policy import Policy
from slackwater.lab.policies.speed_policies import REFL, FedCS, Oort, TiFL
from slackwater.planning.plan import Plan
from slackwater.planning.planner import plan
from slackwater.planning.problem import Problem
from slackwater.planning.schedule import no_slack_plan


@dataclass(frozen=True, slots=True)
class Planned:
    """A method whose schedule is known in advance, and its aggregator."""

    schedule: Callable[[Problem], Plan]
    aggregator: str | None
    """None: the plan's own recommendation."""

    def make(self, problem: Problem) -> tuple[Plan, str]:
        """Return the plan and its aggregator."""
        made = self.schedule(problem)
        return made, self.aggregator or made.aggregator


def _auto(problem: Problem) -> Plan:
    return plan(problem, auto=True)


def _carbon_greedy(problem: Problem) -> Plan:
    return plan(problem.with_settings(alpha=1.0))


PLANNED = {
    "ours": Planned(plan, "ufedavg"),
    "ours-memory": Planned(plan, "memory"),
    "ours-auto": Planned(_auto, None),
    "carbon-greedy": Planned(_carbon_greedy, "fedavg"),
    "no-slack": Planned(no_slack_plan, "fedavg"),
}
"""docs/research/rivals.md describes each."""

Factory = Callable[..., Policy]
"""Called without arguments, or with the number after the colon of a name like `oort:2`: clients a round."""

ENTRY_POINTS = "slackwater.policies"
_FACTORIES: dict[str, Factory] = {
    "fedzero": FedZero,
    "fedzero-fresh": FreshFedZero,
    "cafe": Cafe,
    "fedcarbon": FedCarbon,
    "greed": Greed,
    "lowcarb": Lowcarb,
    "oort": Oort,
    "tifl": TiFL,
    "refl": REFL,
    "fedcs": FedCS,
    "ca-fed": CaFed,
    "random": Random,
}
_WITHOUT_NUMBER = (Greed, FedCS, CaFed, Random)


def register_policy(name: str, factory: Factory) -> None:
    """Register a policy by name. A package does so with an entry point in the group `slackwater.policies`.

    Args:
        name: Name for `--policy` and `--policies`, without colon, comma or plus.
        factory: Called without arguments, or with the number after the colon of a name like `oort:2`.
    """
    if not name or any(sign in name for sign in ":,+"):
        raise ScenarioError(
            f"A policy cannot be called {name!r}: the name must not be empty nor hold a colon, comma or plus."
        )
    if name in PLANNED or (name in _FACTORIES and _FACTORIES[name] is not factory):
        raise ScenarioError(f"There is a method {name!r} already. Choose another name.")
    _FACTORIES[name] = factory


def policy_names() -> list[str]:
    """Return the names of all policies, those of installed packages included."""
    return sorted({*_FACTORIES, *(point.name for point in entry_points(group=ENTRY_POINTS))})


def method_names() -> list[str]:
    """Return the names of all methods: plans first, then policies."""
    return [*PLANNED, *policy_names()]


def make_policy(spec: str) -> Policy:
    """Return a new policy by name, with its number if it takes one: `fedzero`, `oort:2` (clients a round), `cafe:50` (V)."""
    name, colon, number = spec.strip().lower().partition(":")
    factory = _FACTORIES.get(name) or next(
        (point.load() for point in entry_points(group=ENTRY_POINTS) if point.name.lower() == name), None
    )
    if factory is None:
        raise _unknown(name)
    if not colon:
        made = factory()
    elif factory in _WITHOUT_NUMBER:
        raise ScenarioError(f"The policy {name!r} takes no number, but {spec!r} gives it one.")
    else:
        try:
            value = float(number) if factory is Cafe else int(number)
        except ValueError:
            value = 0
        if not value > 0:
            raise ScenarioError(f"In the policy {spec!r}, {number!r} is not a number above 0.")
        made = factory(value)
    if not isinstance(made, Policy):
        raise ScenarioError(f"The policy {name!r} lacks something; derive it from slackwater.rivals.Online.")
    return made


def split_method(spec: str) -> tuple[str, str | None]:
    """Return the name, and the aggregator if another is given: `fedzero+memory:0.8`."""
    name, plus, aggregator = spec.strip().lower().partition("+")
    return name, aggregator if plus else None


def check_method(spec: str) -> str:
    """Return a method's stored form, or raise if there is no such method. Training checks the aggregator."""
    name, aggregator = split_method(spec)
    if name not in PLANNED:
        make_policy(name)
    return name if aggregator is None else f"{name}+{aggregator}"


def _unknown(name: str) -> ScenarioError:
    near = difflib.get_close_matches(name, method_names(), n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return ScenarioError(f"There is no method {name!r}.{hint} Known are {', '.join(method_names())}.")
