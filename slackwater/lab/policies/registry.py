"""Methods by name: plans made in advance, and policies that choose online, also those of installed packages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from slackwater.errors import ScenarioError
from slackwater.lab.policies.cafe import Cafe
from slackwater.lab.policies.carbon_policies import CaFed, FedCarbon, Greed, Lowcarb, Random, Threshold
from slackwater.lab.policies.fedzero import FedZero, FreshFedZero
from slackwater.lab.policies.policy import Policy
from slackwater.lab.policies.speed_policies import REFL, FedCS, Oort, TiFL
from slackwater.planning.plan import Plan
from slackwater.planning.planner import optimise, plan
from slackwater.planning.problem import Problem
from slackwater.planning.schedule import no_slack_plan
from slackwater.registry import Registry


@dataclass(frozen=True, slots=True)
class Planned:
    """A method with a schedule made in advance, and its aggregator."""

    schedule: Callable[[Problem], Plan]
    aggregator: str | None
    """None: the aggregator that the plan recommends."""

    def make(self, problem: Problem) -> tuple[Plan, str]:
        """Return the plan and its aggregator."""
        made = self.schedule(problem)
        return made, self.aggregator or made.aggregator


def _auto(problem: Problem) -> Plan:
    return plan(problem, planner="auto")


def _carbon_greedy(problem: Problem) -> Plan:
    return optimise(problem.with_settings(alpha=1.0))


PLANNED = {
    "ours": Planned(optimise, "ufedavg"),
    "ours-memory": Planned(optimise, "memory"),
    "ours-auto": Planned(_auto, None),
    "carbon-greedy": Planned(_carbon_greedy, "fedavg"),
    "no-slack": Planned(no_slack_plan, "fedavg"),
}
"""Described in docs/research/rivals.md."""

Factory = Callable[..., Policy]
"""Called without arguments, or with the number after the colon of a name like `oort:2`: clients a round."""

_OWN: dict[str, Factory] = {
    "fedzero": FedZero,
    "fedzero-fresh": FreshFedZero,
    "cafe": Cafe,
    "fedcarbon": FedCarbon,
    "greed": Greed,
    "lowcarb": Lowcarb,
    "threshold": Threshold,
    "oort": Oort,
    "tifl": TiFL,
    "refl": REFL,
    "fedcs": FedCS,
    "ca-fed": CaFed,
    "random": Random,
}
POLICIES = Registry("method", "slackwater.policies", _OWN, reserved=PLANNED)
_WITHOUT_NUMBER = (Greed, FedCS, CaFed, Random)


def register_policy(name: str, factory: Factory) -> None:
    """Register a policy by name. A package does so with an entry point in the group `slackwater.policies`.

    Args:
        name: Name for `--policy` and `--policies`, without colon, comma or plus.
        factory: Called without arguments, or with the number after the colon of a name like `oort:2`.
    """
    if not name or any(sign in name for sign in ":,+"):
        raise ScenarioError(
            f"{name!r} is not a name for a policy: it must not be empty or contain a colon, comma or plus."
        )
    POLICIES.register(name, factory)


def policy_names() -> list[str]:
    """Return the names of all policies, with those of installed packages."""
    return POLICIES.names()


def method_names() -> list[str]:
    """Return the names of all methods: plans first, then policies."""
    return [*PLANNED, *policy_names()]


def make_policy(spec: str) -> Policy:
    """Return a new policy by name, with its number if it takes one: `fedzero`, `oort:2` (clients a round), `cafe:50` (V)."""
    name, colon, number = spec.strip().lower().partition(":")
    if name in PLANNED:
        instead = "sw.baseline" if name == "no-slack" else "sw.plan"
        raise ScenarioError(f"{name!r} is a plan, not an online policy. Use `{instead}`, or `slackwater rivals`.")
    factory = POLICIES.get(name)
    if not colon:
        made = factory()
    elif factory in _WITHOUT_NUMBER:
        raise ScenarioError(f"The policy {name!r} takes no number. Write {name}, not {spec.strip()}.")
    else:
        try:
            value = float(number) if factory is Cafe else int(number)
        except ValueError:
            value = 0
        if not value > 0:
            raise ScenarioError(f"{spec!r}: {number!r} is not a number above 0.")
        made = factory(value)
    if not isinstance(made, Policy):
        raise ScenarioError(f"The policy {name!r} is incomplete. Derive it from slackwater.lab.policies.Online.")
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
