"""A Flower app without PyTorch on its clients, so that their processes start in a second: linear regression in NumPy."""

from __future__ import annotations

from pathlib import Path

PYPROJECT = """\
[project]
name = "lightapp"
version = "1.0.0"
description = "For tests"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "me"

[tool.flwr.app.components]
serverapp = "lightapp.server_app:app"
clientapp = "lightapp.client_app:app"

[tool.flwr.app.config]
slackwater-run = ""
seconds = 0.0
"""
CLIENT = """\
import time

import numpy as np
from flwr.clientapp import ClientApp

from slackwater.flower import measured, register

app = register(ClientApp())


@app.train()
def train(msg, context):
    w = msg.content["arrays"]["w"].numpy().copy()
    truth = np.linspace(-1, 1, len(w)) * (1 + int(context.node_config["partition-id"]))
    with measured(msg, context) as meter:
        random = np.random.default_rng(meter.seed)
        for _ in range(20):
            x = random.normal(size=(16, len(w)))
            error = x @ (w - truth)
            w -= (0.02 * x.T @ error / len(x)).astype(w.dtype)
        end = time.monotonic() + float(context.run_config["seconds"])
        while time.monotonic() < end and not meter.out_of_time:
            time.sleep(0.05)
    return meter.reply({"w": w}, num_examples=320, loss=float(np.mean(error**2)))
"""
SERVER = """\
import numpy as np
from flwr.serverapp import ServerApp

import slackwater.flower

app = ServerApp()


@app.main()
def main(grid, context):
    slackwater.flower.run(grid, context, {"w": np.zeros(50, dtype=np.float32)})
"""


def light_app(folder: Path, *, seconds: float = 0.0) -> Path:
    """Each client trains for at least `seconds`."""
    package = folder / "lightapp"
    package.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PYPROJECT.replace("seconds = 0.0", f"seconds = {seconds}"))
    for name, text in (("__init__", ""), ("client_app", CLIENT), ("server_app", SERVER)):
        (package / f"{name}.py").write_text(text)
    return folder
