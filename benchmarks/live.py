"""The generated Flower app in our in-process grid beside Flower's Ray simulation, with 200 clients, and deployed.

python benchmarks/live.py [--flower-python PYTHON] [--parts race,many,deployed] [--out FILE.json]

The race is the same plan, seeds and app in both, each in a process of its own, in turn: the models must agree within 1e-6.
Flower is left out, with a note, where flwr[simulation] is not installed. Exits with 1 if something was computed wrongly,
never because of time: read the ratios, the machines are shared. Linux (memory is read from /proc).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tables import environment, figure, publish, spread, table

import slackwater as sw
from slackwater.engines.flower.app import new_app
from slackwater.ledger.run import Run
from slackwater.live.folder import LiveSettings, prepare

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).parent / "results" / "live.json"
START = datetime(2022, 3, 1, tzinfo=UTC)
ZONES = ("BE", "GB", "IE", "FI", "SE-SE3", "DE", "FR")
AGREE = 1e-6
WAYS = {"in-process": "our in-process grid", "ray": "Flower's Ray simulation"}


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    options = _options(arguments)
    result: dict[str, Any] = {"environment": environment(), "violations": []}
    with tempfile.TemporaryDirectory() as folder:
        app = Path(folder) / "benchapp"
        new_app(app)
        for part in options.parts.split(","):
            result[part] = {"race": _race, "many": _many, "deployed": _deployed}[part](
                app, Path(folder), options, result
            )
    return publish(result, report(result), options.out)


def _race(app: Path, folder: Path, options: argparse.Namespace, result: dict[str, Any]) -> dict[str, Any]:
    """The same plan by both, in turn."""
    pythons = {"in-process": sys.executable, "ray": options.flower_python}
    if (
        pythons["ray"] is None
        or subprocess.run([pythons["ray"], "-c", "import ray, flwr"], capture_output=True).returncode
    ):
        del pythons["ray"]
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in pythons}
    models: dict[str, dict[str, np.ndarray]] = {}
    plan = _plan(7, options.rounds)
    for repeat in range(options.repeats):
        for way, python in pythons.items():
            where = folder / f"{way}-{repeat}"
            prepare(where, plan, LiveSettings(slot_seconds=0.0, eval_every=0))
            runs[way].append(_way(python, way, app, where))
            models[way] = _model(where)
    apart = None
    if "ray" in models:
        apart = max(float(np.abs(models["ray"][name] - models["in-process"][name]).max()) for name in models["ray"])
        if apart > AGREE:
            result["violations"].append(f"the models of both ways differ by {apart:.1e}, more than {AGREE:g}")
    return {"clients": 7, "rounds": options.rounds, "runs": runs, "largest_difference": apart}


def _many(app: Path, folder: Path, options: argparse.Namespace, result: dict[str, Any]) -> dict[str, Any]:
    """200 clients in process, all in every round."""
    where = folder / "many"
    prepare(where, _plan(options.clients, 5), LiveSettings(slot_seconds=0.0, eval_every=0))
    run = _way(sys.executable, "in-process", app, where)
    with Run.open(where, read_only=True) as held:
        trained = [len(done.participants) for done in held.rounds()]
    if not trained or min(trained) < options.clients:
        result["violations"].append(f"not all of the {options.clients} clients took part in every round: {trained}")
    return {"clients": options.clients, **run}


def _deployed(app: Path, folder: Path, options: argparse.Namespace, result: dict[str, Any]) -> dict[str, Any]:
    """12 SuperNodes with PyTorch, all in every round; slots as long as that takes here."""
    sys.path.insert(0, str(ROOT / "tests" / "flower"))
    from processes import LINK, Deployment, flower_home  # type: ignore[import-not-found, unused-ignore]

    from slackwater.flower import deployed

    where, net = folder / "deployed", folder / "net"
    net.mkdir()
    plan = _plan(options.supernodes, options.deployed_rounds)
    names = [str(name) for name in plan.problem.fleet.names]
    sites = {
        name: {"zone": str(zone), "power-w": 300, "partition-id": number}
        for number, (name, zone) in enumerate(zip(names, plan.problem.fleet.zone, strict=True))
    }
    engine = {"app": str(app), "superlink": LINK}
    prepare(where, plan, LiveSettings(slot_seconds=options.slot_seconds, eval_every=0, engine=engine))
    began = time.perf_counter()
    memory: dict[str, float] = {}
    with Deployment(net, sites) as running, flower_home(running):
        online_s = time.perf_counter() - began
        memory_idle = running.memory_mb()
        watcher = _Sampler(running, memory)
        deployed(app, LINK, where)
        watcher.stop()
    with Run.open(where, read_only=True) as held:
        rounds = [(len(done.participants), done.seconds) for done in held.rounds()]
    if not rounds:
        result["violations"].append("no round of the deployed run was kept; try longer slots (--slot-seconds)")
    return {
        "supernodes": options.supernodes,
        "slot_seconds": options.slot_seconds,
        "online_seconds": online_s,
        "rounds": rounds,
        "memory_idle_mb": memory_idle,
        "memory_mb": memory,
    }


class _Sampler:
    """The most memory of a federation, by part."""

    def __init__(self, running: Any, most: dict[str, float]) -> None:
        import threading

        self._done = threading.Event()

        def look() -> None:
            while not self._done.wait(1.0):
                for part, mb in running.memory_mb().items():
                    most[part] = max(most.get(part, 0.0), mb)

        self._thread = threading.Thread(target=look, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._done.set()
        self._thread.join()


def _way(python: str, way: str, app: Path, folder: Path) -> dict[str, Any]:
    job = json.dumps({"way": way, "app": str(app), "folder": str(folder)})
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [python, str(Path(__file__).with_name("live_way.py")), job], capture_output=True, text=True, env=environment
    )
    if done.returncode:
        raise RuntimeError(f"{way} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _plan(clients: int, rounds: int) -> sw.Plan:
    """Everybody in every slot: the budget is ample."""
    traces = sw.load_traces("typical", zones=sorted(ZONES), start=START, hours=rounds)
    fleet = sw.Fleet.of([ZONES[i % len(ZONES)] for i in range(clients)], power_w=300.0)
    problem = sw.Problem(
        clients=fleet, traces=traces, start=START, rounds=rounds, slack=0, fine_tune=1, budget_kg=1.0 * clients * rounds
    )
    return sw.plan(problem, planner="paper")


def _model(folder: Path) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in torch.load(folder / "model.pt", weights_only=True).items()}


def report(result: dict[str, Any]) -> str:
    """The tables."""
    found = result["environment"]
    lines = [
        f"{found['date'][:10]}, {found['machine']}, {found['cores']} shared cores, load {found['load_average'][0]:g} at the start.",
        "",
    ]
    if race := result.get("race"):
        rows = [
            [
                WAYS[way],
                spread([run["seconds"] for run in runs]),
                spread([run["rounds"][0] for run in runs]),
                spread([statistics.median(run["rounds"][1:]) for run in runs]),
                spread([run["memory_mb"] for run in runs]),
            ]
            for way, runs in race["runs"].items()
        ]
        head = ["way", "all, s", "first round, s", "later rounds, s", "memory, MB"]
        lines += [
            f"The same app and plan, {race['clients']} clients in each of {race['rounds']} rounds:",
            "",
            table(head, rows),
            "",
        ]
        if race["largest_difference"] is not None:
            lines += [f"Largest difference of the two models: {race['largest_difference']:.1e}.", ""]
    if many := result.get("many"):
        per_round = figure(statistics.median(many["rounds"]))
        lines += [
            f"{many['clients']} clients in process, all in every round: {per_round} s a round, {figure(many['memory_mb'])} MB.",
            "",
        ]
    if there := result.get("deployed"):
        rows = [
            [str(number + 1), str(count), figure(seconds)] for number, (count, seconds) in enumerate(there["rounds"])
        ]
        most, idle = there["memory_mb"], there["memory_idle_mb"]
        lines += [
            f"{there['supernodes']} SuperNodes over TLS with node authentication, online after {figure(there['online_seconds'])} s:",
            "",
            table(["round", "clients whose update came in time", "seconds"], rows),
            "",
            f"Memory: {figure(sum(idle.values()))} MB at rest, {figure(sum(most.values()))} MB at most ("
            + ", ".join(f"{part} {figure(mb)}" for part, mb in most.items())
            + ").",
            "",
        ]
    lines += [f"Violation: {each}." for each in result["violations"]]
    return "\n".join(lines).rstrip()


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flower-python", help="Python of a venv with flwr[simulation] and PyTorch.")
    parser.add_argument("--parts", default="race,many,deployed")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--supernodes", type=int, default=12)
    parser.add_argument("--deployed-rounds", type=int, default=4)
    parser.add_argument("--slot-seconds", type=float, default=90.0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
