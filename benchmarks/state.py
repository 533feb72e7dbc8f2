"""What the state of a live run costs: bytes written a round, size on disk and memory, with random updates.

python benchmarks/state.py [--clients 50] [--parameters 25000000] [--participants 5,50] [--out FILE.json]

Each number of participants is a run in a process of its own: `live.carry_out` with the default aggregator, which stores an
update of every client, and sites that send random updates. Beside the first the way before, the same parts as blobs in
SQLite. The full size takes 20 GB of disk, 12 GB of memory and some minutes. Exits with 1 if the state does not come back bit for
bit, never because an aim is missed: that is marked. Linux (memory and writes are read from /proc).
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tables import environment, figure, peak_gib, publish, spread, table

import slackwater as sw
from slackwater.live.folder import LiveSettings, prepare
from slackwater.live.runner import carry_out
from slackwater.live.sites import Reply, Site, Work
from slackwater.planning.schedule import plan_from_matrix

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).parent / "results" / "state.json"
START = datetime(2022, 3, 1, tzinfo=UTC)
ZONES = ("BE", "GB", "IE", "FI", "SE-SE3", "DE", "FR")
WRITTEN_AIM, MEMORY_AIM = 1.3, 2.5
_GB = 1e9
_WAYS = {"files": "files (now)", "blobs": "blobs in SQLite (before)"}


@dataclass
class Looks:
    """What a process had written, and what its folder held, whenever a round began."""

    folder: Path
    seen: list[tuple[int, int, float]] = field(default_factory=list)

    def look(self) -> None:
        """Note bytes written, bytes in the folder and the time."""
        counters = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        held = sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())
        self.seen.append((int(counters["write_bytes"]), held, time.perf_counter()))

    def rounds(self, last: int) -> dict[str, Any]:
        """Return what each of the last rounds wrote and took, and the most that the folder held."""
        pairs = list(zip(self.seen, self.seen[1:], strict=False))[-last:]
        return {
            "written_bytes": [after[0] - before[0] for before, after in pairs],
            "seconds": [after[2] - before[2] for before, after in pairs],
            "disk_bytes": max(held for _, held, _ in self.seen),
        }


@dataclass
class RandomSites:
    """Send the model with noise of each work's own seed."""

    names: list[str]
    looks: Looks

    def online(self) -> Mapping[str, Site]:
        """Everybody."""
        self.looks.look()
        return {name: Site(name=name) for name in self.names}

    def train(self, work: Mapping[str, Work], until: datetime) -> Iterator[Reply]:
        """One reply after the other, so that each is made when it is asked for."""
        for name, one in work.items():
            moved = _noise(one.seed, one.arrays["w"].size)
            moved += one.arrays["w"]
            yield Reply(client=name, outcome="done", arrays={"w": moved}, loss=0.5, samples=1)


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    options = _options(arguments)
    if options.way is not None:
        print(json.dumps({"files": _files, "blobs": _blobs}[options.way](options)))
        return 0
    result: dict[str, Any] = {"environment": environment(), "violations": [], "runs": []}
    result |= {"clients": options.clients, "parameters": options.parameters, "rounds": options.rounds}
    for number, participants in enumerate(map(int, options.participants.split(","))):
        for way in ("files",) if number or options.skip_blobs else ("files", "blobs"):
            found = _run(way, participants, options)
            result["runs"].append({"way": way, "participants": participants, **found})
            if not found.get("same_bits", True):
                result["violations"].append(f"the state of {participants} participants did not come back bit for bit")
    return publish(result, report(result), options.out)


def _run(way: str, participants: int, options: argparse.Namespace) -> dict[str, Any]:
    size = [f"--{name}={getattr(options, name)}" for name in ("clients", "parameters", "rounds")]
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        command = [__file__, f"--way={way}", f"--participants={participants}", f"--folder={folder}", *size]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, *command], stdout=subprocess.PIPE, text=True, check=True, env=environment
        )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _files(options: argparse.Namespace) -> dict[str, Any]:
    """Carry a live run out, then read its state back, each file checked."""
    import torch

    from slackwater.ledger.run import Run
    from slackwater.training.global_model import Checkpoint

    plan, folder = _plan(options), Path(options.folder) / "run"
    prepare(folder, plan, LiveSettings(slot_seconds=0.0, eval_every=0))
    sites = RandomSites(names=[str(name) for name in plan.problem.fleet.names], looks=Looks(folder))
    done = carry_out(folder, sites, {"w": np.zeros(options.parameters, dtype=np.float32)})
    sites.looks.look()
    peak = peak_gib()
    with Run.open(folder, read_only=True) as run:
        told = [message for *_, message in run.events() if message.startswith("State:")]
        theta = Checkpoint(run).load(torch.device("cpu"))["model"]["theta"]
    return {
        **sites.looks.rounds(options.rounds),
        "peak_gib": peak,
        "told": told,
        "same_bits": bool(np.array_equal(theta.numpy(), done.arrays["w"])),
    }


def _blobs(options: argparse.Namespace) -> dict[str, Any]:
    """Write the parts that change as the run file held them before: blobs, replaced in one transaction a round."""
    folder, together = Path(options.folder), int(options.participants)
    looks, noise = Looks(folder), _noise(0, options.parameters)
    db = sqlite3.connect(folder / "run.db", isolation_level=None)
    for setting in ("journal_mode = WAL", "synchronous = FULL"):
        db.execute(f"PRAGMA {setting}")
    db.execute("CREATE TABLE checkpoint (part TEXT NOT NULL PRIMARY KEY, data BLOB NOT NULL)")
    for number in range(_rounds(options)):
        looks.look()
        parts = ["theta", *((number * together + client) % options.clients for client in range(together))]
        rows = [(str(part), noise.tobytes()) for part in parts]  # all of them at once, as it was
        db.execute("BEGIN IMMEDIATE")
        db.executemany("INSERT OR REPLACE INTO checkpoint VALUES (?, ?)", rows)
        db.execute("COMMIT")
    looks.look()
    db.close()
    return looks.rounds(options.rounds)


def _rounds(options: argparse.Namespace) -> int:
    """Until everybody has trained, and those that are measured."""
    return int(-(-options.clients // int(options.participants)) + options.rounds)


def _plan(options: argparse.Namespace) -> sw.Plan:
    """So many clients in each slot, by turns."""
    clients, together, slots = options.clients, int(options.participants), _rounds(options)
    traces = sw.load_traces("typical", zones=sorted(ZONES), start=START, hours=slots)
    fleet = sw.Fleet.of([ZONES[i % len(ZONES)] for i in range(clients)], power_w=300.0)
    problem = sw.Problem(
        clients=fleet, traces=traces, start=START, rounds=slots, slack=0, fine_tune=0, budget_kg=1.0 * clients * slots
    )
    matrix = np.zeros((clients, slots), dtype=bool)
    for slot in range(slots):
        matrix[np.arange(slot * together, (slot + 1) * together) % clients, slot] = True
    return plan_from_matrix(problem, matrix, end=0)


def _noise(seed: int, size: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(size, dtype=np.float32)


def report(result: dict[str, Any]) -> str:
    """The tables."""
    found, model = result["environment"], 4 * result["parameters"]
    state = (result["clients"] + 1) * model
    rows = []
    for run in result["runs"]:
        changed = (run["participants"] + 1) * model
        times = [written / changed for written in run["written_bytes"]]
        memory = None if "peak_gib" not in run else run["peak_gib"] * 2**30 / state
        rows.append([
            _WAYS[run["way"]],
            str(run["participants"]),
            figure(changed / _GB),
            spread(times) + _missed(statistics.median(times), WRITTEN_AIM, run["way"]),
            f"{figure(run['disk_bytes'] / _GB)} ({figure(run['disk_bytes'] / state)} states)",
            "" if memory is None else figure(memory) + _missed(memory, MEMORY_AIM, run["way"]),
            spread(run["seconds"]),
        ])  # fmt: skip
    head = [
        "tensors in", "participants", "changed a round, GB", "written / changed", "most on disk, GB",
        "memory / (clients + 1) models", "seconds a round",
    ]  # fmt: skip
    lines = [
        f"{found['date'][:10]}, {found['machine']}, {found['cores']} shared cores, load {found['load_average'][0]:g} at the start.",
        "",
        f"{result['clients']} clients x {result['parameters']:,} parameters (a model is {figure(model / _GB)} GB, the state "
        f"{figure(state / _GB)} GB), random updates, the last {result['rounds']} rounds:",
        "",
        table(head, rows),
        "",
        f"Aims: written at most {WRITTEN_AIM} times what changed, memory below {MEMORY_AIM} times (clients + 1) models; of "
        "the whole process, sites included. The blobs are written alone, without a run around them.",
        "",
    ]
    told = next((run["told"][0] for run in result["runs"] if run.get("told")), None)
    lines += [f"The run said before its first round: {told}"] if told else []
    lines += [f"Violation: {each}." for each in result["violations"]]
    return "\n".join(lines).rstrip()


def _missed(value: float, aim: float, way: str) -> str:
    return " (aim missed)" if way == "files" and value > aim else ""


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--parameters", type=int, default=25_000_000)
    parser.add_argument("--participants", default="5,50", help="Clients that train in a slot; a run for each number.")
    parser.add_argument("--rounds", type=int, default=4, help="Rounds that are measured, after everybody has trained.")
    parser.add_argument("--skip-blobs", action="store_true", help="Leave out the way before.")
    parser.add_argument("--folder", help="Where the runs are made; a temporary folder unless given.")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--way", choices=list(_WAYS), help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
