"""The study of quorums on two short plans."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from slackwater.lab.studies import quorum


def test_it_plans_stores_and_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quorum, "ROUNDS", (2,))
    monkeypatch.setattr(quorum, "QUORUMS", (1, 2))
    results = str(tmp_path / "quorum.jsonl")
    done = CliRunner().invoke(quorum.main, ["run", "--results", results])
    assert done.exit_code == 0, done.output
    assert len(Path(results).read_text().splitlines()) == 2
    shown = CliRunner().invoke(quorum.main, ["table", "--results", results]).output
    free, tied = shown.splitlines()[2:]
    assert "| 2 | 2 | 0 of " in tied
    assert "(+0" not in tied
    assert free.split("|")[3].strip() == "1"
