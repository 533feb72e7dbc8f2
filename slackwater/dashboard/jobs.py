"""Runs that the page starts: child processes that write into a new folder beside the scenario."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from slackwater.errors import SlackwaterError
from slackwater.ledger.run import FILE

log = logging.getLogger(__name__)
Kind = Literal["rehearse", "train"]
_NAMES: dict[str, str] = {"rehearse": "rehearsal", "train": "run"}
_LOG = "dashboard.log"
_LOG_BYTES = 4_000
_MOST_FOLDERS = 10_000


@dataclass(kw_only=True, eq=False)
class Job:
    """One started run."""

    kind: Kind
    folder: Path
    commands: Sequence[Sequence[str]]
    """Arguments of `slackwater`, one command after the other."""
    process: subprocess.Popen[bytes] | None = None
    exit_code: int | None = None
    """None while it runs."""
    done: threading.Event = field(default_factory=threading.Event)

    def last_words(self) -> str:
        """Return the end of what the commands wrote."""
        try:
            with (self.folder / _LOG).open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_BYTES))
                return file.read().decode("utf-8", "replace")
        except OSError:
            return ""


class Jobs:
    """The runs that one server started. They continue when the server stops."""

    def __init__(self) -> None:
        self._jobs: list[Job] = []
        self._lock = threading.Lock()

    def start(self, kind: Kind, base: Path, commands: Callable[[Path], Sequence[Sequence[str]]]) -> Job:
        """Start a run in a new folder in `base`; raise SlackwaterError while another one runs.

        Args:
            kind: What to start; it names the folder.
            base: Folder of the scenario.
            commands: Returns the arguments of `slackwater` for a run folder.
        """
        with self._lock:
            for one in self._jobs:
                if not one.done.is_set():
                    raise SlackwaterError(
                        f"The run in {one.folder.name} has not ended. Wait for it before you start another."
                    )
            folder = _new_folder(base, _NAMES[kind])
            job = Job(kind=kind, folder=folder, commands=commands(folder))
            self._jobs.append(job)
        threading.Thread(target=_execute, args=(job,), daemon=True).start()
        return job

    def all(self) -> list[Job]:
        """Return the started runs, the last one first."""
        with self._lock:
            return self._jobs[::-1]

    def running(self) -> list[Job]:
        """Return the runs that have not ended."""
        return [one for one in self.all() if not one.done.is_set()]


def job_answer(job: Job, run_id: str) -> dict[str, Any]:
    """Return a started run for the page; `run_id` is its id in the catalogue."""
    return {
        "kind": job.kind,
        "folder": job.folder.name,
        "run": run_id,
        "begun": (job.folder / FILE).is_file(),
        "ended": job.done.is_set(),
        "exit_code": job.exit_code,
        "last_words": job.last_words(),
    }


def _new_folder(base: Path, name: str) -> Path:
    for number in range(1, _MOST_FOLDERS):
        folder = base / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            continue
        except OSError as error:
            raise SlackwaterError(f"A folder for the run cannot be made: {error.strerror or error}.") from None
        return folder
    raise SlackwaterError(f"There are too many folders named {name}. Remove some of them.")


def _execute(job: Job) -> None:
    """Run the commands of a job one after the other, in a session of their own: Ctrl-C ends the server and not the run."""
    code = 1
    try:
        with (job.folder / _LOG).open("ab") as out:
            for arguments in job.commands:
                job.process = subprocess.Popen(
                    [sys.executable, "-m", "slackwater", *arguments],
                    cwd=job.folder.parent,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                code = job.process.wait()
                if code != 0:
                    break
    except OSError:
        log.exception("a run could not be started")
    finally:
        job.exit_code = code
        job.done.set()
