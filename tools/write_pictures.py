"""Write the pictures of dashboard and report in docs/images: `python tools/write_pictures.py`.

Needs Debian's Chromium (`make browser`) and playwright. The run is a rehearsal of the demo: it is halted half way while it
is photographed. The report is that of the demo's training.
"""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from playwright.sync_api import sync_playwright

import slackwater as sw
from slackwater.errors import SlackwaterError
from slackwater.ledger.run import Run
from slackwater.scenario import SCENARIO

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
CHROMIUM = "/usr/bin/chromium"
SITES, HALF_WAY = 54, 22
PATIENCE_MS = 300_000


def main() -> None:
    """Write all pictures."""
    with tempfile.TemporaryDirectory() as place, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        folder = Path(place)
        (folder / "scenario.toml").write_text(many_sites(), encoding="utf-8")
        with served(folder / "scenario.toml") as address:
            plan_views(browser, address)
        (folder / "demo.toml").write_text(SCENARIO, encoding="utf-8")
        run_view(browser, folder / "demo.toml", folder / "rehearsal")
        train(folder / "demo.toml", folder / "training")
        report_head(browser, folder / "training", folder / "report.html")
        browser.close()


def many_sites() -> str:
    """Return a scenario with a client in each of the first zones of the typical year, of three powers."""
    zones = sw.load_traces(start="2022-01-01T00:00Z", hours=1).zones[:SITES]
    power_w = np.random.default_rng(1).choice((70, 300, 700), SITES)
    head = "start = 2022-01-01T00:00:00Z\nrounds = 100\nslack = 236\nbudget_kg = 270\nalpha = 0.1\nfine_tune = 2\n"
    sites = (
        f'[[client]]\nname = "site-{i:03}"\nzone = "{zone}"\npower_w = {watts}\n'
        for i, (zone, watts) in enumerate(zip(zones, power_w, strict=True), start=1)
    )
    return "\n".join([head, *sites])


@contextmanager
def served(what: Path) -> Iterator[str]:
    """Serve a scenario or a run in a process of its own, as users have it, and yield its address."""
    command = [sys.executable, "-m", "slackwater", "serve", str(what), "--port", "0", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def opened(browser: Any, address: str, width: int, height: int, scheme: str = "light") -> Any:
    """Return a page that is ready."""
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    page.set_default_timeout(PATIENCE_MS)
    page.goto(address)
    return page


def plan_views(browser: Any, address: str) -> None:
    """Write plan, map and comparison on a desk, with the words of one cell, and plan and map on a phone, dark."""
    page = opened(browser, address, 1280, 900)
    settled(page)
    box = page.locator("#schedule .grid-scroll canvas").bounding_box()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.214 * box["height"])
    page.wait_for_selector(".grid-tip:not([hidden])")
    keep(page.screenshot(full_page=True), "dashboard-plan.png")
    page.click("#pin")
    for budget in ("230", "310"):
        page.fill("#budget-kg", budget)
        page.keyboard.press("Tab")
        page.wait_for_selector("#metrics.stale", state="attached")
        settled(page)
        page.click("#pin")
    page.click("#tab-map")
    page.wait_for_selector("#world .training")
    page.evaluate(
        "() => { const s = document.getElementById('hour'); s.value = 60; s.dispatchEvent(new Event('input')); }"
    )
    keep(page.screenshot(), "dashboard-map.png")
    page.click("#tab-compare")
    page.wait_for_selector("#differences canvas")
    page.wait_for_timeout(1000)
    keep(page.screenshot(full_page=True), "dashboard-compare.png")
    page.close()
    phone = opened(browser, address, 390, 844, "dark")
    settled(phone)
    keep(phone.screenshot(), "dashboard-phone.png")
    phone.close()


def settled(page: Any) -> None:
    """Wait for the plan with its metrics: settings and end times are compared."""
    page.wait_for_selector("#metrics:not(.stale) dt", state="attached")
    page.wait_for_selector("#front:not(.stale)[aria-label]", state="attached")


def run_view(browser: Any, scenario: Path, out: Path) -> None:
    """Rehearse the demo; write the run view half way, on a desk and on a phone, dark."""
    command = [sys.executable, "-m", "slackwater", "rehearse", str(scenario), "--out", str(out)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while rounds_done(out) < HALF_WAY:
            time.sleep(0.05)
        process.send_signal(signal.SIGSTOP)
        try:
            with served(out) as address:
                for name, width, height, scheme in (("run", 1280, 900, "light"), ("run-phone", 390, 844, "dark")):
                    page = opened(browser, f"{address}#run", width, height, scheme)
                    page.wait_for_selector("#burn canvas")
                    page.wait_for_timeout(1000)  # the schedule follows
                    keep(page.screenshot(full_page=name == "run"), f"dashboard-{name}.png")
                    page.close()
        finally:
            process.send_signal(signal.SIGCONT)


def rounds_done(folder: Path) -> int:
    """Return the rounds of a run so far; 0 before it starts."""
    try:
        with Run.open(folder, read_only=True) as run:
            return sum(1 for _ in run.rounds())
    except SlackwaterError:
        return 0


def train(scenario: Path, out: Path) -> None:
    """Train the demo's plan."""
    plan = sw.plan(sw.load_scenario(scenario).problem())
    sw.train(plan, sw.tasks.make("digits", clients=len(plan.problem.fleet)), out=out, eval_every=4, threads=1)


def report_head(browser: Any, run: Path, html: Path) -> None:
    """Write the first section of a report."""
    sw.report(run, html=html)
    page = opened(browser, html.as_uri(), 1100, 785)
    keep(page.screenshot(), "report.png")
    page.close()


def keep(png: bytes, name: str) -> None:
    """Store a picture at most 1,100 pixels wide with 256 colours: a quarter of the bytes, and no difference to the eye."""
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    picture.thumbnail((1100, picture.height), Image.Resampling.LANCZOS)
    # This method and its refinement keep thin lines in their own colours.
    few = picture.quantize(256, method=Image.Quantize.MAXCOVERAGE, kmeans=3)
    few.save(IMAGES / name, optimize=True)
    sys.stderr.write(f"wrote {IMAGES / name}\n")


if __name__ == "__main__":
    main()
