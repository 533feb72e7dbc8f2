"""The example notebook runs, and its stored outputs are those of now."""

from __future__ import annotations

import json

import pytest
from scripts import script

tool = script("tools/write_notebook.py")


def test_the_notebook_is_up_to_date() -> None:
    stored = json.loads(tool.PAGE.read_text(encoding="utf-8"))
    assert (stored["nbformat"], stored["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in stored["cells"]}) == len(stored["cells"])
    for was, now in zip(tool.comparable(stored["cells"]), tool.comparable(tool.executed()), strict=True):
        assert was == now, "run: python tools/write_notebook.py"


def test_the_notebook_shows_tables_figures_and_a_test() -> None:
    cells = json.loads(tool.PAGE.read_text(encoding="utf-8"))["cells"]
    kinds = [kind for cell in cells for one in cell.get("outputs", []) for kind in one.get("data", {})]
    assert kinds.count("image/png") == 2
    assert kinds.count("text/html") == 4
    (printed,) = [one for cell in cells for one in cell.get("outputs", []) if one["output_type"] == "stream"]
    assert "corrected" in "".join(printed["text"])


def test_a_changed_word_is_noticed() -> None:
    cells = json.loads(tool.PAGE.read_text(encoding="utf-8"))["cells"]
    before = tool.comparable(cells)
    code = next(cell for cell in cells if cell["cell_type"] == "code")
    code["outputs"][0]["data"]["text/plain"] = ["Races(..)"]
    with pytest.raises(AssertionError):
        assert tool.comparable(cells) == before
