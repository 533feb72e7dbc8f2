"""A world to test in: providers on loopback, a time of its own, and the real commands as processes."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from grids import HOUR, ElectricityMapsWorld, EnergyChartsWorld, Fault, Moving, NesoWorld, Server
from recount import check

from slackwater.engines.flower.app import new_app
from slackwater.time_source import VARIABLE, VirtualTime
from slackwater.units import iso

REPOSITORY = Path(__file__).resolve().parents[2]
NOW = datetime(2026, 10, 5, 6, 20, tzinfo=UTC)
"""When a world begins, a Monday."""
START = NOW.replace(minute=0) + HOUR
"""First slot of the scenarios."""
LAGS = {"electricitymaps": HOUR, "neso": HOUR / 2, "energycharts": 2 * HOUR}
"""How long after its end a value is published."""
REACHES = {"electricitymaps": 72 * HOUR, "neso": 48 * HOUR, "energycharts": 36 * HOUR}
PROVIDERS = tuple(LAGS)
SITES = {
    "electricitymaps": {"lyon": "FR", "dublin": "IE", "helsinki": "FI"},
    "neso": {"leeds": "GB", "cardiff": "GB", "dundee": "GB"},
    "energycharts": {"lyon": "FR", "berlin": "DE", "vienna": "AT"},
}
BUDGETS_KG = {"electricitymaps": 1.0, "neso": 2.4, "energycharts": 1.6}
"""Less than half of what 24 slots of all sites emit."""
_TRAINS = "    with measured(msg, context) as meter:"
_FAILS = """\
        from slackwater import time_source

        if (meter.slot, str(context.node_config["name"])) in {lost!r}:
            raise RuntimeError("the disk of this site is full")
        time_source.sleep({seconds})
"""


@dataclass(frozen=True, kw_only=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that is done to a run at a moment of the world."""

    at: datetime
    what: Literal["kill", "close", "open"]
    """`kill`: SIGKILL, then `slackwater resume`. `close`: no provider accepts connections, until `open`."""
    away: timedelta = timedelta(0)
    """After a kill: how long nothing runs."""
    forget: bool = False
    """After a kill: whether the cache of the providers' values is lost too."""


class World:
    """Use it as a context; `clock` is its time, `servers` its providers by name."""

    def __init__(
        self,
        folder: Path,
        *,
        faults: Sequence[Fault] = (),
        reaches: Mapping[str, timedelta] | None = None,
        free: bool = False,
    ) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.clock = VirtualTime.begin(folder / "clock", NOW)
        reach = {**REACHES, **(reaches or {})}
        self.providers: dict[str, Moving] = {
            name: kind(self.clock.now, faults, lag=LAGS[name], reach=reach[name], **more)
            for name, kind, more in (
                ("electricitymaps", ElectricityMapsWorld, {"free": free}),
                ("neso", NesoWorld, {}),
                ("energycharts", EnergyChartsWorld, {}),
            )
        }
        self.servers = {name: Server(answers) for name, answers in self.providers.items()}
        home = folder / "home"
        home.mkdir(exist_ok=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLACKWATER_", "XDG_"))}
        self.environment = kept | {
            "PYTHONPATH": str(REPOSITORY),
            "HOME": str(home),
            "SLACKWATER_CACHE": str(folder / "cache"),
            "SLACKWATER_KEY_ELECTRICITYMAPS": "em-key",
            "SLACKWATER_LOOPBACK_HTTP": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            VARIABLE: str(folder / "clock"),
        }
        for name, server in self.servers.items():
            self.environment[f"SLACKWATER_URL_{name.upper()}"] = server.address
        self.patience_s = 300.0
        """Real time that a command may take."""
        self._started: list[subprocess.Popen[str]] = []

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.clock.hold(None)
        for process in self._started:
            if process.poll() is None:
                process.kill()
                process.communicate()
        for server in self.servers.values():
            server.close()

    # -- what a user does

    def app(self, *, train_minutes: float = 5.0, lost: Sequence[tuple[int, str]] = (), name: str = "app") -> Path:
        """Make an app as `slackwater flower new` does, whose clients take so long, and fail in the slots in `lost`."""
        folder = self.folder / name
        new_app(folder)
        client = folder / name / "client_app.py"
        text = client.read_text()
        assert text.count(_TRAINS) == 1
        head, rest = text.split(_TRAINS)
        line, body = rest.split("\n", 1)
        extra = _FAILS.format(lost=set(lost) or {(-1, "")}, seconds=60 * train_minutes)
        client.write_text(f"{head}{_TRAINS}{line}\n{extra}{body}")
        return folder

    def scenario(
        self,
        path: Path,
        provider: str,
        *,
        sites: Mapping[str, str] | None = None,
        rounds: int = 8,
        slack: int = 16,
        fine_tune: int = 2,
        budget_kg: float | None = None,
        more: str = "",
    ) -> Path:
        """Write a scenario. The first site declares its power; the others what a round takes, which is charged as it is."""
        factor = "direct" if provider == "neso" else "lifecycle"
        lines = [
            f"start = {iso(START)}",
            f"rounds = {rounds}",
            f"slack = {slack}",
            f"fine_tune = {fine_tune}",
            f"budget_kg = {budget_kg or BUDGETS_KG[provider]}",
            more,
            f'[data]\nsource = ["{provider}"]\nfactor = "{factor}"',
        ]
        for number, (name, zone) in enumerate((sites or SITES[provider]).items()):
            draws = "power_w = 300\nidle_w = 4" if number == 0 else "energy_kwh = 0.3"
            lines.append(f'[[client]]\nname = "{name}"\nzone = "{zone}"\n{draws}')
        path.write_text("\n".join(lines).replace("Z\n", ":00Z\n", 1))
        return path

    def start(self, *args: str | Path, cwd: Path | None = None) -> subprocess.Popen[str]:
        """Start a command, as from a shell."""
        process = subprocess.Popen(
            [sys.executable, "-m", "slackwater", *map(str, args)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            cwd=cwd or self.folder,
            env=self.environment,
        )
        self._started.append(process)
        return process

    def end(self, process: subprocess.Popen[str], *, code: int | None = 0) -> Done:
        """Wait for a command; `code` is what it must end with, if not None."""
        try:
            out, err = process.communicate(timeout=self.patience_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # its traceback says where it hangs
            out, err = process.communicate()
            raise AssertionError(f"{process.args} hangs at {self.clock.now()}:\n{out}\n{err}") from None
        done = Done(code=process.returncode, out=out, err=err)
        assert code is None or done.code == code, f"{process.args} ends with {done.code}:\n{out}\n{err}"
        assert "Traceback" not in err, err
        assert "this is a defect" not in err.lower(), err
        return done

    def command(self, *args: str | Path, cwd: Path | None = None, code: int | None = 0) -> Done:
        """Run a command to its end."""
        return self.end(self.start(*args, cwd=cwd), code=code)

    # -- what happens in the world

    def when(self, moment: datetime, process: subprocess.Popen[str]) -> bool:
        """Wait until a process waits for something after a moment of the world; False if it ends before."""
        self.clock.hold(moment)
        until = time.monotonic() + self.patience_s
        while self.clock.now() < moment:
            if process.poll() is not None:
                return False
            assert time.monotonic() < until, f"{process.args} does not get to {moment}; it is {self.clock.now()}"
            time.sleep(0.005)
        return True

    def kill(self, process: subprocess.Popen[str]) -> None:
        """SIGKILL."""
        process.kill()
        process.communicate()
        self.clock.hold(None)

    def live(self, app: Path, *options: str, script: Sequence[Event] = ()) -> Done:
        """Do `slackwater run` with no other option unless some are given, and all that the script says; `resume` follows a kill."""
        process = self.start("run", "scenario.toml", "--app", ".", "--out", "run", *options, cwd=app)
        for event in sorted(script, key=lambda event: event.at):
            if not self.when(event.at, process):
                break
            if event.what in ("close", "open"):
                for server in self.servers.values():
                    server.close() if event.what == "close" else server.open()
                continue
            self.kill(process)
            self.clock.set(event.at + event.away)
            if event.forget:
                shutil.rmtree(self.folder / "cache")
            process = self.start("resume", "run", cwd=app)
        self.clock.hold(None)
        done = self.end(process)
        for server in self.servers.values():  # a run may end while they are closed
            server.open()
        return done

    @contextmanager
    def serving(self, what: Path) -> Iterator[Callable[[str], Any]]:
        """Serve a run; gives a function that fetches JSON from a path of the dashboard."""
        process = self.start("serve", what, "--port", "0", "--no-open")
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address.startswith("http://"), process.communicate()

        def fetch(path: str) -> Any:
            with urllib.request.urlopen(f"{address.rstrip('/')}{path}", timeout=60) as answer:
                return json.loads(answer.read())

        try:
            yield fetch
        finally:
            process.terminate()
            process.communicate(timeout=self.patience_s)

    def dashboard(self, run: Path) -> dict[str, Any]:
        """What the dashboard's Run view is made of."""
        with self.serving(run) as fetch:
            listed = [one for one in fetch("/api/sources")["sources"] if one["kind"] == "run"]
            found: dict[str, Any] = fetch(f"/api/run?run={listed[0]['id']}")
        return found


def rows(run: Path, query: str) -> list[dict[str, Any]]:
    """Read a run's file without any code of the product."""
    db = sqlite3.connect(f"file:{run / 'run.db'}?mode=ro", uri=True)
    db.row_factory = sqlite3.Row
    try:
        return [dict(row) for row in db.execute(query)]
    finally:
        db.close()


def said(run: Path, level: str | None = None) -> str:
    """All events of a run, a line each."""
    where = "" if level is None else f"WHERE level = '{level}'"
    return "\n".join(row["message"] for row in rows(run, f"SELECT message FROM events {where} ORDER BY id"))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run came to, recounted from its file."""

    rounds: int
    window_rounds: int
    spent_kg: float
    budget_kg: float
    unsettled: int
    """Charges at an upper bound or a forecast."""
    replans: int
    lost: int
    """Client-slots that were charged and not used."""
    status: str


def outcome(run: Path) -> Outcome:
    """Recount a run; raises AssertionError where its lines contradict each other or exceed the budget."""
    counted = check(run)
    lines = rows(run, "SELECT * FROM charges")
    settled = {line["corrects"] for line in lines if line["kind"] == "settlement"}
    open_lines = [
        line
        for line in lines
        if line["kind"] == "charge" and line["intensity_kind"] in ("bound", "forecast") and line["id"] not in settled
    ]
    rounds = rows(run, "SELECT in_window FROM rounds")
    return Outcome(
        rounds=len(rounds),
        window_rounds=sum(bool(row["in_window"]) for row in rounds),
        spent_kg=counted["spent_kg"],
        budget_kg=counted["budget_kg"],
        unsettled=len(open_lines),
        replans=rows(run, "SELECT count(*) AS n FROM replans")[0]["n"],
        lost=int(counted["lost"]),
        status=rows(run, "SELECT status FROM run")[0]["status"],
    )


def emitted_kg(world: World, run: Path, provider: str) -> float:
    """What a settled run emitted: its energies times what the provider told when each was settled.

    Hours of which it told nothing then are interpolated by the product, and taken as they are.
    """
    told, lines = world.providers[provider], rows(run, "SELECT * FROM charges ORDER BY id")
    energy_kwh = {line["id"]: line["energy_kwh"] for line in lines if line["kind"] == "charge"}
    for line in lines:
        if line["kind"] == "correction":
            energy_kwh[line["corrects"]] += line["energy_kwh"]
    total = []
    for line in (line for line in lines if line["kind"] == "settlement"):
        slot, at = datetime.fromisoformat(line["slot_start"]), datetime.fromisoformat(line["booked_at"])
        steps = [slot + told.step * number for number in range(HOUR // told.step)]
        values = [told.told(line["zone"], when, at) for when in steps]
        known = [value / 1000 for value in values if value is not None]
        intensity = sum(known) / len(known) if len(known) == len(values) else line["intensity_kg_per_kwh"]
        total.append(energy_kwh[line["corrects"]] * intensity)
    return math.fsum(total)
