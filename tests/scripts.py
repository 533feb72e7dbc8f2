"""Scripts of the repository, which are no package, as modules to test."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]


def script(path: str) -> Any:
    """A fresh module from a path within the repository, such as tools/write_cli_docs.py."""
    name = Path(path).stem
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module
