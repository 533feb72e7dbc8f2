"""Other methods under our ledger: policies that choose online, and plans, on the same tasks at the same carbon."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.lazy import lazily

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

__getattr__ = lazily(__name__, _HOME)
