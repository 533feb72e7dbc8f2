"""Methods by name, with those that other packages bring."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from importlib.metadata import entry_points

from slackwater.errors import ScenarioError
from slackwater.rivals.availability import CaFed
from slackwater.rivals.cafe import Cafe
from slackwater.rivals.carbon import FedCarbon, Greed, Lowcarb
from slackwater.rivals.fedzero import FedZero, FreshFedZero
from slackwater.rivals.planned import PLANNED
from slackwater.rivals.policy import Policy
from slackwater.rivals.simple import Random
from slackwater.rivals.system import REFL, FedCS, Oort, TiFL

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
    """Make a policy known by name; a package does so with an entry point in the group `slackwater.policies`."""
    if not name or any(sign in name for sign in ":,+"):
        raise ScenarioError(
            f"A policy cannot be called {name!r}: the name must not be empty nor hold a colon, comma or plus."
        )
    if name in PLANNED or (name in _FACTORIES and _FACTORIES[name] is not factory):
        raise ScenarioError(f"There is a method {name!r} already. Choose another name.")
    _FACTORIES[name] = factory


def policy_names() -> list[str]:
    """Policies that choose online, those of installed packages included."""
    return sorted({*_FACTORIES, *(point.name for point in entry_points(group=ENTRY_POINTS))})


def method_names() -> list[str]:
    """All methods: plans first, then policies."""
    return [*PLANNED, *policy_names()]


def make_policy(spec: str) -> Policy:
    """The policy of a name, with its number if it takes one: `fedzero`, `oort:2` (clients a round), `cafe:50` (its V)."""
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
    """Name, and the aggregator where it is not the method's own: `fedzero+memory:0.8`."""
    name, plus, aggregator = spec.strip().lower().partition("+")
    return name, aggregator if plus else None


def check_method(spec: str) -> str:
    """A method as it is kept; refused where there is none. Its aggregator is checked when it is trained."""
    name, aggregator = split_method(spec)
    if name not in PLANNED:
        make_policy(name)
    return name if aggregator is None else f"{name}+{aggregator}"


def _unknown(name: str) -> ScenarioError:
    near = difflib.get_close_matches(name, method_names(), n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return ScenarioError(f"There is no method {name!r}.{hint} Known are {', '.join(method_names())}.")
