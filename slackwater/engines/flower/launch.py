"""Run an app in this process or on a SuperLink, and check Flower's connections for plain text over a network."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import logging
import os
import platform
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from slackwater.engines.flower.app import RUN, App
from slackwater.errors import MissingExtraError, ScenarioError, SlackwaterError
from slackwater.ledger.run import FILE, Run
from slackwater.ledger.schema import LOCK
from slackwater.live.folder import PLAN, RunStopped
from slackwater.planning.plan import Plan

_LOCAL = (":local:", ":local-in-memory:")  # Flower's names for a SuperLink that it starts on this machine
_PORT = 8000


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """A connection to a SuperLink."""

    name: str
    address: str
    insecure: bool

    @property
    def on_loopback(self) -> bool:
        """Return whether messages never leave this machine."""
        if self.address in _LOCAL or self._host_and_port[0] == "localhost":
            return True
        try:
            return ipaddress.ip_address(self._host_and_port[0]).is_loopback
        except ValueError:
            return False

    def answers(self, timeout_s: float = 5.0) -> bool:
        """Return whether anything listens there now."""
        if self.address in _LOCAL:
            return True
        try:
            with socket.create_connection(self._host_and_port, timeout=timeout_s):
                return True
        except OSError:
            return False

    @property
    def _host_and_port(self) -> tuple[str, int]:
        parts = urlsplit(self.address if "//" in self.address else f"//{self.address}")
        return parts.hostname or "", parts.port or _PORT


def flower_home() -> Path:
    """Return the folder of Flower's configuration."""
    return Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")


def read_connection(name: str) -> Connection:
    """Return a connection by its name."""
    path = flower_home() / "config.toml"
    try:
        sections = tomllib.loads(path.read_text(encoding="utf-8")).get("superlink", {})
    except FileNotFoundError:
        sections = {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ScenarioError(f"Flower's configuration {path} cannot be read: {error}.") from None
    known = {key: value for key, value in sections.items() if isinstance(value, dict)}
    if name not in known:
        names = f"Known: {', '.join(sorted(known))}." if known else "It has none."
        raise ScenarioError(
            f"There is no SuperLink connection {name!r} in {path}. {names} Add one:\n\n[superlink.{name}]\n"
            'address = "superlink.example.org:8000"\nroot-certificates = "/path/to/ca.crt"'
        )
    section = known[name]
    address = section.get("address", "")
    if not isinstance(address, str) or not address:
        raise ScenarioError(f"{path}, [superlink.{name}]: address is missing.")
    return Connection(name=name, address=address, insecure=section.get("insecure") is True)


def check_secure(connection: Connection, *, allow_insecure: bool) -> None:
    """Reject plain text to another machine, unless the user allows it."""
    if connection.insecure and not connection.on_loopback and not allow_insecure:
        raise ScenarioError(
            f"The connection {connection.name!r} to {connection.address} is in plain text (insecure = true): others could read "
            "and change models and names. Use root-certificates (see docs/guides/live-on-flower.md), or allow it with "
            "--allow-insecure."
        )


log = logging.getLogger(__name__)
T = TypeVar("T")
_BACK_OFF_S = (5.0, 300.0)
_COMMAND_S = 120.0  # time limit of a Flower command
_SAID = 300  # most characters of a command's last line in a message
_MOST_FAILURES = 3  # failed starts in a row after which the app itself must be wrong
_MISSING = 2  # checks in a row without a process that has the run open: the ServerApp is gone
_LOOK_S, _LOOK_HELD_S = 5.0, 30.0
"""Between two questions to the SuperLink, each a process: while no process has the run open, and otherwise."""
_OPENED_S = (
    900.0  # time from the start of a ServerApp until it must have opened the run; Flower may install packages first
)
_NEVER_STARTED = (
    "The ServerApp ended without starting the run in {folder}, so nothing of it was planned or charged. Its main function "
    "must call CarbonAware(strategy, context=context).start(..) or slackwater.flower.run(..)."
)
_REFUSED = "refused.txt"  # in the run folder: why the ServerApp refused to start, for the process that watches it


def refused(folder: Path, sentence: str) -> ScenarioError:
    """Return the error of a run that must not start, and leave the sentence for the process that watches a SuperLink."""
    with contextlib.suppress(OSError):
        (folder / _REFUSED).write_text(sentence, encoding="utf-8")
    return ScenarioError(sentence)


def in_process(app_dir: str | Path, folder: str | Path) -> None:
    """Carry out the run prepared in `folder` with the app's ServerApp and ClientApp, each client called in turn."""
    try:
        from flwr.app import Context, RecordDict
    except ModuleNotFoundError:
        raise MissingExtraError("Flower", "flower") from None
    from slackwater.engines.flower.grid import InProcessGrid

    app, where = App.read(app_dir), Path(folder).absolute()
    fleet = Plan.load(where / PLAN).problem.fleet
    config: dict[str, Any] = {**app.config, RUN: str(where)}
    nodes: dict[str, dict[str, bool | int | float | str]] = {
        str(name): {"zone": str(zone), "partition-id": number, "num-partitions": len(fleet)}
        for number, (name, zone) in enumerate(zip(fleet.names, fleet.zone, strict=True))
    }
    grid = InProcessGrid(app.load(app.client), nodes, run_config=config, only_planned=True)
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config)
    app.check(on_superlink=False)
    (where / _REFUSED).unlink(missing_ok=True)
    app.load(app.server)(grid, context)
    if not Run.begun(where):
        raise SlackwaterError(_NEVER_STARTED.format(folder=where))


def deployed(
    app_dir: str | Path,
    superlink: str,
    folder: str | Path,
    *,
    allow_insecure: bool = False,
    poll_s: float = 2.0,
    patience_s: float = 86_400.0,
    stop: threading.Event | None = None,
) -> None:
    """Carry out the run prepared in `folder` on a SuperLink, and return when it is done.

    If the ServerApp or SuperLink dies, a new Flower run resumes from the folder. Fails after `patience_s` without
    progress or connection. `stop`, or Ctrl-C, stops the Flower run too.
    """
    app, where = App.read(app_dir), Path(folder).absolute()
    connection = read_connection(superlink)
    check_secure(connection, allow_insecure=allow_insecure)
    app.check(on_superlink=True)
    (where / _REFUSED).unlink(missing_ok=True)
    _Watch(app, connection, where, poll_s=poll_s, patience_s=patience_s, stop=stop or threading.Event()).until_done()


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowerRun:
    """A run as `flwr ls` shows it."""

    status: str
    details: str

    @property
    def finished(self) -> bool:
        """Return whether its ServerApp has ended, successfully or not."""
        return self.status.startswith("finished")


class _CommandError(SlackwaterError):
    """A Flower command failed, usually because the SuperLink cannot be reached."""


class _Watch:
    """One plan on one SuperLink, over one or more Flower runs."""

    def __init__(
        self, app: App, connection: Connection, folder: Path, *, poll_s: float, patience_s: float, stop: threading.Event
    ) -> None:
        self._app, self._connection, self._folder, self._stop = app, connection, folder, stop
        self._poll_s, self._patience_s = poll_s, patience_s
        self._reached_at = time.monotonic()
        self._former = ""  # which process held the run's lock before the last start

    def until_done(self) -> None:
        """Start the app until the run is done. Give up soon if it fails repeatedly without a round: the app is wrong."""
        pause, failures, active_at = _BACK_OFF_S[0], 0, time.monotonic()
        while not self._done():
            progress = self._progress()
            try:
                why = self._ended(self._one_run())
            except _CommandError as error:
                why = str(error)
            if self._done():
                return
            self._check_started()
            if self._progress() != progress:
                pause, failures, active_at = _BACK_OFF_S[0], 0, time.monotonic()
            elif self._connection.answers():
                failures += 1
            idle_s = time.monotonic() - active_at
            if failures >= _MOST_FAILURES and not self._progress():
                raise SlackwaterError(
                    f"The app failed {failures} times without a round. Last error: {why} See its log with: flwr log RUN_ID "
                    f"{self._connection.name} --show"
                )
            if idle_s > self._patience_s:
                raise SlackwaterError(
                    f"No progress for {idle_s / 3600:.1f} hours. Last error: {why} Everything is saved. Resume with: slackwater "
                    f"resume {self._folder}"
                )
            log.warning("%s Restarting the app in %.0f s.", why, pause)
            self._rest(pause)
            pause = min(pause * 2, _BACK_OFF_S[1])

    def _check_started(self) -> None:
        """Raise if starting again cannot help: the ServerApp refused, or the plan is over without a round."""
        with contextlib.suppress(OSError, UnicodeDecodeError):
            raise SlackwaterError((self._folder / _REFUSED).read_text(encoding="utf-8"))
        ended = _read(self._folder, lambda run: bool(run.journal.get("ended")), False)
        if ended:
            raise SlackwaterError(_read(self._folder, _last_error, "") or f"The plan in {self._folder} had no round.")

    def _one_run(self) -> FlowerRun:
        """Start a Flower run and watch it to its end."""
        former = self._former = _holder(self._folder)
        run_id = self._start()
        log.info("Flower run %s started.", run_id)
        began, missing, looked, started = False, 0, 0.0, time.monotonic()
        try:
            while not self._done():
                self._rest(self._poll_s)
                # A process that takes the lock writes its name. Test the lock only then: earlier, the test could make it fail.
                began = began or _holder(self._folder) != former
                held = began and _is_locked(self._folder)
                missing = missing + 1 if began and not held else 0
                if missing >= _MISSING and not self._done():
                    # Flower itself would notice only after a minute or more without a heartbeat.
                    self._flower("stop", run_id, self._connection.name, "--format", "json")
                    return FlowerRun(status="finished:failed", details="its process is gone.")
                if not began and time.monotonic() - started > _OPENED_S and self._connection.answers():
                    self._flower("stop", run_id, self._connection.name, "--format", "json")
                    raise SlackwaterError(
                        f"The app runs for {_OPENED_S:.0f} s without starting the run in {self._folder}, so it was stopped: its "
                        "work would be neither planned nor charged. Its main function must call CarbonAware(strategy, "
                        "context=context).start(..) or slackwater.flower.run(..) first."
                    )
                if time.monotonic() - looked < (_LOOK_HELD_S if held else _LOOK_S):
                    continue
                looked = time.monotonic()
                try:
                    now = self._look(run_id)
                except _CommandError as error:
                    if time.monotonic() - self._reached_at > self._patience_s:
                        raise
                    log.warning("%s Retrying in %.0f s.", error, _LOOK_S)
                    continue
                if now is None:
                    return FlowerRun(status="finished:failed", details="the SuperLink no longer knows its run.")
                if now.finished:
                    return now
            return FlowerRun(status="finished:completed", details="")
        except (RunStopped, KeyboardInterrupt):
            with contextlib.suppress(_CommandError):
                self._flower("stop", run_id, self._connection.name, "--format", "json")
            raise

    def _ended(self, ended: FlowerRun) -> str:
        """Return why a run ended before its plan."""
        if ended.status.endswith("stopped"):
            raise RunStopped(
                f"The Flower run was stopped (flwr stop). Everything is saved. Resume with: slackwater resume {self._folder}"
            )
        if ended.status.endswith("completed") and _holder(self._folder) == self._former:
            raise SlackwaterError(_NEVER_STARTED.format(folder=self._folder))
        return f"The ServerApp ended before the run was done: {_sentence(ended.details or ended.status)}"

    def _start(self) -> str:
        override = f"{RUN}={json.dumps(str(self._folder))}"
        answer = self._flower("run", str(self._app.folder), self._connection.name, "--format", "json", "-c", override)
        return str(answer["run-id"])

    def _look(self, run_id: str) -> FlowerRun | None:
        answer = self._flower("ls", self._connection.name, "--run-id", run_id, "--format", "json")
        runs = answer.get("runs") or []
        if not runs:
            return None
        return FlowerRun(status=str(runs[0].get("status", "")), details=str(runs[0].get("status-details", "")))

    def _flower(self, *arguments: str) -> dict[str, Any]:
        """Run a Flower command, and return its answer in JSON."""
        env = {"FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_TELEMETRY_ENABLED": "0", **os.environ}
        command = [flwr_command(), *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_S, env=env)
        except subprocess.TimeoutExpired:
            raise _CommandError(f"`flwr {arguments[0]}` did not end within {_COMMAND_S:.0f} s.") from None
        answer = _json_in(done.stdout)
        if answer is None or not answer.get("success"):
            said = (answer or {}).get("error-message") or done.stderr.strip() or done.stdout.strip()
            last = str(said or "no reason given").strip().splitlines()[-1:]
            raise _CommandError(f"`flwr {arguments[0]}` failed: {_sentence(''.join(last).strip()[:_SAID])}")
        self._reached_at = time.monotonic()
        return answer

    def _rest(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise RunStopped(f"Stopped. Everything is saved. Resume with: slackwater resume {self._folder}")

    def _done(self) -> bool:
        return _read(self._folder, lambda run: run.status == "done", False)

    def _progress(self) -> int:
        """Return a number that grows while the run makes progress."""
        return _read(self._folder, lambda run: sum(1 for _ in run.ledger.charges()), 0)


def _holder(folder: Path) -> str:
    """Return which process last took the run's lock."""
    try:
        return (folder / LOCK).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _is_locked(folder: Path) -> bool:
    """Return whether a process has the run open for writing; True if unknown."""
    try:
        import fcntl
    except ImportError:  # Windows
        return True
    if _holder(folder).split()[1:] not in ([], [platform.node()]):  # a shared disk, on which locks may not work
        return True
    try:
        with (folder / LOCK).open("rb") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


def flwr_command() -> str:
    """Return Flower's command: the one beside this Python, else the one on the path."""
    beside = Path(sys.executable).parent / "flwr"
    found = str(beside) if beside.exists() else shutil.which("flwr")
    if found is None:
        raise MissingExtraError("Flower", "flower")
    return found


def _read(folder: Path, look: Callable[[Run], T], otherwise: T) -> T:
    """Read something from the run's file, while another process may be writing it."""
    if not (folder / FILE).exists():
        return otherwise
    try:
        with Run.open(folder, read_only=True) as run:
            return look(run)
    except (SlackwaterError, sqlite3.Error):  # it is being created, or its disk is full
        return otherwise


def _last_error(run: Run) -> str:
    return next((said for _, level, _, said in reversed(run.events()) if level == "error"), "")


def _json_in(text: str) -> dict[str, Any] | None:
    """Return the JSON object that a command printed, among its other lines."""
    for start, line in enumerate(lines := text.splitlines()):
        if line.lstrip().startswith("{"):
            try:
                found = json.loads("\n".join(lines[start:]))
            except ValueError:
                continue
            return found if isinstance(found, dict) else None
    return None


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
