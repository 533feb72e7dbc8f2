from __future__ import annotations

import os
from pathlib import Path

import pytest

from slackwater.atomic import write_whole
from slackwater.errors import SlackwaterError


def test_a_file_is_whole_and_private(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.txt"
    write_whole(path, "text")
    write_whole(path, b"other")
    assert path.read_bytes() == b"other"
    assert [entry.name for entry in path.parent.iterdir()] == ["file.txt"]
    if os.name == "posix":
        assert path.stat().st_mode & 0o077 == 0


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.txt"
    write_whole(path, "old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SlackwaterError, match=r"cannot be written: No space left on device\. Make room\.$"):
        write_whole(path, "new", advice="Make room.")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.txt"]
