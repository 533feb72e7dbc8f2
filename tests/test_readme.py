"""What the README shows works: its Python runs, its commands exist, its links lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from slackwater.cli.main import cli

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
ELSEWHERE = ("serve", "data fetch")
"""A server that does not end, and a network: tested in tests/dashboard and tests/providers, here only that they exist."""
COMMANDS = re.findall(r"^    slackwater (.+?)(?:\s+#.*)?$", README, flags=re.MULTILINE)


def test_python_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    snippets = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert snippets
    for snippet in snippets:
        exec(snippet, {})
    assert (tmp_path / "plan.json").exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Flower's, of its own command line
def test_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(COMMANDS) >= 5
    monkeypatch.chdir(tmp_path)
    for command in COMMANDS:
        shown = [*shlex.split(command), *(["--help"] if command.startswith(ELSEWHERE) else [])]
        result = CliRunner().invoke(cli, shown)
        assert result.exit_code == 0, f"slackwater {command}\n{result.output}"
    assert Path("schedule.png").stat().st_size > 10_000


def test_it_is_short() -> None:
    assert len(README.split()) < 700


@pytest.mark.parametrize(
    "page",
    [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
