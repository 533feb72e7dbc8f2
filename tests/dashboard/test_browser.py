"""The page in a real browser: load, slide, hover, copy, compare, and watch a run finish."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made import HOSTILE, do_rounds, hostile_plan, scenario, small_plan, start_run
from report_runs import replanned

import slackwater as sw
from slackwater.dashboard.server import Dashboard
from slackwater.ledger.journal import Attempt, Replan
from slackwater.ledger.schema import KINDS, RunKind
from slackwater.scenario import SCENARIO as DEMO
from slackwater.scenario import load_scenario

Serve = Callable[..., Dashboard]
Open = Callable[..., Any]
SHOTS = os.environ.get("SLACKWATER_SCREENSHOTS")
"""A folder to keep pictures in, if they are wanted."""


def _pixels(page: Any, selector: str = "#schedule canvas") -> str:
    return str(page.evaluate("(selector) => document.querySelector(selector).toDataURL()", selector))


def _settled(page: Any) -> None:
    page.wait_for_selector("#metrics:not(.stale) dt", state="attached")
    page.wait_for_selector("#front:not(.stale)[aria-label]", state="attached")


def _slide(page: Any, slider: str, value: int) -> None:
    page.evaluate(
        "([id, value]) => { const s = document.getElementById(id); s.value = value; s.dispatchEvent(new Event('input')); }",
        [slider, value],
    )


def _keep(page: Any, name: str) -> None:
    if SHOTS:
        page.screenshot(path=f"{SHOTS}/{name}.png", full_page=True)


def test_a_slider_moves_and_the_schedule_changes(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    page = page_of(serve(scenario(tmp_path)))
    _settled(page)
    assert "least predicted error" in page.text_content("#plan-status")
    before, totals = _pixels(page), page.text_content("#totals")
    page.focus("#budget")
    for _ in range(5):
        page.keyboard.press("ArrowRight")  # by key, as somebody without a mouse does
    _settled(page)
    assert float(page.input_value("#budget-kg")) > 2.0
    assert _pixels(page) != before
    assert page.text_content("#totals") != totals
    last = _pixels(page)
    for slider, value in (("alpha", 12), ("fine-tune", 3), ("slack", 8), ("end", 1)):
        _slide(page, slider, value)
        _settled(page)
        assert _pixels(page) != last, slider
        last = _pixels(page)
    assert not page.is_checked("#end-auto")
    assert "s = 1" in page.text_content("#end-out")
    page.click("#reset")
    _settled(page)
    assert page.text_content("#totals") == totals


def test_a_long_figure_has_the_width_that_its_own_name_leaves(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    page = page_of(serve(scenario(tmp_path)))
    _settled(page)
    page.click("#optimiser > summary")
    rows = page.evaluate(
        """() => [...document.querySelectorAll("#totals dt")].map((name) => [name.textContent,
          name.getBoundingClientRect(), name.nextElementSibling.getBoundingClientRect()])"""
    )
    for name, its, value in rows:
        assert abs(its["top"] - value["top"]) < 2, name
        assert name == "Budget without slack" or value["height"] < 1.5 * its["height"], f"{name} wraps"


def test_hover_and_keys_tell_what_a_cell_is(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    page = page_of(serve(scenario(tmp_path)))
    _settled(page)
    place = page.locator("#schedule .grid-scroll canvas").bounding_box()
    page.mouse.move(place["x"] + 500, place["y"] + 60)
    tip = page.wait_for_selector(".grid-tip:not([hidden])").text_content()
    for part in ("BE (BE)", "Jan 2022", "g/kWh", " kg"):
        assert part in tip
    assert "Trains: " in tip or "Does not train: " in tip
    page.focus("#schedule canvas")
    seen = set()
    for key in ("ArrowDown", "ArrowRight", "PageDown", "End", "Home", "ArrowUp"):
        page.keyboard.press(key)
        seen.add(page.text_content("#schedule .grid-say"))
    assert len(seen) >= 5
    page.keyboard.press("End")
    last = page.text_content("#schedule .grid-say")
    assert "fine-tuning window" in last or "has ended" in last


def test_a_budget_that_is_too_small_is_a_sentence(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    page = page_of(serve(scenario(tmp_path)))
    _settled(page)
    page.fill("#budget-kg", "0.0001")
    page.keyboard.press("Tab")
    page.wait_for_selector("#plan-status.infeasible")
    assert "Raise budget_kg to at least" in page.text_content("#plan-status")


def test_copy_as_scenario_is_what_the_command_reads(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    page = page_of(serve(scenario(tmp_path)))
    _settled(page)
    _slide(page, "slack", 9)
    _settled(page)
    page.click("#copy")
    page.wait_for_selector("#done:not(:empty)")
    text = page.input_value("#toml")
    assert page.evaluate("navigator.clipboard.readText()") == text
    (tmp_path / "copied.toml").write_text(text, encoding="utf-8")
    found = sw.plan(load_scenario(tmp_path / "copied.toml").problem())
    assert found.problem.slack == 9
    assert f"s = {found.end}" in page.text_content("#end-out")


def test_the_map_changes_with_the_hour(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    page = page_of(serve(scenario(tmp_path)), "map")
    page.wait_for_selector("#world circle")
    assert page.locator("#world circle").count() == 7
    before, first = page.text_content("#zones"), page.text_content("#hour-out")
    page.focus("#hour")
    for _ in range(6):
        page.keyboard.press("ArrowRight")
    assert page.text_content("#zones") != before
    assert page.text_content("#hour-out") != first


def test_plans_side_by_side(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    path = scenario(tmp_path)
    small_plan().save(tmp_path / "plan.json")
    page = page_of(serve(path))
    _settled(page)
    page.click("#pin")
    _slide(page, "slack", 2)
    _settled(page)
    page.click("#pin")
    page.click("#tab-compare")
    page.wait_for_selector("#columns tbody tr")
    page.check("#choices label:has-text('plan.json') input")
    page.wait_for_selector("#columns thead th:nth-child(4)")
    row = page.locator("#columns tr", has_text="Slack, slots").locator("td").all_text_contents()
    assert row == ["20", "2−18 (−90.0 %)", "6−14 (−70.0 %)"]
    assert page.locator("#columns canvas").count() == 3
    _keep(page, "compare")


STEPPED = """
import sys
import slackwater as sw
plan, out = sw.Plan.load(sys.argv[1]), sys.argv[2]
task = sw.tasks.digits(clients=len(plan.problem.fleet), beta=0.5, seed=0)
sw.train(plan, task, local_steps=4, eval_every=2, threads=1, out=out, progress=lambda _: sys.stdin.readline())
"""
"""A training run that goes on to its next round only when it is told to, so that the page is seen after every round."""


def test_a_training_run_of_the_demo_is_watched_to_its_end(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    path = tmp_path / "scenario.toml"
    path.write_text(DEMO.replace("budget_kg = 3.0", "budget_kg = 1.2"))
    plan = sw.plan(load_scenario(path).problem(), end=20)
    plan.save(tmp_path / "plan.json")
    server = serve(path)
    command = [sys.executable, "-c", STEPPED, str(tmp_path / "plan.json"), str(tmp_path / "run")]
    training = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert training.stdin is not None
    assert training.stderr is not None
    rounds = int(plan.matrix.any(axis=0).sum())
    try:
        page = page_of(server, "map")
        while not (tmp_path / "run" / "run.db").exists():
            page.wait_for_timeout(100)
            assert training.poll() is None, training.stderr.read()
        page.click("#tab-run")
        for done in range(1, rounds + 1):
            _until(
                page,
                lambda share=done / rounds: float(page.get_attribute("#run-progress", "value") or 0) > share - 1e-9,
            )
            if done < rounds:
                assert "Done." not in page.text_content("#run-status")
            training.stdin.write("\n")
            training.stdin.flush()
        _until(page, lambda: "Done." in page.text_content("#run-status"))
        assert training.wait(60) == 0, training.stderr.read()
    finally:
        training.kill()
        training.communicate()
    assert "Nothing to draw yet" not in page.text_content("#accuracy")
    assert page.text_content("#accuracy .u-legend").startswith("kg CO2e, as settled")
    assert "So far as planned" in page.text_content("#burn-note")
    assert "No re-plan: the run follows its first plan." in page.text_content("#replans")
    assert page.get_attribute("#run-progress", "value") == "1"
    _keep(page, "run")


def _until(page: Any, so: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for it from here: the page lets nobody evaluate code in it."""
    for _ in range(int(20 * seconds)):
        if so():
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"not within {seconds:g} s")


def test_what_did_not_train_is_shown(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    plan = small_plan()
    with start_run(tmp_path / "run", plan) as run:
        run.journal.note_replan(
            Replan(slot=2, reason="due", changes={"<b>client-1</b>": (3, 0)}, reserve_kg=0.01, planned_kg=0.5)
        )
        run.journal.note(Attempt(slot=2, client="client-1", outcome="lost", error="gone"))
        busy = np.flatnonzero(plan.matrix.any(axis=0)).tolist()
        first = next(slot for slot in busy if not plan.matrix[:, slot].all())  # the re-plan wants everybody in it
        run.journal.note_planned(first, {(str(name), "training"): 0.01 for name in plan.problem.fleet.names})
        do_rounds(run, plan, 0, 3, absent=int(np.argmax(plan.slots_per_client)))
        page = page_of(serve(tmp_path), "run")
        page.wait_for_selector("#burn canvas")
        absent = int(np.count_nonzero(~plan.matrix[:, first]))
        assert absent > 0
        assert f"{absent} planned client-slots were missed." in page.text_content("#failures")
        assert "1 lost" in page.text_content("#failures")
        assert "<b>client-1</b> 3 → 0" in page.text_content("#replans")
        assert "in reserve" in page.text_content("#forecast")
        assert "slot" in page.text_content("#upcoming")


def test_a_replanned_run_is_shown_by_the_plan_in_force(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    replanned(tmp_path / "run", until=3)
    page = page_of(serve(tmp_path), "run")
    page.wait_for_selector("#burn canvas")
    assert "were missed" not in page.text_content("#failures")
    assert page.text_content("#burn-note") == (
        "Expected at the end: 2.5 kg of 5. So far 0.04 kg more than planned. The first plan expected 1.5 kg."
    )
    legend = page.get_attribute("#burn", "aria-label")
    assert "planned (plan in force)" in legend
    assert "first plan" in legend
    assert float(page.get_attribute("#run-progress", "value")) == pytest.approx(0.8)
    assert page.text_content("#run-kind") == KINDS["live"].sentence
    page.focus("#realised canvas")
    seen = []
    for key in ("Home", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight"):  # alice in slots 0 to 4
        page.keyboard.press(key)
        seen.append(page.text_content("#realised .grid-say"))
    for text, end in zip(
        seen, ("as planned.", "Not planned.", "Not planned.", "as planned.", "not reached yet."), strict=True
    ):
        assert text.endswith(end), seen
    _keep(page, "run-replanned")


@pytest.mark.parametrize("kind", ["simulated", "rehearsed", "live"])
def test_the_run_view_says_what_kind_of_run_it_is(serve: Serve, page_of: Open, tmp_path: Path, kind: RunKind) -> None:
    replanned(tmp_path / "run", kind=kind)
    page = page_of(serve(tmp_path), "run")
    page.wait_for_selector("#burn canvas")
    assert page.text_content("#run-kind") == KINDS[kind].sentence
    page.click("#tab-compare")
    page.wait_for_selector("#columns td")
    row = page.locator("#columns tr", has_text="Kind of run").locator("td").all_text_contents()
    assert row == [kind]


def test_hostile_names_are_shown_as_text_everywhere(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    plan = hostile_plan()
    folder = tmp_path / "<img src=x onerror=alert(1)>"
    plan.save(folder / "plan.json")
    with start_run(folder / "run", plan) as run:
        run.log(HOSTILE[1], level="error")
        do_rounds(run, plan, 0, 3)
    page = page_of(serve(tmp_path))
    page.on("dialog", lambda dialog: pytest.fail(f"a dialog: {dialog.message}"))
    _settled(page)
    page.focus("#schedule canvas")
    page.keyboard.press("ArrowDown")
    assert HOSTILE[0] in page.text_content("#schedule .grid-say")
    page.keyboard.press("ArrowDown")
    assert HOSTILE[1] in page.text_content("#schedule .grid-tip")
    for view, where in (("map", "#zones"), ("run", "#failures"), ("compare", "#columns td")):
        page.click(f"#tab-{view}")
        page.wait_for_selector(where)
        page.wait_for_timeout(300)
    assert "<img src=x onerror=alert(1)>" in page.text_content("#choices")
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 1
    assert page.title() == "Slackwater"
    page.click("#tab-map")
    assert "not on the map" in page.text_content("#zones")


def test_a_broken_run_is_a_sentence_on_the_page(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    scenario(tmp_path)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "run.db").write_bytes(b"not a database" * 999)
    page = page_of(serve(tmp_path), "run")
    page.wait_for_selector("#trouble:not([hidden])")
    assert "cannot be used as a run's file" in page.text_content("#trouble")
    page.click("#tab-plan")
    _settled(page)


@pytest.mark.parametrize(("wide", "tall", "scheme"), [(390, 844, "dark"), (1280, 900, "light")])
def test_every_view_fits_its_screen(
    serve: Serve, page_of: Open, tmp_path: Path, wide: int, tall: int, scheme: str
) -> None:
    path = scenario(tmp_path)
    plan = small_plan()
    with start_run(tmp_path / "run", plan) as run:
        do_rounds(run, plan, 0, 1000)
    page = page_of(serve(path), wide=wide, tall=tall, scheme=scheme)
    _settled(page)
    for view, ready in (
        ("plan", "#hours canvas"),
        ("map", "#world circle"),
        ("run", "#burn canvas"),
        ("compare", "#columns td"),
    ):
        page.click(f"#tab-{view}")
        page.wait_for_selector(ready)
        assert page.evaluate("document.documentElement.scrollWidth") <= wide, view
        unnamed = page.evaluate(
            "[...document.querySelectorAll('section:not([hidden]) :is(input, select, textarea, button, progress)')]"
            ".filter((e) => !(e.labels?.length || e.ariaLabel || e.textContent.trim())).map((e) => e.id)"
        )
        assert unnamed == []
        _keep(page, f"{view}-{wide}-{scheme}")


def test_a_thousand_clients(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    small_plan(clients=1000, slots=48).save(tmp_path / "plan.json")
    page = page_of(serve(tmp_path))
    page.wait_for_selector("#totals dt", state="attached")
    page.uncheck("#group")
    page.wait_for_timeout(300)
    before = _pixels(page)
    page.locator("#schedule .grid-scroll").evaluate("(box) => { box.scrollTop = 900; }")
    page.wait_for_timeout(300)
    assert _pixels(page) != before
    page.fill("#filter", "client-0999")
    page.focus("#schedule canvas")
    page.keyboard.press("ArrowDown")
    assert "client-0999" in page.text_content("#schedule .grid-say")


def test_a_server_that_is_gone_is_a_sentence(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    server = serve(scenario(tmp_path))
    page = page_of(server)
    _settled(page)
    page.route("**/api/**", lambda route: route.abort())
    _slide(page, "slack", 5)
    page.wait_for_selector("#trouble:not([hidden])")
    assert "does not answer" in page.text_content("#trouble")
