"""The server: carries out the plan in the folder that the run config names, or goes on with it."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

import slackwater.flower

from . import task

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """The whole run."""
    torch.manual_seed(0)
    slackwater.flower.run(grid, context, task.Model().state_dict(), evaluate=evaluate)


def evaluate(model: ArrayRecord) -> dict[str, float]:
    """How good a model is, on the server's own data."""
    return task.evaluate(model.to_torch_state_dict())
