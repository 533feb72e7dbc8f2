"""Other methods under our ledger: online policies and plans, on the same tasks at equal emissions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.lazy import lazily

if TYPE_CHECKING:
    from slackwater.lab.policies.methods import MethodComparison, compare_methods
    from slackwater.lab.policies.policy import Choice, Online, Policy, View
    from slackwater.lab.policies.registry import make_policy, method_names, register_policy
    from slackwater.lab.policies.training import resume, train

_HOME = {
    **dict.fromkeys(("Choice", "Online", "Policy", "View"), "policy"),
    **dict.fromkeys(("make_policy", "method_names", "register_policy"), "registry"),
    **dict.fromkeys(("resume", "train"), "training"),
    **dict.fromkeys(("MethodComparison", "compare_methods"), "methods"),
}
__all__ = [
    "Choice",
    "MethodComparison",
    "Online",
    "Policy",
    "View",
    "compare_methods",
    "make_policy",
    "method_names",
    "register_policy",
    "resume",
    "train",
]

__getattr__ = lazily(__name__, _HOME)
