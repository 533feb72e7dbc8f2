"""The server's side: `run` is the whole main function of a ServerApp.

app = ServerApp()

@app.main()
def main(grid, context):
    slackwater.flower.run(grid, context, Model().state_dict(), evaluate=evaluate)
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid

from slackwater.errors import ScenarioError
from slackwater.flower.records import as_arrays, to_arrays
from slackwater.flower.transport import GridTransport
from slackwater.ledger.run import FILE
from slackwater.live import LiveResult, LiveSettings, carry_out, prepare
from slackwater.live.folder import PLAN, is_live
from slackwater.planning.plan import Plan

log = logging.getLogger(__name__)
RUN, SLOT_SECONDS = "slackwater-run", "slackwater-slot-seconds"
"""Keys of an app's run config: the run's folder; and, for one that holds only a plan, the wall time of a slot."""

_PATIENCE_S = 60.0  # how long nodes that are new may take to say who they are

Evaluate = Callable[[ArrayRecord], Mapping[str, float]]
"""Judges a model on the server, like {"accuracy": 0.9, "loss": 0.3}."""


def run(
    grid: Grid,
    context: Context,
    initial: Mapping[str, Any] | ArrayRecord,
    evaluate: Evaluate | None = None,
    *,
    settings: LiveSettings | None = None,
) -> LiveResult:
    """Carry out the run whose folder the run config names under "slackwater-run", or go on with it.

    `initial` is the model to begin with, as a state dict. The folder is one that `slackwater run` has prepared; or it
    holds only a plan (`slackwater plan scenario.toml --out DIR`), which is then carried out by `settings`: unless told
    without waiting, or with slots of "slackwater-slot-seconds".
    """
    folder = _folder(context)
    plan = Plan.load(folder / PLAN)
    if not is_live(folder):
        prepare(folder, plan, settings or LiveSettings(slot_seconds=_slot_seconds(context)))
    names, is_new = [str(name) for name in plan.problem.fleet.names], not (folder / FILE).exists()
    # Nodes are asked before the first slot, as that takes as long as a small round. A run that is taken up again has
    # other things to do: registered names are enough.
    transport = GridTransport(grid, names=names, ask_registered=is_new, patience_s=_PATIENCE_S)
    known = transport.online(patiently=is_new)
    log.info("Of %d clients %d are online.", len(names), len(known))
    judge = None if evaluate is None else lambda arrays: evaluate(to_arrays(arrays))
    return carry_out(folder, transport, as_arrays(initial), evaluate=judge)


def _folder(context: Context) -> Path:
    named = str(context.run_config.get(RUN, "")).strip()
    if not named:
        raise ScenarioError(
            f"The run config names no run: {RUN} is empty. Start the app with: slackwater run scenario.toml --app . "
            f"(or plan into a folder with slackwater plan .. --out DIR, and flwr run . -c '{RUN}=\"/path/to/DIR\"')."
        )
    folder = Path(named).expanduser()
    if not folder.is_absolute():
        raise ScenarioError(f"{RUN} is {named!r}; give the whole path, since Flower runs apps in a folder of its own.")
    if not (folder / PLAN).is_file():
        raise ScenarioError(
            f"{folder} holds no {PLAN}. It must be on the machine on which the ServerApp runs, beside the SuperLink. Make it "
            f"with: slackwater plan scenario.toml --out {folder}"
        )
    return folder


def _slot_seconds(context: Context) -> float:
    value = context.run_config.get(SLOT_SECONDS, 0.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ScenarioError(f"{SLOT_SECONDS} must be a number of seconds, or 0 for no waiting, not {value!r}.")
    return float(value)
