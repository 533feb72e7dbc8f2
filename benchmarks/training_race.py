"""Ways to the same rounds, each in its own process, interleaved round by round; their memory, if asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SAMPLE_S = 0.25
"""From one look at the memory to the next."""
TICKS = os.sysconf("SC_CLK_TCK")
"""Of the kernel's count of processor time, a second."""
Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Way:
    """A program that does the rounds, by the name it has in the tables."""

    name: str
    script: str
    job: Record
    python: str = sys.executable


@dataclass(kw_only=True)
class Racer:
    """A way under way."""

    way: Way
    process: subprocess.Popen[str]
    log: Path
    began: float
    family: Family
    memory: Memory | None
    records: list[Record] = field(default_factory=list)

    @classmethod
    def start(cls, way: Way, folder: Path, *, watch: bool) -> Racer:
        """Starts the process; the first round follows with `step`."""
        log = folder / f"{way.name}.log"
        env = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")])
        }
        began = time.perf_counter()
        with log.open("w") as errors:
            process = subprocess.Popen(
                [way.python, str(HERE / way.script), json.dumps(way.job)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=folder, env=env,
            )  # fmt: skip
        family = Family(process.pid)
        memory = Memory(family) if watch else None
        return cls(way=way, process=process, log=log, began=began, family=family, memory=memory)

    def step(self) -> None:
        """One round; its record gets the seconds, as the process saw them, and for the first those since the start."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        used = self.family.cpu_s()
        with self.memory or ExitStack():
            try:
                self.process.stdin.write("go\n")
                self.process.stdin.flush()
                line = self.process.stdout.readline()
            except BrokenPipeError:
                line = ""
        if not line:
            raise RuntimeError(
                f"{self.way.name} ended in round {len(self.records) + 1}:\n{self.log.read_text()[-3000:]}"
            )
        record = json.loads(line)
        record["cpu_s"] = max(self.family.cpu_s() - used, 1 / TICKS)
        record["clients"] = len(self.way.job["rounds"][len(self.records)])
        if not self.records:
            record["since_start"] = time.perf_counter() - self.began
        self.records.append(record)

    def close(self) -> None:
        """Ends the process; it may take its time, as Ray does."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Family:
    """A process and all its descendants."""

    def __init__(self, pid: int) -> None:
        self._known = {pid}

    def members(self) -> dict[int, list[str]]:
        """Their fields of /proc/PID/stat from the state on, by process number."""
        stats = {int(path.parent.name): fields for path in Path("/proc").glob("[0-9]*/stat") if (fields := _stat(path))}
        while more := {pid for pid, fields in stats.items() if int(fields[1]) in self._known} - self._known:
            self._known |= more  # kept once seen: a process whose parent has ended is still one of them
        self._known &= stats.keys()
        return {pid: stats[pid] for pid in self._known}

    def cpu_s(self) -> float:
        """Processor seconds of those that are alive; processes that end take theirs with them."""
        ticks = sum(int(fields[11]) + int(fields[12]) for fields in self.members().values())
        return ticks / TICKS


class Memory:
    """Peak of what a family of processes holds (PSS: shared pages are counted once), while entered."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self.peak_mib, self.processes = 0.0, 0
        self._leave = threading.Event()
        self._thread = threading.Thread()

    def __enter__(self) -> None:
        self._leave.clear()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._leave.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            sizes = [size for pid in self._family.members() if (size := _pss_kib(pid))]
            self.peak_mib = max(self.peak_mib, sum(sizes) / 1024)
            self.processes = max(self.processes, len(sizes))
            if self._leave.wait(SAMPLE_S):
                return


def _stat(path: Path) -> list[str]:
    try:
        return path.read_text().rpartition(")")[2].split()
    except OSError:  # has ended
        return []


def _pss_kib(pid: int) -> int:
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")), 0)


def race(ways: Sequence[Way], rounds: int, *, watch: bool = False) -> dict[str, Record]:
    """Every way does its first round alone, from the start of its process; then they take turns, in changing order."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as cleanup:
        racers = []
        for way in ways:
            racers.append(Racer.start(way, Path(folder), watch=watch))
            cleanup.callback(racers[-1].close)
            racers[-1].step()
            _say(racers[-1])
        for number in range(1, rounds):
            turn = number % len(racers)
            for racer in racers[turn:] + racers[:turn]:
                racer.step()
                _say(racer)
        return {
            racer.way.name: {
                "rounds": racer.records,
                "peak_mib": racer.memory.peak_mib if racer.memory else None,
                "processes": racer.memory.processes if racer.memory else None,
            }
            for racer in racers
        }


def _say(racer: Racer) -> None:
    record = racer.records[-1]
    print(
        f"{racer.way.name}: round {len(racer.records)}, {record['clients']} clients, {record['seconds']:.2f} s",
        file=sys.stderr,
    )
