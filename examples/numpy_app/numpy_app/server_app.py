"""The server: starts or resumes the run in the folder that the run config names."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

import slackwater.flower

from . import task

app = ServerApp()


@app.main()  # type: ignore[untyped-decorator, unused-ignore]
def main(grid: Grid, context: Context) -> None:
    slackwater.flower.run(grid, context, task.initial(), evaluate=evaluate)


def evaluate(model: ArrayRecord) -> dict[str, float]:
    return task.evaluate({name: array.numpy() for name, array in model.items()})
