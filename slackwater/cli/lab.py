"""The one way from the product to `slackwater.lab`: by name, and only when a command needs it."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def load(module: str) -> Any:
    """Import and return a module of `slackwater.lab`."""
    return import_module(f"slackwater.lab.{module}")
