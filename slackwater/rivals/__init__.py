"""Other methods under our ledger: policies that choose online, and plans, on the same tasks at the same carbon."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from slackwater.errors import MissingExtraError

if TYPE_CHECKING:
    from slackwater.rivals.policy import Choice, Online, Policy, View
    from slackwater.rivals.registry import make_policy, method_names, register_policy
    from slackwater.rivals.run import resume, train

_HOME = {
    "Choice": "policy",
    "Online": "policy",
    "Policy": "policy",
    "View": "policy",
    "make_policy": "registry",
    "method_names": "registry",
    "register_policy": "registry",
    "resume": "run",
    "train": "run",
}
__all__ = [
    "Choice",
    "Online",
    "Policy",
    "View",
    "make_policy",
    "method_names",
    "register_policy",
    "resume",
    "train",
]


def __getattr__(name: str) -> Any:
    """Policies need no PyTorch; running them does, so it is imported when it is first asked for."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name == "torch":
            raise MissingExtraError("PyTorch", "torch") from None
        raise
