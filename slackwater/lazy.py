"""Names of a package that are imported when they are first asked for: PyTorch and Flower take seconds to load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from slackwater.errors import MissingExtraError

_EXTRAS = {"torch": ("PyTorch", "torch"), "flwr": ("Flower", "flower")}


def lazily(package: str, home: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's `__getattr__`; `home`: public name -> the module that holds it, or that it is."""

    def get(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            module = import_module(f"{package}.{home[name]}")
        except ModuleNotFoundError as error:
            missing = (error.name or "").split(".")[0]
            if missing in _EXTRAS:
                raise MissingExtraError(*_EXTRAS[missing]) from None
            raise
        return module if home[name] == name else getattr(module, name)

    return get
