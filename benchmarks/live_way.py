"""One plan by one engine, in a process of its own: `python live_way.py JSON`; prints what it took as JSON.

Needs only flwr and PyTorch besides Slackwater's own folder on PYTHONPATH, so that Flower's Ray simulation can have a venv
of its own. The app is the one that `slackwater flower new` writes, unchanged.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")


def main(job: dict[str, Any]) -> None:
    began = time.perf_counter()
    watch = Watch()
    (_ray if job["way"] == "ray" else _in_process)(Path(job["app"]), Path(job["folder"]))
    total = time.perf_counter() - began
    from slackwater.ledger.run import Run

    with Run.open(job["folder"], read_only=True) as run:
        rounds = [done.seconds for done in run.rounds()]
    print(json.dumps({"seconds": total, "rounds": rounds, "memory_mb": watch.most_mb()}))


def _in_process(app: Path, folder: Path) -> None:
    from slackwater.flower import in_process

    in_process(app, folder)


def _ray(app_dir: Path, folder: Path) -> None:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    from slackwater.engines.flower.app import App
    from slackwater.planning.plan import Plan

    app = App.read(app_dir)
    config = {**app.config, "slackwater-run": str(folder)}
    os.environ["PYTHONPATH"] = f"{app_dir}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"  # for Ray's own processes
    server, client = ServerApp(), ClientApp()

    def serve(grid: Grid, context: Context) -> None:
        context.run_config = config
        app.load(app.server)(grid, context)

    def answer(message: Message, context: Context) -> Message:
        # Flower does not let a client change its context, and its Python interface has no run config.
        own = Context(context.run_id, context.node_id, context.node_config, context.state, config)
        reply: Message = app.load(app.client)(message, own)
        return reply

    server.main()(serve)
    client.train()(answer)
    client.query("slackwater")(answer)
    run_simulation(
        server_app=server,
        client_app=client,
        num_supernodes=len(Plan.load(folder / "plan.json").problem.fleet.names),
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )


class Watch:
    """The most memory that this process and all it started held together, as proportional set size."""

    def __init__(self, every_s: float = 0.5) -> None:
        self._most, self._every_s = 0.0, every_s
        threading.Thread(target=self._look, daemon=True).start()

    def most_mb(self) -> float:
        self._most = max(self._most, _tree_mb(os.getpid()))
        return self._most

    def _look(self) -> None:
        while True:
            self._most = max(self._most, _tree_mb(os.getpid()))
            time.sleep(self._every_s)


def _tree_mb(root: int) -> float:
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        parents.setdefault(parent, []).append(int(stat.parent.name))
    tree = [root]
    for pid in tree:
        tree += parents.get(pid, [])
    return sum(map(_pss_mb, tree))


def _pss_mb(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")), 0.0)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
