"""Planning that takes longer than a second says so in a terminal, and is silent in a pipe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from slackwater.cli import options, plan_commands
from slackwater.cli.main import cli

SCENARIO = """
start = 2022-01-01T00:00:00Z
rounds = 3
slack = 4
budget_kg = 0.6
[[client]]
name = "lyon"
zone = "FR"
power_w = 300
"""
WORDS = {
    ("plan",): "schedules compared; Ctrl-C takes the best so far",
    ("plan", "--paper"): None,
    ("compare", "--slack", "0,4"): "planned 2 of 2 combinations; Ctrl-C shows those that are done",
    ("advise", "--slack", "0,4", "--budget", "0.6"): "planned 2 of 2 pairs; Ctrl-C shows those that are done",
}


@pytest.mark.parametrize("command", WORDS, ids=" ".join)
def test_long_planning_says_how_far_it_is(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    @contextmanager
    def waiting(what: str) -> Iterator[object]:
        assert what.startswith("planning")
        yield said.append

    monkeypatch.setattr(plan_commands, "waiting", waiting)
    (tmp_path / "s.toml").write_text(SCENARIO)
    done = CliRunner().invoke(cli, [command[0], str(tmp_path / "s.toml"), *command[1:]])
    assert done.exit_code == 0, done.output
    words = WORDS[command]
    assert (words is None and not said) or said[-1].endswith(words or "")


def test_a_terminal_shows_it_and_a_pipe_does_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "_PATIENCE_S", 0.0)
    with options.waiting("planning") as told:
        told("half")
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("FORCE_COLOR", "1")  # makes rich treat the captured stream as a terminal
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    started = []
    monkeypatch.setattr("threading.Timer.start", lambda timer: (started.append(timer), timer.function()))
    with options.waiting("planning") as told:
        told("half of it")
    assert "half of it" in capsys.readouterr().err
    assert started
