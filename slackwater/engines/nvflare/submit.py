"""Run a FLARE job: in FLARE's simulator, or submitted to a server and watched until the run is done."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slackwater import time_source
from slackwater.atomic import write_whole
from slackwater.engines.nvflare.job import LOG, STOP, Job
from slackwater.errors import ScenarioError, SlackwaterError
from slackwater.lazy import require
from slackwater.ledger.run import is_written
from slackwater.live.folder import PLAN, RunStopped, load_settings
from slackwater.live.status import read_status
from slackwater.planning.plan import Plan
from slackwater.training.process import stopping

log = logging.getLogger(__name__)
SUBMITTED = "nvflare.json"  # in the run folder: the job on the server
_BACK_OFF_S = (5.0, 300.0)
_CONNECT_S = 10.0  # time limit of a connection
_GATHER_S, _START_S, _ABORT_S = 30.0, 90.0, 30.0
"""Time limits: for clients to connect before a job, for a job to open the run, and for an aborted job to end."""
_MOST_FAILURES = 3  # failed jobs in a row without a round after which the job itself must be wrong
_SETTLED_S = 20.0  # a connected client that does not run the job this long after its start takes no part in it
_TWICE = 2  # looks in a row, so that what is only on its way does not count
_CALM, _CALM_S = 0.25, 20.0
"""A running job is replaced only if the next round is this share of a slot away, or this many seconds if that is less."""
_RUNNING, _ENDED = "RUNNING", "FINISHED"  # FLARE's state of a running job, and how those of ended jobs begin
_TAIL = 4  # lines of a log in a message
_LOOK_S = 0.5  # between two looks at a process or a run
_SHORT_S = 120.0  # a job that lasted longer was no failure of its own


def simulated(job_dir: str | Path, folder: str | Path) -> None:
    """Carry out the run prepared in `folder` in FLARE's simulator, which starts a process for every client."""
    require("nvflare")
    job, where = Job.read(job_dir), Path(folder).absolute()
    names = _names(Plan.load(where / PLAN))
    stop = threading.Event()
    with (
        tempfile.TemporaryDirectory(prefix="slackwater-") as temporary,
        (where / LOG).open("a", encoding="utf-8") as output,
        stopping(stop, after="the round", signals=(signal.SIGINT, signal.SIGTERM)),
    ):
        copy = job.copy_for(where, names, Path(temporary))
        command = [sys.executable, "-m", "nvflare.private.fed.app.simulator.simulator", str(copy)]
        command += ["-w", str(Path(temporary) / "workspace"), "-c", ",".join(names), "-t", str(len(names))]
        # In a session of its own: Ctrl-C is for us, who let it finish its round.
        process = subprocess.Popen(
            command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            while process.poll() is None:
                if stop.is_set():
                    (where / STOP).touch()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_LOOK_S)
        finally:
            if process.poll() is None:
                _kill(process)
            (where / STOP).unlink(missing_ok=True)
    if stop.is_set() and not _look(where).done:
        raise RunStopped(f"Stopped. Everything is saved. Resume with: slackwater resume {where}")
    if not _look(where).done:
        raise SlackwaterError(
            f"FLARE's simulator ended before the run was done. Its log is {where / LOG}, and ends with: {_tail(where / LOG)} "
            f"Resume with: slackwater resume {where}"
        )


def submitted(
    job_dir: str | Path,
    startup_kit: str | Path,
    folder: str | Path,
    *,
    poll_s: float = 2.0,
    patience_s: float = 86_400.0,
    stop: threading.Event | None = None,
) -> None:
    """Carry out the run prepared in `folder` on a FLARE server, and return when it is done.

    If the job or the server dies, a new job resumes from the folder. A site that comes back takes part again in a new
    job, which starts between two rounds. Fails after `patience_s` without progress or connection. `stop`, or Ctrl-C,
    stops the job after its round.

    Args:
        job_dir: The job's folder.
        startup_kit: The folder of an admin's startup kit, as FLARE provisions it: with the server's address and the
            certificates.
        folder: The run folder, on the server's machine.
        poll_s: Seconds between two questions to the server.
        patience_s: Seconds without progress after which it gives up.
        stop: Ends the run when it is set.
    """
    require("nvflare")
    kit = Path(startup_kit).expanduser().absolute()
    if not (kit / "startup" / "fed_admin.json").is_file():
        raise ScenarioError(
            f"{kit} is not an admin's startup kit: it has no startup/fed_admin.json. FLARE writes one for each admin of a "
            "project, such as prod_00/admin@nvidia.com."
        )
    logging.getLogger("nvflare").setLevel(logging.CRITICAL)  # what matters of its network errors is in our messages
    where = Path(folder).absolute()
    stop = stop or threading.Event()
    watch = _Watch(Job.read(job_dir), kit, where, poll_s=poll_s, patience_s=patience_s, stop=stop)
    with stopping(stop, after="the round"):
        watch.until_done()


class _Unreachable(SlackwaterError):
    """The server cannot be reached, or did not carry out a command."""


class _Watch:
    """One plan on one FLARE server, over one or more jobs."""

    def __init__(
        self, job: Job, kit: Path, folder: Path, *, poll_s: float, patience_s: float, stop: threading.Event
    ) -> None:
        self._job, self._kit, self._folder, self._stop = job, kit, folder, stop
        self._poll_s, self._patience_s = poll_s, patience_s
        plan = Plan.load(folder / PLAN)
        self._names = _names(plan)
        slot_s = load_settings(folder).slot_seconds
        self._calm_s = min(_CALM_S, _CALM * (plan.problem.slot_hours * 3600.0 if slot_s is None else slot_s))
        self._session: Any = None

    def until_done(self) -> None:
        """Submit the job until the run is done. Give up soon if it fails repeatedly without a round: the job is wrong."""
        pause, failures, active_at = _BACK_OFF_S[0], 0, time.monotonic()
        try:
            while not (before := _look(self._folder)).done:
                failed, began_at = True, time.monotonic()
                try:
                    why = self._one_job()
                except _Unreachable as error:
                    why, failed = str(error), False
                now = _look(self._folder)
                if now.done:
                    return
                if not why:  # it was ended to include a site that is back
                    continue
                if now.progress != before.progress or (failed and time.monotonic() - began_at > _SHORT_S):
                    pause, failures, active_at = _BACK_OFF_S[0], 0, time.monotonic()
                elif failed:
                    failures += 1
                idle_s = time.monotonic() - active_at
                if failures >= _MOST_FAILURES and not any(now.progress):
                    raise SlackwaterError(
                        f"The job failed {failures} times without a round. {why} "
                        + (_tail(self._folder / LOG) or "Is the run folder on the machine of the FLARE server?")
                    )
                if idle_s > self._patience_s:
                    raise SlackwaterError(
                        f"No progress for {idle_s / 3600:.1f} hours. {why} Everything is saved. Resume with: slackwater resume "
                        f"{self._folder}"
                    )
                log.warning("%s Trying again in %.0f s.", why, pause)
                self._rest(pause)
                pause = min(pause * 2, _BACK_OFF_S[1])
        finally:
            self._close()

    def _one_job(self) -> str:
        """Submit the job, or find the one that runs, and watch it to its end; return why it ended, empty if it was meant."""
        job_id = self._running()
        if job_id is None and _look(self._folder).done:  # it has ended meanwhile
            return ""
        job_id = job_id or self._submit()
        started_at, began, gone, back = time.monotonic(), False, 0, 0
        try:
            while not _look(self._folder).done:
                self._rest(self._poll_s)
                status, now = self._status(job_id), _look(self._folder)
                if status is None:
                    return "The server no longer knows the job."
                if status.startswith(_ENDED):
                    return f"The job ended before the run was done ({status})."
                if status != _RUNNING:
                    started_at = time.monotonic()
                    continue
                # A server that was restarted may call a job running that died with it.
                began = began or now.written
                late = time.monotonic() - started_at > _START_S
                gone = gone + 1 if not now.written and (began or late) else 0
                if gone >= _TWICE:
                    self._clear(job_id)
                    return "The process of the job is gone."
                if time.monotonic() - started_at < _SETTLED_S or not self._calm():
                    continue
                missing = self._without_job(job_id)
                back = back + 1 if missing else 0
                if back >= _TWICE and self._calm():
                    log.warning("Back online: %s. A new job includes it.", ", ".join(missing))
                    self._abort(job_id)
                    return ""
            return ""
        except RunStopped:
            (self._folder / STOP).touch()
            while _look(self._folder).written:  # until its round is over
                time.sleep(_LOOK_S)
            self._clear(job_id)
            raise
        except KeyboardInterrupt:
            self._clear(job_id)
            raise

    def _calm(self) -> bool:
        """Return whether no slot is open and the next round is some time away."""
        now = _look(self._folder)
        return not now.training and now.next_in_s >= self._calm_s

    def _connected(self) -> set[str]:
        with self._command("get_connected_client_list") as session:
            return {str(client.name) for client in session.get_connected_client_list()} & set(self._names)

    def _without_job(self, job_id: str) -> list[str]:
        """Return the plan's clients that are connected and do not run the job."""
        connected = self._connected()
        with self._command("get_client_job_status") as session:
            jobs = session.get_client_job_status() or []
        return sorted(connected - {str(one.get("client_name")) for one in jobs if one.get("job_id") == job_id})

    def _running(self) -> str | None:
        """Return the job that was submitted before and still runs; None if there is none."""
        try:
            job_id = str(json.loads((self._folder / SUBMITTED).read_text(encoding="utf-8"))["job"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        status = self._status(job_id)
        if status is None or status.startswith(_ENDED):
            return None
        if status == _RUNNING and not _look(self._folder).written:
            self._clear(job_id)
            return None
        return job_id

    def _submit(self) -> str:
        """Submit the job once all clients are connected, or after a while with those that are."""
        until = time.monotonic() + _GATHER_S
        while (missing := set(self._names) - self._connected()) and time.monotonic() < until:
            self._rest(1.0)
        if missing:
            log.warning("Not connected: %s.", ", ".join(sorted(missing)))
        (self._folder / STOP).unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(prefix="slackwater-") as temporary:
            copy = self._job.copy_for(self._folder, self._names, Path(temporary))
            with self._command("submit_job") as session:
                job_id = str(session.submit_job(str(copy)))
        write_whole(self._folder / SUBMITTED, json.dumps({"job": job_id}) + "\n")
        log.info("FLARE job %s submitted.", job_id)
        return job_id

    def _status(self, job_id: str) -> str | None:
        """Return the job's status; None if the server does not know it."""
        from nvflare.fuel.flare_api.api_spec import JobNotFound

        with self._command("get_job_meta") as session:
            try:
                return str(session.get_job_meta(job_id).get("status", ""))
            except JobNotFound:
                return None

    def _abort(self, job_id: str) -> None:
        """Abort the job, and wait until it has saved the run and ended."""
        with self._command("abort_job") as session:
            session.abort_job(job_id)
        until = time.monotonic() + _ABORT_S
        while time.monotonic() < until:
            status = self._status(job_id)
            if status is None or status.startswith(_ENDED) or not _look(self._folder).written:
                return
            time.sleep(_LOOK_S)

    def _clear(self, job_id: str) -> None:
        """Abort a job without a process, if the server still knows it so; it may hold clients."""
        with contextlib.suppress(_Unreachable):
            self._abort(job_id)

    @contextlib.contextmanager
    def _command(self, name: str) -> Iterator[Any]:
        """Give the session for a command; after an error the next command connects anew."""
        try:
            if self._session is None:
                self._session = self._connect()
            yield self._session
        except SlackwaterError:
            raise
        except Exception as error:  # FLARE raises many kinds, for the network and for refusals
            self._close()
            said = " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__
            raise _Unreachable(f"The FLARE server did not answer `{name}`: {said}.") from None

    def _connect(self) -> Any:
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        with contextlib.redirect_stdout(sys.stderr):  # FLARE prints that it connects; our output is data
            return new_secure_session(self._kit.name, str(self._kit), timeout=_CONNECT_S)

    def _close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(Exception):
                session.close()

    def _rest(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise RunStopped(f"Stopped. Everything is saved. Resume with: slackwater resume {self._folder}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What the run's file says, while another process may be writing it."""

    done: bool = False
    written: bool = False  # whether a process has it open
    training: bool = True  # whether a slot is open; True if unknown
    next_in_s: float = 0.0  # seconds until the next planned round
    progress: tuple[float, ...] = ()  # changes with every round


def _look(folder: Path) -> _Run:
    try:
        found = read_status(folder)
    except (SlackwaterError, sqlite3.Error):  # it is being created, or its disk is full
        return _Run(written=is_written(folder) is not False)
    coming = [one.at for one in found.coming]
    return _Run(
        done=found.stands == "done", written=found.stands == "running", training=found.training_slot is not None,
        next_in_s=(min(coming) - time_source.now()).total_seconds() if coming else math.inf,
        progress=(found.rounds, found.spent_kg),
    )  # fmt: skip


def _names(plan: Plan) -> list[str]:
    names = [str(name) for name in plan.problem.fleet.names]
    for name in names:
        if any(character in name for character in ", \t\n"):
            raise ScenarioError(
                f"FLARE's sites have names without spaces and commas, but the plan has {name!r}. Rename it."
            )
    return names


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads its session, and all that it started."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()


def _tail(path: Path) -> str:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    errors = [line for line in lines if "ERROR" in line] or lines
    return " ".join(errors[-_TAIL:])[-600:]
