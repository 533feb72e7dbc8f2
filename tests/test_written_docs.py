"""docs/research/paper.md and docs/research/rivals.md show what the stored results say."""

from __future__ import annotations

import pytest
from scripts import script

TOOLS = ["write_paper_docs", "write_rivals_docs"]


@pytest.mark.parametrize("name", TOOLS)
def test_the_page_is_up_to_date(name: str) -> None:
    tool = script(f"tools/{name}.py")
    page = tool.PAGE.read_text(encoding="utf-8")
    assert page == tool.filled(page), f"run: python tools/{name}.py"


@pytest.mark.parametrize("name", TOOLS)
def test_the_pictures_are_up_to_date(name: str) -> None:
    tool = script(f"tools/{name}.py")
    page = tool.PAGE.read_text(encoding="utf-8")
    for stored, shown in tool.PICTURES.items():
        assert f"(images/{shown.name})" in page
        assert stored.read_bytes() == shown.read_bytes(), f"run: python tools/{name}.py"


def test_every_table_has_its_place() -> None:
    paper, rivals = script("tools/write_paper_docs.py"), script("tools/write_rivals_docs.py")
    page = paper.PAGE.read_text(encoding="utf-8")
    assert all(f"<!-- {name} -->" in page for name in paper.SECTIONS)
    assert all(
        f"<!-- {name} -->" in rivals.PAGE.read_text(encoding="utf-8")
        for name in ("digits 0.557535", "mnist 0.557535", "mnist 7.980066", "fashion 1.983414")
    )
