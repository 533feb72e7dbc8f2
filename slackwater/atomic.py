"""Write files atomically: under a temporary name, flushed to the disk, then renamed."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from slackwater.errors import SlackwaterError


@contextlib.contextmanager
def whole_file(path: Path, *, draft: Path | None = None, private: bool = True) -> Iterator[BinaryIO]:
    """Open a file for writing that replaces `path` when the block ends; after an error the old file is unchanged.

    Args:
        path: The file to write. Its folder must exist.
        draft: Temporary name, in the same folder. Default: a random one.
        private: Let only the owner read the file.
    """
    draft = draft or path.with_name(f".{secrets.token_hex(8)}.tmp")
    flags = os.O_CREAT | os.O_WRONLY | os.O_TRUNC | getattr(os, "O_BINARY", 0)
    try:
        with open(os.open(draft, flags, 0o600 if private else 0o666), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()


def write_whole(
    path: Path, content: str | bytes, *, private: bool = True, advice: str = "The previous content is unchanged."
) -> None:
    """Write a file atomically, creating its folder; raise SlackwaterError, which ends with `advice`, if that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path, private=private) as file:
            file.write(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise SlackwaterError(f"{path} cannot be written: {error.strerror or error}. {advice}") from None
