"""A small FLARE job in NumPy, and the same training called directly, without any engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

from scripts import script

from slackwater.engines.metering import SlotMeter
from slackwater.engines.nvflare.job import new_job
from slackwater.live.sites import Arrays, Reply, Site, Work

TASK = '''\
import time

import numpy as np

SIZE, SECONDS = 50, {seconds}


def initial_model():
    return {{"w": np.zeros(SIZE, dtype=np.float32)}}


def train(arrays, site, seed, out_of_time):
    """Fit a line of its own to each site, for at least some seconds."""
    w, truth = np.array(arrays["w"]), np.linspace(-1, 1, SIZE) * (1 + len(site))
    random = np.random.default_rng(seed)
    for _ in range(20):
        x = random.normal(size=(16, SIZE))
        error = x @ (w - truth)
        w -= (0.02 * x.T @ error / len(x)).astype(w.dtype)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and not out_of_time():
        time.sleep(0.05)
    return {{"w": w}}, float(np.mean(error**2))
'''
CLIENT = """\
import nvflare.client as flare
import task

from slackwater.nvflare import measured

flare.init()
while flare.is_running():
    received = flare.receive()
    if received is None:
        break
    with measured(received) as meter:
        model, loss = task.train(received.params, flare.get_site_name(), meter.seed, lambda: meter.out_of_time)
        meter.result(model, num_examples=320, loss=loss)
    flare.send(meter.reply())
"""


def light_job(folder: Path, *, seconds: float = 0.0) -> Path:
    """A job without PyTorch at its sites; each trains for at least `seconds`."""
    new_job(folder)
    (folder / "app" / "custom" / "task.py").write_text(TASK.format(seconds=seconds))
    (folder / "app" / "custom" / "client.py").write_text(CLIENT)
    config = folder / "app" / "config" / "config_fed_server.json"
    config.write_text(config.read_text().replace('"task:evaluate"', '""'))
    return folder


def task_of(job: Path) -> ModuleType:
    """The job's task.py, loaded as a module of its own name."""
    module: ModuleType = script(str(job / "app" / "custom" / "task.py"))
    return module


class Direct:
    """Sites that call a function in this process: what every engine must agree with, to the bit."""

    def __init__(self, names: Sequence[str], train: Any) -> None:
        """Reach sites by calling `train(arrays, site, meter)`, which returns a model and its loss."""
        self._names, self._train = names, train

    def online(self) -> Mapping[str, Site]:
        return {name: Site(name=name) for name in self._names}

    def train(self, work: Mapping[str, Work], until: datetime) -> Iterator[Reply]:
        for name in sorted(work, reverse=True):  # replies in another order than they are asked for
            meter = SlotMeter({"slot": work[name].slot, "seed": work[name].seed}, name=name, power_w=None, energy=None)
            with meter.running():
                arrays, loss = self._train(work[name].arrays, name, meter)
            yield Reply(client=name, outcome="done", arrays=_copied(arrays), loss=loss)


def _copied(model: Mapping[str, Any]) -> Arrays:
    return {name: value.detach().numpy().copy() if hasattr(value, "detach") else value for name, value in model.items()}
