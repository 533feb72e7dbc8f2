"""What docs/live.md shows works."""

import re
from pathlib import Path

import live_world as world
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "live.md"


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"plan": world.plan(), "transport": world.Sites(), "initial": world.initial()}
    snippets = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert snippets
    for snippet in snippets:
        exec(snippet, names)
    assert capsys.readouterr().out.split()[-1] == "6"
