"""Measure a client's power at rest and under load, and write it into its scenario, without other changes."""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slackwater.atomic import write_whole
from slackwater.engines.metering import EnergyMeter, best_meter
from slackwater.errors import ScenarioError, SlackwaterError

_LOAD_SIZE = 700  # the product of matrices of this size takes some milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Watts:
    """The power of a machine."""

    active_w: float  # while training, including idle draw
    idle_w: float
    how: str  # method of measurement, for people


def measure(seconds: float, command: Sequence[str] = (), meter: EnergyMeter | None = None) -> Watts:
    """Measure this machine's power in W at rest, then under load: `command`, or matrix products on all cores."""
    found = meter or best_meter()
    if found is None:
        raise SlackwaterError(
            "This machine has no energy sensor that can be read: no CodeCarbon with a sensor (pip install "
            "'slackwater[energy]'), and no readable counters in /sys/class/powercap (on Linux only root may read them). Use a "
            "wattmeter, and give its values with --active-w and --idle-w."
        )
    idle_w = _watts(found, lambda: time.sleep(seconds))
    active_w = _watts(found, (lambda: _run(command)) if command else (lambda: _load(seconds)))
    if not active_w > idle_w:
        raise SlackwaterError(
            f"The machine drew {idle_w:.1f} W at rest and {active_w:.1f} W under load, so it was not at rest. Measure again "
            "with nothing else running, or for longer (--seconds)."
        )
    return Watts(active_w=active_w, idle_w=idle_w, how=found.name)


def write_watts(path: Path, client: str, *, power_w: float, idle_w: float) -> None:
    """Set power_w and idle_w of one [[client]]; comments and everything else stay unchanged."""
    try:
        text = path.read_text(encoding="utf-8")
        before = tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ScenarioError(f"{path} cannot be read: {error}.") from None
    names = [entry.get("name") for entry in before.get("client", [])]
    if client not in names:
        known = ", ".join(str(name) for name in names) or "none"
        raise ScenarioError(f"{path} has no client {client!r}. Known: {known}.")
    after = _with_watts(text, names.index(client), {"power_w": power_w, "idle_w": idle_w})
    entry = tomllib.loads(after)["client"][names.index(client)]
    if entry.get("name") != client or (entry.get("power_w"), entry.get("idle_w")) != (power_w, idle_w):
        raise ScenarioError(
            f"{path}: [[client]] {client!r} cannot be edited automatically. Set power_w = {power_w:g} "
            f"and idle_w = {idle_w:g} by hand."
        )
    write_whole(path, after)


def _with_watts(text: str, number: int, values: dict[str, float]) -> str:
    lines = text.splitlines(keepends=True)
    heads = [i for i, line in enumerate(lines) if re.match(r"\s*\[", line)]
    clients = [i for i in heads if re.match(r"\s*\[\[\s*client\s*\]\]", lines[i])]
    if number >= len(clients):
        return text
    start = clients[number]
    end = next((i for i in heads if i > start), len(lines))
    block = [re.sub(r"^(\s*)energy_kwh(\s*=)", r"\1# energy_kwh\2", line) for line in lines[start + 1 : end]]
    for key, value in values.items():
        shown = f"{value:g}" if value == float(f"{value:g}") else repr(value)
        for i, line in enumerate(block):
            found = re.match(rf"(\s*{key}\s*=\s*)([^#\s]+)(.*)", line, flags=re.DOTALL)
            if found:
                block[i] = f"{found[1]}{shown}{found[3]}"
                break
        else:
            last = max((i for i, line in enumerate(block) if re.match(r"\s*\w+\s*=", line)), default=-1)
            if last >= 0 and not block[last].endswith("\n"):
                block[last] += "\n"
            block.insert(last + 1, f"{key} = {shown}\n")
    return "".join([*lines[: start + 1], *block, *lines[end:]])


def _watts(meter: EnergyMeter, work: Callable[[], None]) -> float:
    began = time.monotonic()
    meter.start()
    work()
    energy = meter.stop()
    hours = (time.monotonic() - began) / 3600
    if energy is None:
        raise SlackwaterError(
            f"{meter.name} found no energy sensor on this machine. Use a wattmeter, and give its values with --active-w and "
            "--idle-w."
        )
    return energy * 1000 / hours


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(list(command))
    except OSError as error:
        raise ScenarioError(f"{command[0]!r} cannot be run: {error.strerror}.") from None
    if done.returncode:
        raise SlackwaterError(
            f"{' '.join(command)!r} failed with exit code {done.returncode}, so its energy is not used."
        )


def _load(seconds: float) -> None:
    """Keep all cores busy; NumPy releases the GIL while it multiplies."""
    until = time.monotonic() + seconds

    def multiply() -> None:
        matrix = np.random.default_rng(0).normal(size=(_LOAD_SIZE, _LOAD_SIZE))
        while time.monotonic() < until:
            matrix @ matrix

    threads = [threading.Thread(target=multiply, daemon=True) for _ in range(os.cpu_count() or 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
