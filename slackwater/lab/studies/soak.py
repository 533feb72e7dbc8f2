"""Soak test of real SuperLink and SuperNodes on loopback, over TLS with node authentication: long runs and faults.

    python -m slackwater.lab soak same         # 7 SuperNodes, over 20 slots: the same model as in process
    python -m slackwater.lab soak faults       # 36 faults at random times, each checked by an independent recount
    python -m slackwater.lab soak table        # into docs/research/reliability.md

It needs Linux, and root for the full disk (a tmpfs).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import sqlite3
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import numpy as np

import slackwater as sw
from slackwater.atomic import write_whole
from slackwater.engines.flower.app import new_app
from slackwater.flower import in_process
from slackwater.lab.store import RESULTS, Row, Store
from slackwater.lab.studies import use_tests
from slackwater.lab.tables import line, under, write_between
from slackwater.ledger.run import Run
from slackwater.live.folder import LiveSettings, prepare

use_tests("engines")
from light_app import light_app  # type: ignore[import-not-found]  # noqa: E402
from plans import final_model  # type: ignore[import-not-found]  # noqa: E402
from processes import BIN, LINK, Deployment, kill_tree, until  # type: ignore[import-not-found]  # noqa: E402
from recount import check  # type: ignore[import-not-found]  # noqa: E402

PAGE = Path("docs") / "research" / "reliability.md"
BEGIN, END = "<!-- soak: written by `python -m slackwater.lab soak table` -->", "<!-- end of soak -->"
SAME, FAULTS = "same", "faults"
START = datetime(2022, 3, 1, tzinfo=UTC)
SEVEN = {
    "brussels": "BE",
    "london": "GB",
    "dublin": "IE",
    "helsinki": "FI",
    "stockholm": "SE-SE3",
    "frankfurt": "DE",
    "paris": "FR",
}
THREE = {name: SEVEN[name] for name in ("dublin", "helsinki", "paris")}
KINDS = {
    "node": "SIGKILL of a SuperNode in training",
    "server": "SIGKILL of the ServerApp",
    "link": "SIGKILL of the SuperLink, back after 2 to 25 s",
    "everything": "SIGKILL of everything at once, then `slackwater resume`",
    "hang": "a SuperNode hangs (SIGSTOP) for one to one and a half slots",
    "new-id": "a SuperNode comes back with a new key and node id",
    "cut": "network cut to one SuperNode for one to one and a half slots",
    "disk": "full disk for the ledger for one to one and a half slots",
    "clock": "the clock moved by one and a half slots, forward or back",
}
_RECOVERY_SLOTS = 14
_SHIFT = """\
import time

_real = time.time


def _shifted():
    try:
        with open({path!r}) as offset:
            return _real() + float(offset.read())
    except (OSError, ValueError):
        return _real()


time.time = _shifted
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One long run, or one fault."""

    part: str
    """`same` or `faults`."""
    at: str


@click.group()
def main() -> None:
    """Long runs on real processes."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that no process is left running


@main.command()
@click.option("--slot-seconds", default=40.0, help="Long enough for a round of seven clients with PyTorch.")
@click.option("--slots", default=24)
@click.option("--results", type=click.Path(path_type=Path), default=RESULTS / "soak.jsonl")
def same(slot_seconds: float, slots: int, results: Path) -> None:
    """Run a plan of over 20 slots on 7 SuperNodes, and the same in process."""
    with _workspace() as folder:
        plan = _plan(SEVEN, slots, per_slot_kg=0.015, fine_tune=2)
        new_app(folder / "soakapp")
        prepare(folder / "here", plan, LiveSettings(slot_seconds=0.0))
        in_process(folder / "soakapp", folder / "here")
        prepare(folder / "there", plan, _settings(folder / "soakapp", slot_seconds))
        began, memory = time.monotonic(), dict[str, float]()
        with _federation(folder / "net", SEVEN) as net:
            supervisor = _resume(net, folder / "there", folder / "supervisor.log")
            try:
                while supervisor.poll() is None:
                    for part, mb in net.memory_mb().items():
                        memory[part] = max(memory.get(part, 0.0), mb)
                    time.sleep(2.0)
            finally:
                kill_tree(supervisor)
        counted = check(folder / "there")
        here, there = final_model(folder / "here"), final_model(folder / "there")
        with Run.open(folder / "there", read_only=True) as run:
            outcomes = [one.outcome for one in run.journal.attempts()]
            in_window = sum(done.in_window for done in run.rounds())
        cell = {
            "supernodes": len(SEVEN),
            "slots": plan.problem.rounds + plan.end,
            "slot_seconds": slot_seconds,
            "rounds": counted["rounds"],
            "rounds_in_window": in_window,
            "trained": len(outcomes),
            "lost": len(outcomes) - outcomes.count("done"),
            "largest_difference": max(float(np.abs(here[name] - there[name]).max()) for name in here),
            "spent_kg": counted["spent_kg"],
            "budget_kg": counted["budget_kg"],
            "seconds": time.monotonic() - began,
            "memory_mb": {part: round(mb) for part, mb in memory.items()},
        }
        Store(results, Cell).add(Cell(part=SAME, at=_now()), cell)
        click.echo(json.dumps(cell, indent=1))


@main.command()
@click.option("--each", default=4, help="Number of faults of each kind.")
@click.option("--slot-seconds", default=30.0)
@click.option("--kinds", default=",".join(KINDS))
@click.option("--seed", default=0)
@click.option("--results", type=click.Path(path_type=Path), default=RESULTS / "soak.jsonl")
def faults(each: int, slot_seconds: float, kinds: str, seed: int, results: Path) -> None:
    """Inject faults at random times, a dozen in each run, until there are enough of each kind."""
    wanted = kinds.split(",")
    while True:
        stored = [row for row in Store(results, Cell).rows() if row["part"] == FAULTS]
        missing = [kind for kind in wanted for _ in range(each - sum(cell["kind"] == kind for cell in stored))]
        if not missing:
            return
        chance = random.Random(f"{seed}/{len(stored)}")
        chance.shuffle(missing)
        with _workspace() as folder, _small_disk(folder / "disk") as disk:
            session = _Session(folder=folder, run=disk / "run", slot_s=slot_seconds, chance=chance, results=results)
            session.carry_out(missing[:12])


@main.command()
@click.option("--results", type=click.Path(path_type=Path), default=RESULTS / "soak.jsonl")
@click.option("--page", type=click.Path(path_type=Path), default=PAGE)
def table(results: Path, page: Path) -> None:
    """Write the tables into docs/research/reliability.md, between the marks."""
    text = tables(Store(results, Cell).rows())
    write_between(page, BEGIN, END, text, otherwise=r"<!-- Filled in from the soak.*?-->")


def tables(stored: list[Row]) -> str:
    """Return the stored cells as Markdown."""
    lines: list[str] = []
    for cell in [row for row in stored if row["part"] == SAME][-1:]:
        lines += [
            f"A plan of {cell['slots']} slots of {cell['slot_seconds']:g} s ({cell['rounds']} rounds, "
            f"{cell['rounds_in_window']} of them in the fine-tuning window) on {cell['supernodes']} SuperNodes, over TLS with "
            f"node authentication: {cell['trained']} updates, "
            f"{cell['lost']} lost, {cell['spent_kg']:.4f} of {cell['budget_kg']:.4f} kg charged. The model differs from the same "
            f"run in process by at most {cell['largest_difference']:.1e}.",
            "",
        ]
    cells = [row for row in stored if row["part"] == FAULTS]
    lines += [
        line(
            "fault",
            "times",
            "continued",
            "recount exact, nothing charged twice, within the budget",
            "updates lost, median",
            "time to recover, median (longest)",
        ),
        under(6),
    ]
    for kind, what in KINDS.items():
        mine = [cell for cell in cells if cell["kind"] == kind]
        if not mine:
            continue
        took = [cell["recovered_s"] for cell in mine if cell["recovered_s"] is not None]
        seconds = f"{statistics.median(took):.0f} s ({max(took):.0f} s)" if took else "-"
        lost = statistics.median(cell["lost"] for cell in mine)
        lines.append(line(what, len(mine), len(took), sum(cell["exact"] for cell in mine), f"{lost:g}", seconds))
    if cells:
        lines += [
            "",
            f"{len(cells)} faults at random times of runs on {len(THREE)} SuperNodes with slots of {cells[0]['slot_seconds']:g} s, on "
            "two busy cores. A fault may occur before the run has recovered from the last one. Recovered: a round is stored again, "
            "with the affected client if there was one. A service manager restarts SuperNodes that end or give up.",
        ]
    if left := [row for row in stored if row["part"] == "without_watchdog"]:
        kinds = ", ".join(sorted(cell["kind"] for cell in left))
        lines += [
            "",
            f"Not in the table: {len(left)} faults ({kinds}) before SuperNodes had that watchdog. The affected client did not return "
            f"within {_RECOVERY_SLOTS} slots; the run continued without it, and its recount was exact. The cause was not examined. In "
            "another run, SuperNodes gave up after a broken TLS handshake while their processes stayed alive; hence the watchdog.",
        ]
    return "\n".join(lines).rstrip()


@dataclass
class _Session:
    """One run with faults."""

    folder: Path
    run: Path
    slot_s: float
    chance: random.Random
    results: Path
    net: Deployment = field(init=False)
    supervisor: subprocess.Popen[bytes] = field(init=False)
    pending: list[tuple[dict[str, Any], float, int]] = field(default_factory=list)
    """Faults from which the run has not recovered: the cell, the time of repair, and the last slot then."""

    def carry_out(self, kinds: list[str]) -> None:
        """Inject faults one after another, also before the run has recovered from the last; then recount."""
        app = light_app(self.folder / "app", seconds=2.0)
        for module in ("client_app", "server_app"):
            path = app / "lightapp" / f"{module}.py"
            path.write_text(_SHIFT.format(path=str(self.folder / "offset")) + path.read_text())
        prepare(self.run, _plan(THREE, 12 * len(kinds), per_slot_kg=0.1, fine_tune=2), _settings(app, self.slot_s))
        with _federation(self.folder / "net", THREE, proxies=True) as self.net:
            self.supervisor = _resume(self.net, self.run, self.folder / "supervisor.log")
            threading.Thread(target=self._watch, daemon=True).start()
            try:
                until(lambda: bool(self._ask("SELECT count(*) FROM rounds", ())), "the first round", 600)
                for kind in kinds:
                    if self.supervisor.poll() is not None:
                        break  # the schedule is over; the remaining faults come in the next run
                    self._inject(kind)
                with contextlib.suppress(AssertionError):
                    until(lambda: not self.pending, "all recovered", _RECOVERY_SLOTS * self.slot_s)
            finally:
                kill_tree(self.supervisor)
                click.echo((self.folder / "supervisor.log").read_text(errors="replace")[-500:], err=True)
        for cell, _, _ in list(self.pending):
            self._keep(cell, None)

    def _inject(self, kind: str) -> None:
        time.sleep(self.chance.uniform(0.2, 1.2) * self.slot_s)
        client, phase, began, before = self.chance.choice(sorted(THREE)), self._phase(), time.time(), self._slot()
        getattr(self, f"_do_{kind.replace('-', '_')}")(client)
        hit = client if kind in ("node", "hang", "new-id", "cut") else None
        cell = {
            "kind": kind,
            "at": _now(),
            "client": hit,
            "phase": round(phase, 2),
            "slot_seconds": self.slot_s,
            "lasted_s": round(time.time() - began, 1),
            "first_slot": before,
        }
        self.pending.append((cell, time.time(), self._slot()))

    def _watch(self) -> None:
        """Record when the run has recovered from a fault: a later slot is stored, with the affected client."""
        while True:
            for cell, mended, slot in list(self.pending):
                query = (
                    "SELECT count(*) FROM rounds JOIN attempts USING (slot) "
                    "WHERE outcome = 'done' AND slot > ?1 AND client = coalesce(?2, client)"
                )
                if self._ask(query, (slot, cell["client"])) or self._ask("SELECT status FROM run", ()) == "done":
                    self._keep(cell, time.time() - mended)
            time.sleep(0.5)

    def _keep(self, cell: dict[str, Any], recovered_s: float | None) -> None:
        if not any(each[0] is cell for each in self.pending):
            return
        self.pending = [each for each in self.pending if each[0] is not cell]
        problem = self._wrong()
        query = (
            "SELECT count(*) FROM attempts WHERE sent_at IS NOT NULL AND outcome NOT IN ('done', 'running') "
            "AND slot >= ?1 AND client = coalesce(?2, client)"
        )
        cell |= {
            "recovered_s": None if recovered_s is None else round(recovered_s, 1),
            "lost": self._ask(query, (cell["first_slot"], cell["client"])) or 0,
            "exact": not problem,
            "problem": problem,
        }
        Store(self.results, Cell).add(Cell(part=FAULTS, at=cell["at"]), cell)
        click.echo(json.dumps(cell), err=True)

    # Faults, each with its repair.

    def _do_node(self, client: str) -> None:
        with contextlib.suppress(AssertionError):  # if it does not train for a long time, kill it while idle
            until(lambda: bool(self.net.client_apps(client)), "it trains", 3 * self.slot_s, every=0.1)
        time.sleep(self.chance.uniform(0.0, 1.0))
        self.net.kill_node(client)
        time.sleep(self.chance.uniform(0.0, 10.0))
        self.net.start_node(client)

    def _do_server(self, client: str) -> None:
        for pid in self.net.server_apps():
            os.kill(pid, signal.SIGKILL)

    def _do_link(self, client: str) -> None:
        self.net.kill_superlink()
        time.sleep(self.chance.uniform(2.0, 25.0))
        self.net.start_superlink()

    def _do_everything(self, client: str) -> None:
        kill_tree(self.supervisor)
        self.net.kill_superlink()
        self.net.kill_superexec()
        self.net.kill_nodes()
        time.sleep(self.chance.uniform(1.0, 10.0))
        self.net.start_superlink()
        self.net.start_superexec()
        for name in THREE:
            self.net.start_node(name)
        self.supervisor = _resume(self.net, self.run, self.folder / "supervisor.log")

    def _do_hang(self, client: str) -> None:
        self.net.hang_node(client)
        time.sleep(self.chance.uniform(1.0, 1.5) * self.slot_s)
        self.net.wake_node(client)

    def _do_new_id(self, client: str) -> None:
        self.net.renew_node(client)

    def _do_cut(self, client: str) -> None:
        self.net.proxies[client].cut()
        time.sleep(self.chance.uniform(1.0, 1.5) * self.slot_s)
        self.net.proxies[client].start()

    def _do_disk(self, client: str) -> None:
        ballast = self.run.parent / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as full:
            while True:
                full.write(b"\0" * 4096)
        time.sleep(self.chance.uniform(1.0, 1.5) * self.slot_s)
        ballast.unlink()

    def _do_clock(self, client: str) -> None:
        path = self.folder / "offset"
        offset = float(path.read_text()) if path.exists() else 0.0
        write_whole(path, str(offset + self.chance.choice([-1.5, 1.5]) * self.slot_s))

    # Observation of the run, from its file alone.

    def _slot(self) -> int:
        """Return the last slot with a request to a client."""
        return int(self._ask("SELECT coalesce(max(slot), -1) FROM attempts", ()) or 0)

    def _phase(self) -> float:
        """Return the position in the current slot, from 0 to 1."""
        begun = self._ask("SELECT value FROM state WHERE name = 'begun_at'", ())
        if not begun:
            return 0.0
        offset = float(path.read_text()) if (path := self.folder / "offset").exists() else 0.0
        since = time.time() + offset - datetime.fromisoformat(json.loads(begun)).timestamp()
        return (since / self.slot_s) % 1.0

    def _ask(self, query: str, values: tuple[object, ...]) -> Any:
        if not (self.run / "run.db").exists():
            return None
        with contextlib.suppress(sqlite3.Error):
            db = sqlite3.connect(f"file:{self.run / 'run.db'}?mode=ro", uri=True)
            try:
                row = db.execute(query, values).fetchone()
                return row[0] if row else None
            finally:
                db.close()
        return None

    def _wrong(self) -> str:
        """Return the objection of an independent recount, or an empty string."""
        try:
            check(self.run, under_way=True)
        except (AssertionError, sqlite3.Error) as error:
            return f"{type(error).__name__}: {error}"
        return ""


def _plan(sites: dict[str, str], slots: int, *, per_slot_kg: float, fine_tune: int) -> sw.Plan:
    """Return a plan in which most clients train often."""
    clients = [sw.Client(name=name, zone=zone, power_w=300.0, required=True) for name, zone in sites.items()]
    traces = sw.load_traces("typical", zones=sorted(sites.values()), start=START, hours=slots)
    problem = sw.Problem(
        clients=clients,
        traces=traces,
        start=START,
        rounds=slots,
        slack=0,
        fine_tune=fine_tune,
        budget_kg=per_slot_kg * len(sites) * slots,
    )
    return sw.plan(problem, planner="paper")


def _settings(app: Path, slot_seconds: float) -> LiveSettings:
    engine = {"app": str(app.absolute()), "superlink": LINK, "allow_insecure": False}
    return LiveSettings(slot_seconds=slot_seconds, engine=engine)


def _federation(folder: Path, sites: dict[str, str], *, proxies: bool = False) -> Deployment:
    folder.mkdir()
    said = {name: {"zone": zone, "power-w": 300, "partition-id": i} for i, (name, zone) in enumerate(sites.items())}
    return Deployment(folder, said, proxies=proxies)


def _resume(net: Deployment, run: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start the supervisor as a user would."""
    with log.open("ab") as out:
        return subprocess.Popen(
            [str(BIN / "slackwater"), "resume", str(run), "--trust"],
            stdout=out,
            stderr=out,
            env=net.env(net.home),
            start_new_session=True,
        )


@contextlib.contextmanager
def _workspace() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _small_disk(folder: Path) -> Iterator[Path]:
    """Mount a small disk that can be filled without affecting others."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        _again(lambda: subprocess.run(["umount", str(folder)], check=True, capture_output=True))


def _again(action: Callable[[], object], times: int = 20) -> None:
    for left in reversed(range(times)):
        try:
            action()
            return
        except subprocess.CalledProcessError:
            if not left:
                raise
            time.sleep(0.5)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
