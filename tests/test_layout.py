"""Imports go one way, from intensity to cli, so that a newcomer can read the tree in order."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "slackwater"
BELOW_ALL = {"_version", "atomic", "errors", "glossary", "lazy", "registry", "time_source", "units"}
"""Root modules that every part may import, and that import nothing but each other."""
ORDER = (
    "intensity", "planning", "replanning", "ledger", "scenario", "training", "live", "engines", "flower", "nvflare", "charts",
    "report", "dashboard", "cli", "lab",
)  # fmt: skip
LAZY_DOORS = {"__init__.py", "__main__.py", "cli/main.py"}
"""Files that name modules of every part and load them when they are first asked for."""
HEAVY = ("torch", "matplotlib", "highspy", "sklearn", "pandas", "scipy", "flwr", "nvflare")


def _part(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def _imports(path: Path) -> Iterator[str]:
    """Yield the parts of the package that a file imports, in every form of import and at any depth."""
    here = ["slackwater", *path.relative_to(PACKAGE).parent.parts]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (_part(alias.name) for alias in node.names if alias.name.split(".")[0] == "slackwater")
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            if module == "slackwater":
                yield from (alias.name for alias in node.names)
            elif module.startswith("slackwater."):
                yield _part(module)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("import_module", "__import__"):
            for text in (one.value for one in node.args if isinstance(one, ast.Constant)):
                if isinstance(text, str) and text.startswith("slackwater."):
                    yield _part(text)


def _files() -> list[Path]:
    return sorted(
        path
        for path in PACKAGE.glob("**/*.py")
        if str(path.relative_to(PACKAGE)) not in LAZY_DOORS and "template" not in path.parts
    )


@pytest.mark.parametrize("path", _files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    part = path.relative_to(PACKAGE).with_suffix("").parts[0]
    allowed = BELOW_ALL if part in BELOW_ALL else BELOW_ALL | set(ORDER[: ORDER.index(part) + 1])
    public = {"__version__"} if part not in ("lab", "cli") else set(_public())
    found = {name for name in _imports(path) if name}
    assert found <= allowed | public, f"{part} may only import {sorted(allowed)}"


def _public() -> list[str]:
    import slackwater

    return list(slackwater.__all__)


def test_every_part_has_its_place() -> None:
    parts = {path.relative_to(PACKAGE).with_suffix("").parts[0] for path in _files()}
    assert parts == BELOW_ALL | set(ORDER)


def test_no_module_name_twice() -> None:
    core = [path for path in PACKAGE.glob("**/*.py") if "lab" not in path.parts and "template" not in path.parts]
    names = Counter(path.stem for path in core)
    assert [name for name, times in names.items() if times > 1 and name not in ("__init__", "base")] == []


def test_only_the_ledger_reads_charges_and_planned() -> None:
    """Sums of the ledger have one home, so that no two screens can add up differently."""
    asks = re.compile(r"\b(?:FROM|JOIN|INTO)\s+(?:charges|planned)\b", re.IGNORECASE)
    found = [path for path in PACKAGE.glob("**/*.py") if asks.search(path.read_text())]
    assert {path.parent.name for path in found} == {"ledger"}


def test_importing_the_package_is_light() -> None:
    code = f"import sys, slackwater, slackwater.cli; print([m for m in {HEAVY!r} if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"
