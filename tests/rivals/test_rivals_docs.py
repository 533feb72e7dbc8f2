"""docs/rivals.md says what the stored tables say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools" / "write_rivals_docs.py"


def test_the_page_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("write_rivals_docs", TOOL)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    page = tool.PAGE.read_text(encoding="utf-8")
    assert "<!-- mnist 0.557535 -->" in page
    assert page == tool.filled(page), "run: python tools/write_rivals_docs.py"
