"""Imports go one way, from carbon to cli, so that a newcomer can read the tree in order."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "slackwater"
ORDER = (
    "carbon", "forecasting", "providers", "planning", "replanning", "ledger", "learning", "rivals", "live",
    "flower", "accounting", "report", "paper", "dashboard", "cli",
)  # fmt: skip
EVERYWHERE = {"errors", "lazy", "units", "_version"}
HEAVY = ("torch", "matplotlib", "highspy", "sklearn", "pandas", "scipy", "flwr")


def _imports(path: Path) -> set[str]:
    """Parts of the package that a module imports, at any depth of the file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "slackwater":
            parts = node.module.split(".")[1:]
            found.update(parts[:1] if parts else (alias.name for alias in node.names))
        elif isinstance(node, ast.Import):
            found.update(alias.name.split(".")[1] for alias in node.names if alias.name.startswith("slackwater."))
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*/**/*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    part = path.relative_to(PACKAGE).parts[0]
    if part == "cli":
        return
    allowed = set(ORDER[: ORDER.index(part) + 1]) | EVERYWHERE
    assert _imports(path) <= allowed, f"{part} may only import {sorted(allowed)}"


def test_importing_the_package_is_light() -> None:
    code = f"import sys, slackwater, slackwater.cli; print([m for m in {HEAVY!r} if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"


def test_public_names_exist() -> None:
    import slackwater

    assert sorted(slackwater.__all__) == list(slackwater.__all__)
    assert all(hasattr(slackwater, name) for name in slackwater.__all__)
