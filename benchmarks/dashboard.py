"""How long from a slider to the redrawn schedule, measured in the browser: `python benchmarks/dashboard.py`.

The page notes the time at the slider's event and again after the frame in which the schedule was drawn. "Dragging" moves on as soon as a
schedule is drawn; "from rest" lets the searches over all end times begin first, which then have to give way. "Joint optimum" is how long
after the slider's event the largest objective over every end time is marked; "plan" is the same for the plan of `slackwater plan`, which
also compares settings, and is measured for few clients only. Needs Debian's Chromium (`make browser`) and playwright.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from tables import environment, table

import slackwater as sw
from slackwater.charts.style import palette_css

CHROMIUM = "/usr/bin/chromium"
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
ROUNDS, SLACK = 100, 236
AIM_MS = {54: 100.0, 1000: 300.0}
"""By number of clients: most at p95, while dragging."""
AIM_JOINT_MS = 1000.0
AIM_PAGE_BYTES = 130_000
FEW = 100
"""Up to so many clients, the plan is measured too: with more it takes a minute."""
HOW = {"dragging_ms": "dragging", "from_rest_ms": "from rest", "joint_ms": "joint optimum", "planned_ms": "plan"}
SLIDERS = ("budget", "alpha", "slack", "fine-tune")
_MOVE = """
async ([id, value, rest]) => {
  const drawn = new Promise((done) => document.addEventListener("slackwater:drawn", (event) => done(event.detail.ms), { once: true }));
  const slider = document.getElementById(id);
  slider.value = value;
  slider.dispatchEvent(new Event("input"));
  const ms = await drawn;
  await new Promise((done) => setTimeout(done, rest));
  return ms;
}
"""
_SETTLE = """
async ([id, value, event]) => {
  const settled = new Promise((done) => document.addEventListener(`slackwater:${event}`, done, { once: true }));
  const slider = document.getElementById(id), began = performance.now();
  slider.value = value;
  slider.dispatchEvent(new Event("input"));
  await settled;
  return performance.now() - began;
}
"""


def scenario(clients: int) -> str:
    """Clients over the zones of the typical year, of three powers; the budget is a fifth of everybody for the first hours."""
    traces = sw.load_traces(start="2022-01-01T00:00Z", hours=ROUNDS)
    rng = np.random.default_rng(1)
    row = np.arange(clients) % len(traces.zones)
    power_w = rng.choice((70, 300, 700), clients)
    budget = 0.2 * float(power_w / 1000 @ traces.intensity[row].sum(axis=1))
    head = f"start = 2022-01-01T00:00:00Z\nrounds = {ROUNDS}\nslack = {SLACK}\nbudget_kg = {budget:.3f}\nalpha = 0.1\n"
    sites = (
        f'[[client]]\nname = "site-{i}"\nzone = "{traces.zones[row[i]]}"\npower_w = {power_w[i]}\n'
        for i in range(clients)
    )
    return "\n".join([head, *sites])


@contextmanager
def served(text: str) -> Iterator[str]:
    """The dashboard in a process of its own, as users have it; its address."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scenario.toml"
        path.write_text(text)
        process = subprocess.Popen(
            [sys.executable, "-m", "slackwater", "serve", str(path), "--port", "0", "--no-open"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()
            process.wait()
            process.stdout.close()


def measure(browser: Any, clients: int, moves: int, settles: int) -> dict[str, Any]:
    """One fleet: milliseconds of every move."""
    rng = np.random.default_rng(0)
    with served(scenario(clients)) as address:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(600_000)
        page.goto(address)
        page.wait_for_selector("#end-hint-joint:not(:empty)", state="attached")  # the planning processes have started
        span = {slider: int(page.get_attribute(f"#{slider}", "max")) for slider in SLIDERS}
        span |= {"slack": SLACK, "fine-tune": 6}

        def place(slider: str) -> int:
            low = {"budget": 300, "slack": SLACK // 2}.get(slider, 0)  # where there is a plan
            return int(rng.integers(low, span[slider] + 1))

        def run(count: int, rest_ms: int) -> list[float]:
            chosen = [SLIDERS[i % len(SLIDERS)] for i in range(count)]
            return [float(page.evaluate(_MOVE, [slider, place(slider), rest_ms])) for slider in chosen]

        run(4, 0)
        dragging, resting = run(moves, 0), run(max(4, moves // 2), 500)

        def settled(event: str, count: int) -> list[float]:
            return [float(page.evaluate(_SETTLE, ["budget", place("budget"), event])) for _ in range(count)]

        joint, planned = settled("joint", 4 * settles), settled("settled", settles if clients <= FEW else 0)
        page.close()
    return {
        "clients": clients,
        "slots": ROUNDS + SLACK,
        "dragging_ms": dragging,
        "from_rest_ms": resting,
        "joint_ms": joint,
        "planned_ms": planned,
    }


def page_bytes() -> int:
    """All that a page loads, compressed as the server sends it."""
    static = Path(sw.__file__).parent / "dashboard" / "static"
    files = [one.read_bytes() for one in static.rglob("*") if one.is_file() and one.suffix != ".md"]
    return sum(len(gzip.compress(one, mtime=0)) for one in [*files, palette_css().encode()])


def report(result: dict[str, Any]) -> str:
    """Tables for the docs."""
    made = result["environment"]
    load = result["load_average"]
    head = ["clients x slots", "how", "moves", "p50 ms", "p95 ms", "largest ms"]
    rows = []
    for fleet in result["fleets"]:
        for key, how in HOW.items():
            if not (values := fleet[key]):
                continue
            figures = [f"{float(np.percentile(values, q)):,.0f}" for q in (50, 95, 100)]
            rows.append([f"{fleet['clients']:,} x {fleet['slots']}", how, str(len(values)), *figures])
    intro = (
        f"Made by `{made['command']}` on {made['date'][:10]}: {made['machine']}, {made['cores']} shared cores, load average "
        f"{load[0]:.1f} before and {load[1]:.1f} after; {result['browser']}, python {made['versions']['python']}, slackwater "
        f"{made['versions']['slackwater']}. Slider's event to the frame after the redrawn schedule, in the browser, over the sliders "
        f"{', '.join(SLIDERS)} at random places. Dragging and from rest: the best schedule for the end time on show. Joint optimum: "
        "the largest objective over all end times. Plan: that of `slackwater plan`, settings compared too, with metrics. "
        "Both include 120 ms of rest."
    )
    lines = []
    for fleet in result["fleets"]:
        for key, aim in (("dragging_ms", AIM_MS.get(fleet["clients"])), ("joint_ms", AIM_JOINT_MS)):
            if aim is not None and fleet[key]:
                p95 = float(np.percentile(fleet[key], 95))
                lines.append(
                    f"- {fleet['clients']:,} x {fleet['slots']}, {HOW[key]}: p95 {p95:.0f} ms, aim {aim:.0f} ms: {_met(p95, aim)}."
                )
    lines.append(
        f"- Page: {result['page_bytes']:,} bytes gzip, aim {AIM_PAGE_BYTES:,}: {_met(result['page_bytes'], AIM_PAGE_BYTES)}."
    )
    return "\n\n".join([intro, table(head, rows), "\n".join(lines)]) + "\n"


def _met(measured: float, aim: float) -> str:
    return "**met**" if measured < aim else "**missed**"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[54, 1000])
    parser.add_argument("--moves", type=int, default=80)
    parser.add_argument("--settles", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "dashboard.json")
    options = parser.parse_args(arguments)
    from playwright.sync_api import sync_playwright

    before = environment()["load_average"][0]
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        fleets = [measure(browser, clients, options.moves, options.settles) for clients in options.clients]
        version = f"Chromium {browser.version}"
        browser.close()
    made = environment()
    result = {
        "environment": made,
        "load_average": [before, made["load_average"][0]],
        "browser": version,
        "page_bytes": page_bytes(),
        "fleets": fleets,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    text = report(result)
    options.out.with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
