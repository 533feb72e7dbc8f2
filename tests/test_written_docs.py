"""docs/paper.md and docs/rivals.md say what the stored tables say."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).resolve().parents[1] / "tools"


def _tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


@pytest.mark.parametrize("name", ["write_paper_docs", "write_rivals_docs"])
def test_the_page_is_up_to_date(name: str) -> None:
    tool = _tool(name)
    page = tool.PAGE.read_text(encoding="utf-8")
    assert page == tool.filled(page), f"run: python tools/{name}.py"


def test_every_table_has_its_place() -> None:
    paper, rivals = _tool("write_paper_docs"), _tool("write_rivals_docs")
    page = paper.PAGE.read_text(encoding="utf-8")
    assert all(f"<!-- {name} -->" in page for name in paper.SECTIONS)
    assert all(
        f"<!-- {name} -->" in rivals.PAGE.read_text(encoding="utf-8") for name in ("mnist 0.557535", "fashion 1.983414")
    )
