"""The server: starts or resumes the run in the folder that the run config names."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

import slackwater.flower

from . import task

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Carry out the run."""
    torch.manual_seed(0)
    slackwater.flower.run(grid, context, task.Model().state_dict(), evaluate=evaluate)


def evaluate(model: ArrayRecord) -> dict[str, float]:
    """Return accuracy and loss of a model on the server's data."""
    return task.evaluate(model.to_torch_state_dict())
