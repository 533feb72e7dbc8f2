"""The Run view, the Edit panel and the server's ways to be reached, in a real browser."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from browsing import download, noted, settled
from made import HOSTILE, SCENARIO, do_rounds, scenario, small_plan, start_run
from report_runs import IN_FORCE, START, replanned
from reverse_proxy import proxied

import slackwater as sw
from slackwater.dashboard.jobs import Job
from slackwater.dashboard.server import Dashboard
from slackwater.ledger.journal import Attempt
from slackwater.ledger.run import Run
from slackwater.ledger.score import MetricLabel
from slackwater.scenario import load_scenario

Serve = Callable[..., Dashboard]
Open = Callable[..., Any]
HIDE = """
window.tabHidden = false; window.told = []; window.streams = 0;
Object.defineProperty(document, "hidden", { get: () => window.tabHidden });
window.Notification = class {
  constructor(title) { window.told.push(title); }
  static requestPermission() { return Promise.resolve("granted"); }
};
window.Notification.permission = "granted";
const Own = window.EventSource;
window.EventSource = class extends Own {
  constructor(...given) { super(...given); window.streams++; }
  close() { if (this.readyState !== 2) window.streams--; super.close(); }
};
"""
"""Lets a test hide the tab, count open streams, and see notifications."""
SHOTS = os.environ.get("SLACKWATER_SCREENSHOTS")


def _until(page: Any, so: Callable[[], bool], seconds: float = 60.0) -> None:
    for _ in range(int(20 * seconds)):
        if so():
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"not within {seconds:g} s")


def _planned(page: Any) -> None:
    page.wait_for_selector("#metrics:not(.stale) dt", state="attached")


def _hide(page: Any, yes: bool) -> None:
    page.evaluate("(yes) => { window.tabHidden = yes; document.dispatchEvent(new Event('visibilitychange')); }", yes)


def _texts(page: Any, *ids: str) -> list[str]:
    return [page.text_content(f"#{one}") for one in ids]


def _svg(page: Any, name: str) -> str:
    with page.expect_download() as download:
        page.click(f"#{name}-export button:has-text('SVG')")
    return str(download.value.path().read_text())


def _lines(picture: str) -> list[str]:
    """The points of each line of a chart that is not straight, in the order of the legend."""
    return [line for line in re.findall(r' d="(M[^"]*)"', picture) if line.count("L") > 1]


def test_the_charts_of_a_run_grow_zoom_and_hide_lines(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    plan = small_plan()
    with start_run(tmp_path / "run", plan) as run:
        page = page_of(serve(tmp_path), "run")
        _until(page, lambda: page.text_content("#accuracy") == "Nothing to draw yet.")
        assert page.is_hidden("#accuracy-export")
        do_rounds(run, plan, 0, 3)
        page.wait_for_selector("#accuracy canvas")
        assert page.is_visible("#accuracy-export")
        page.select_option("#run-axis", "time")
        box = page.locator("#burn .u-over").bounding_box()
        middle, end = box["y"] + box["height"] / 2, f"1 Jan 2022, {plan.problem.rounds + plan.end:02}:00 UTC"
        page.mouse.move(box["x"] + box["width"] - 3, middle)
        legend = "#burn .u-legend"
        _until(page, lambda: end in page.text_content(legend))  # the crosshair is at the end
        realised = page.locator(f"{legend} tr", has_text="realised")
        assert realised.locator("td").text_content() == "–"  # it has not come so far
        page.mouse.move(box["x"] + 2, middle)
        _until(page, lambda: f"{plan.problem.budget_kg:.4g}" in realised.text_content())
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] / 2, middle)
        page.mouse.up()
        page.mouse.move(box["x"] + box["width"] - 3, middle)
        _until(page, lambda: "UTC" in page.text_content(legend) and end not in page.text_content(legend))  # zoomed
        zoomed = page.text_content(legend).split("UTC")[1]
        realised.locator("th").click()
        assert "u-off" in realised.get_attribute("class")
        do_rounds(run, plan, 3, 1)
        _until(page, lambda: "Round 4 of" in page.text_content("#run-status"))
        page.mouse.move(box["x"] + box["width"] - 2, middle)
        _until(page, lambda: zoomed in page.text_content(legend))  # a new round keeps the zoom and what is hidden
        assert "u-off" in realised.get_attribute("class")
        page.mouse.dblclick(box["x"] + box["width"] / 2, middle)
        page.mouse.move(box["x"] + box["width"] - 3, middle)
        _until(page, lambda: end in page.text_content(legend))


def test_eight_tabs_follow_a_run_and_none_hangs(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    plan = small_plan()
    with start_run(tmp_path / "run", plan) as run:
        do_rounds(run, plan, 0, 1)
        server = serve(scenario(tmp_path))
        first = page_of(server, "run")
        tabs = [first]
        for _ in range(7):
            tab = first.context.new_page()
            tab.goto(f"http://127.0.0.1:{server.port}/#run")
            tabs.append(tab)
        for tab in tabs:
            _until(tab, lambda tab=tab: "Round 1 of" in tab.text_content("#run-status"), 20)
        total = do_rounds(run, plan, 1, 2)
        for tab in tabs:
            _until(tab, lambda tab=tab: f"Round 3 of {total}" in tab.text_content("#run-status"), 20)
            assert "Disconnected" not in tab.text_content("#live")
        first.click("#tab-plan")
        _planned(first)
        run.set_status("done")
        for tab in tabs:
            _until(tab, lambda tab=tab: "Done." in (tab.text_content("#run-status") or ""), 20)
        _until(first, lambda: server.streams.open_count() == 0, 10)


def test_a_hidden_tab_has_no_stream_and_still_tells_of_the_end(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    plan = small_plan()
    with start_run(tmp_path / "run", plan) as run:
        do_rounds(run, plan, 0, 2)
        server = serve(tmp_path)
        page = page_of(server, "run", script=HIDE)
        page.wait_for_selector("#burn canvas")
        page.click("#notify")
        _until(page, lambda: page.get_attribute("#notify", "aria-pressed") == "true")
        assert page.evaluate("window.streams") == 1
        _hide(page, True)
        assert page.evaluate("window.streams") == 0
        _until(page, lambda: server.streams.open_count() == 0, 10)
        run.set_status("failed")
        _until(page, lambda: page.title() != "Slackwater", 30)
        assert page.title() == "Failed: run · Slackwater"
        assert page.evaluate("window.told") == ["Failed: run"]
        assert "Failed" not in page.text_content("#run-status")  # the hidden page is not drawn
        _hide(page, False)
        _until(page, lambda: "Failed; see the events" in page.text_content("#run-status"))
        assert page.evaluate("window.told.length") == 1


def test_another_metric_has_its_name_unit_and_direction(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    plan, error = small_plan(), MetricLabel(name="error", higher_is_better=False, unit="days")
    with start_run(tmp_path / "run", plan, error) as run:
        do_rounds(run, plan, 0, 2)
        run.set_score(list(run.rounds())[-1].slot, 12345.6, 0.5)
        page = page_of(serve(tmp_path), "run")
        page.wait_for_selector("#accuracy canvas")
        assert _texts(page, "run-score-name", "run-score") == ["error (lower is better)", "12,346 days"]
        assert "error 12,346 days" in page.text_content("#run-status")
        assert page.text_content("#score-title") == "error (lower is better)"
        assert "error, days (lower is better)" in page.get_attribute("#accuracy", "aria-label")
        assert "ccuracy" not in page.inner_text("#run")


KILLED = """
import sys, time
sys.path[:0] = sys.argv[2:]
from made import do_rounds, small_plan, start_run
plan = small_plan()
run = start_run(sys.argv[1], plan)
do_rounds(run, plan, 0, 2)
print("begun", flush=True)
time.sleep(600)
"""


def test_pictures_of_a_run_explain_their_marks_and_name_the_run(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    plan = small_plan()
    scenario(tmp_path)
    with start_run(tmp_path / "training", plan) as run:
        do_rounds(run, plan, 0, 2)
        page = page_of(serve(tmp_path))
        settled(page)
        assert "Intensity:" in page.inner_text("#origin")
        page.click("#tab-run")
        page.wait_for_selector("#burn canvas")
        assert not page.is_visible("#origin"), "it is of the scenario, and not of the run"
        for name in ("realised", "burn"):
            picture = download(page, f"{name} as SVG", tmp_path).read_text("utf-8")
            assert "training: Running." in picture
            assert "Simulated run" in picture
        for words in ("planned, not reached yet", "planned, did not train", "only in the first plan"):
            assert words in (tmp_path / "realised.svg").read_text("utf-8")


def test_back_shows_the_run_of_the_address(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    plan = small_plan()
    for name, rounds in (("older", 2), ("newer", 3)):
        with start_run(tmp_path / name, plan) as run:
            do_rounds(run, plan, 0, rounds)
            run.set_status("stopped")
    page = page_of(serve(tmp_path), "run")
    page.wait_for_selector("#burn canvas")
    first = page.evaluate("document.getElementById('runs').selectedOptions[0].textContent")
    rounds = {"older": "Round 2", "newer": "Round 3"}
    (other,) = set(rounds) - {first}
    page.select_option("#runs", label=other)
    page.wait_for_function(
        "(said) => document.getElementById('run-status').textContent.includes(said)", arg=rounds[other]
    )
    noted(page, f"run={page.input_value('#runs')}")
    for name, step in ((first, page.go_back), (other, page.go_forward)):
        step()
        page.wait_for_function(
            "(said) => document.getElementById('run-status').textContent.includes(said)",
            arg=rounds[name],
            timeout=10_000,
        )
        assert page.evaluate("document.getElementById('runs').selectedOptions[0].textContent") == name


def test_a_killed_process_is_told_at_once(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path / "run"), *sys.path]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        page = page_of(serve(tmp_path), "run")
        _until(page, lambda: "Running." in page.text_content("#run-status"))
        assert "in the scenario" in page.text_content("#run-ends-note").lower()
        process.kill()
        process.wait()
        _until(page, lambda: "The process of this run is gone" in page.text_content("#run-status"), 5)
        assert page.title() == "Process gone: run · Slackwater"
        assert page.text_content("#run-ends") == "Not running"
    finally:
        process.kill()
        process.communicate()


def test_a_replanned_live_run_shows_the_numbers_of_the_ledger(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    folder = replanned(tmp_path / "run", until=3)
    with Run.open(folder, read_only=True) as run:
        spent, unsettled = run.ledger.spent_kg(), run.ledger.unsettled_kg()
        reserve = run.journal.replans()[-1].reserve_kg
        budget, by_slot = run.ledger.budget_kg or 0.0, run.queries.kg_by_slot()
        events = [message for _, _, _, message in run.events()]
    page = page_of(serve(tmp_path), "run")
    page.wait_for_selector("#burn canvas")
    assert unsettled == 0
    assert _texts(page, "run-spent", "run-left") == [f"{spent:.4g} kg", f"{budget - spent:.4g} kg"]
    assert f"{spent / budget:.1%}".replace("%", " %") in page.text_content("#run-spent-note")
    assert f"0.8 kg of it planned, {reserve:.4g} kg in reserve" in page.text_content("#run-left-note")
    state = page.evaluate("fetch('api/run?run=' + document.getElementById('runs').value).then((a) => a.json())")[
        "state"
    ]
    sums, so_far = [], 0.0
    for slot in sorted(by_slot):
        so_far += by_slot[slot]
        sums.append(so_far)
    assert state["kg_by_round"] == pytest.approx(sums)
    assert state["spent_kg"] == spent == pytest.approx(sums[-1])
    assert "Re-planned: due." in page.text_content("#log")
    assert page.locator("#log li").count() == len(events) + len(by_slot) + 1
    with page.expect_download() as download:
        page.click("#accuracy-export button:has-text('CSV')")
    rows = list(csv.DictReader(download.value.path().read_text().splitlines()))
    assert [float(row["kg_settled"]) for row in rows] == pytest.approx(sums)
    with page.expect_download() as download:
        page.click("#realised-export button:has-text('CSV')")
    states = [row["state"] for row in csv.DictReader(download.value.path().read_text().splitlines())]
    assert sorted(states) == ["pending", "pending", "superseded", "trained", "trained", "trained", "trained"]
    page.select_option("#run-axis", "time")
    assert "time, UTC" in page.get_attribute("#accuracy", "aria-label")
    assert "no slack (planned)" in page.get_attribute("#burn", "aria-label")
    page.focus("#realised canvas")
    for key in ("Home", "ArrowDown", "ArrowRight", "ArrowRight"):  # bob, slot 2: only the first plan had it
        page.keyboard.press(key)
    assert page.text_content("#realised .grid-say").endswith("In the first plan only; a re-plan dropped it.")


def test_a_failed_run_says_why_and_shows_the_slots_that_it_lost(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    with Run.open(replanned(tmp_path / "run", until=3)) as run:
        charge = next(iter(run.ledger.charges()))
        late = START + timedelta(hours=4)
        run.ledger.charge(replace(charge, id=None, slot=4, slot_start=late, client="alice", zone="A"))
        run.journal.note_planned(4, IN_FORCE[4])
        run.journal.note(Attempt(slot=4, client="alice", outcome="failed", sent_at=late, ended_at=late))
        run.log("alice: the disk is full.", level="error", slot=4)
        run.set_status("failed")
        spent, budget = run.ledger.spent_kg(), run.ledger.budget_kg or 0.0
        page = page_of(serve(tmp_path), "run")
        page.wait_for_selector("#burn canvas")
        assert page.text_content("#run-status").startswith("Failed: alice: the disk is full.")
        with page.expect_download() as download:
            page.click("#realised-export button:has-text('CSV')")
        rows = list(csv.DictReader(download.value.path().read_text().splitlines()))
        assert [row["client"] for row in rows if row["state"] == "missed"] == ["alice", "bob"]
        assert "pending" not in {row["state"] for row in rows}
        # The curve of the realised kg goes on to the last charge, although its slot has no round.
        ends = [line.rsplit("L", 1)[1].split()[0] for line in _lines(_svg(page, "burn"))]
        assert ends[0] == ends[1]  # the plan in force, and what is realised
        assert page.text_content("#run-left") == f"{budget - spent:.4g} kg"


def test_a_site_that_draws_far_less_than_declared_is_told_to_calibrate(
    serve: Serve, page_of: Open, tmp_path: Path
) -> None:
    plan = small_plan(clients=3, slots=24)
    with start_run(tmp_path / "run", plan) as run:
        do_rounds(run, plan, 0, 1000)
        for line in [one for one in run.ledger.charges() if one.client == "client-1" and one.cause == "training"]:
            run.ledger.correct(line, 0.2 * float(line.energy_kwh or 0), method="measured")
        page = page_of(serve(tmp_path), "run")
        page.wait_for_selector("#failures .warning")
        told = page.text_content("#failures .warning")
        assert "client-1" in told
        assert "slackwater calibrate" in told


def test_the_baseline_is_followed_to_its_end_after_the_run(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    plan = small_plan()
    with start_run(tmp_path / "run", plan) as run:
        do_rounds(run, plan, 0, 1000)
        (tmp_path / "run" / "baseline").mkdir()
        run.set_status("done")
        page = page_of(serve(tmp_path), "run")
        page.wait_for_selector("#burn canvas")
        assert "Without slack the budget pays" in page.text_content("#run-score-note")
        with start_run(tmp_path / "run" / "baseline", plan) as beside:
            do_rounds(beside, plan, 0, 2)
            _until(page, lambda: "Without slack, so far: 28.0 %" in page.text_content("#run-score-note"), 15)
            do_rounds(beside, plan, 2, 1)
            beside.set_status("done")
            _until(page, lambda: "Without slack: 35.2 %" in page.text_content("#run-score-note"), 15)


def test_slots_of_a_minute_have_times_on_their_axes(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    problem = load_scenario(scenario(tmp_path, head=f"slot_minutes = 1\n{SCENARIO}")).problem()
    plan = sw.plan(problem)
    with start_run(tmp_path / "run", plan) as run:
        do_rounds(run, plan, 0, 2)
        page = page_of(serve(tmp_path / "run"), "run")
        page.wait_for_selector("#burn canvas")
        page.select_option("#run-axis", "time")  # the axis goes to the end of the plan from the first round on
        for name in ("realised", "burn", "accuracy"):
            assert ">00:05<" in _svg(page, name)


def test_a_client_is_edited_and_the_plan_the_link_and_the_file_follow(
    serve: Serve, page_of: Open, tmp_path: Path
) -> None:
    path = scenario(tmp_path)
    before = path.read_text()
    server = serve(path)
    page = page_of(server)
    _planned(page)
    page.click("#edit > summary")
    assert page.is_hidden("#edit-save")
    _until(page, lambda: page.input_value("#edit-name") == "BE")
    page.fill("#budget-kg", "1.5")
    page.keyboard.press("Tab")
    page.select_option("#edit-client", label="DE (DE)")
    page.fill("#edit-name", "berlin")
    page.fill("#edit-watts", "120")
    page.fill("#edit-away", "daily 06:00-09:00\n")
    page.click("#edit-apply")
    _until(page, lambda: page.text_content("#edit-status") == "Changed.")
    page.select_option("#edit-client", label="FR (FR)")
    page.click("#edit-remove")
    _until(page, lambda: "FR (FR)" not in page.text_content("#edit-client"))
    page.select_option("#edit-client", label="New client")
    page.fill("#edit-name", HOSTILE[0])
    page.fill("#edit-zone", "PL")
    page.fill("#edit-watts", "50")
    page.click("#edit-apply")
    _until(page, lambda: "(PL)" in page.text_content("#edit-client"))
    _planned(page)
    assert "of 7 clients" in page.text_content("#tile-who")
    assert page.input_value("#budget-kg") == "1.5"
    page.focus("#schedule canvas")
    for key in ("Home", "End", *["ArrowDown"] * 6):
        page.keyboard.press(key)
    assert HOSTILE[0] in page.text_content("#schedule .grid-say")
    assert page.title() == "Slackwater"
    with page.expect_download() as download:
        page.click("#edit-download")
    assert download.value.suggested_filename == "scenario.toml"
    copy = tmp_path / "copy.toml"
    download.value.save_as(copy)
    clients = tomllib.loads(copy.read_text())["client"]
    assert [one["name"] for one in clients] == ["BE", "GB", "IE", "FI", "SE-SE3", "berlin", HOSTILE[0]]
    assert clients[5] == {"name": "berlin", "zone": "DE", "power_w": 120, "unavailable": ["daily 06:00-09:00"]}
    assert tomllib.loads(copy.read_text())["budget_kg"] == 1.5
    shown = page.text_content("#totals")
    assert f"{sw.plan(load_scenario(copy).problem()).emissions_kg:.3g}"[:4] in shown
    _until(page, lambda: "~" in page.evaluate("decodeURIComponent(location.hash)"))
    again = page_of(server, page.evaluate("location.hash.slice(1)"))
    _planned(again)
    assert again.text_content("#totals") == shown
    page.click("#edit-undo")
    _until(page, lambda: "FR (FR)" in page.text_content("#edit-client"))
    assert path.read_text() == before
    assert page.evaluate("fetch('api/save', {method: 'POST', body: '{}'}).then((answer) => answer.status)") == 405


def test_a_wrong_edit_is_a_sentence_and_changes_nothing(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    page = page_of(serve(scenario(tmp_path)))
    _planned(page)
    page.click("#edit > summary")
    _until(page, lambda: page.input_value("#edit-name") == "BE")
    shown = page.text_content("#totals")
    for box, text, tells in (("edit-zone", "XX", "XX"), ("edit-away", "someday", "someday"), ("edit-name", "GB", "GB")):
        page.select_option("#edit-client", label="BE (BE)")
        page.dispatch_event("#edit-client", "change")
        page.fill(f"#{box}", text)
        page.click("#edit-apply")
        page.wait_for_selector("#edit-status.infeasible")
        assert tells in page.text_content("#edit-status")
        assert "~" not in page.evaluate("decodeURIComponent(location.hash)")
    assert page.text_content("#totals") == shown
    page.evaluate("document.dispatchEvent(new CustomEvent('slackwater:add-site', { detail: { zone: 'NL' } }))")
    assert page.input_value("#edit-zone") == "NL"  # as the map offers it
    assert page.text_content("#edit-apply") == "Add"


def test_a_token_a_saved_scenario_and_a_run_started_from_the_page(serve: Serve, browser: Any, tmp_path: Path) -> None:
    path = scenario(tmp_path)
    path.write_text(
        "# mine\n"
        + path.read_text().replace("slack = 20", "slack = 3   # hours").replace("budget_kg = 2.0", "budget_kg = 0.5")
    )
    server = serve(path, token="s3cret", writable=True)
    context = browser.new_context()
    try:
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{server.port}/")
        assert "asks for its token" in page.text_content("[role=status]")
        page.fill("#token", "guess")
        page.click("button")
        assert "not the token" in page.text_content("[role=status]")
        page.fill("#token", "s3cret")
        page.click("button")
        page.wait_for_selector("html[data-ready=yes]")
        assert "s3cret" not in page.url
        _planned(page)
        page.click("#edit > summary")
        page.fill("#edit-name", HOSTILE[1])
        page.click("#edit-apply")
        _until(page, lambda: page.text_content("#edit-status") == "Changed.")
        page.click("#edit-save")
        _until(page, lambda: page.text_content("#edit-status") == "Saved scenario.toml.")
        saved = path.read_text()
        assert saved.startswith("# mine\n")
        assert "slack = 3   # hours" in saved
        assert tomllib.loads(saved)["client"][0]["name"] == HOSTILE[1]
        assert "~" not in page.evaluate("decodeURIComponent(location.hash)")
        page.click("#edit-train")
        _until(page, lambda: "run: " in page.text_content("#edit-jobs"))
        page.click("#edit-train")  # one at a time
        page.wait_for_selector("#edit-status.infeasible")
        assert "has not ended" in page.text_content("#edit-status")
        page.click("#edit-jobs button", timeout=90_000)
        _until(page, lambda: "Done." in page.text_content("#run-status"), 90)
        assert HOSTILE[1] in page.text_content("#log")
        assert page.locator("script").count() == 1
        with context.expect_page() as opened:
            page.click("#run-report")
        opened.value.wait_for_load_state()
        assert "Emissions" in opened.value.text_content("body")
        assert opened.value.locator("script").count() == 0
        _until(page, lambda: not server.jobs.running(), 90)
        assert [one.exit_code for one in server.jobs.all()] == [0]
    finally:
        context.close()
        for job in server.jobs.running():
            if job.process is not None:
                job.process.kill()
            job.done.wait(30)


def test_started_runs_say_how_they_ended(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    server = serve(scenario(tmp_path), token="t", writable=True)
    codes = {"run": 0, "run-2": 1, "run-3": -9, "run-4": None}
    jobs = [Job(kind="train", folder=tmp_path / name, commands=[], exit_code=code) for name, code in codes.items()]
    for job in jobs:
        job.folder.mkdir()
        if job.exit_code is not None:
            job.done.set()
    (tmp_path / "run-2" / "dashboard.log").write_text("error: The disk is full.\n")
    server.jobs._jobs += jobs
    page = page_of(server)
    _until(page, lambda: page.locator("#edit-jobs li").count() == 4)
    told = [text.strip() for text in page.locator("#edit-jobs li").all_text_contents()]
    assert told == ["run-4: starting.", "run-3: killed.", "run-2: failed. error: The disk is full.", "run: ended."]


def test_the_page_works_below_a_path_prefix(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    plan = small_plan()
    with start_run(tmp_path / "run", plan) as run:
        do_rounds(run, plan, 0, 2)
        server = serve(scenario(tmp_path), token="s3cret", writable=True)
        with proxied(server.port, "/user/me/proxy/8765/") as address:
            page = page_of(server, address=address)
            assert page.evaluate("location.pathname + location.search") == "/user/me/proxy/8765/"
            assert [one["path"] for one in page.context.cookies()] == ["/user/me/proxy/8765"]
            _planned(page)
            page.click("#edit > summary")
            page.fill("#edit-watts", "200")
            page.click("#edit-apply")
            _until(page, lambda: page.text_content("#edit-status") == "Changed.")
            page.click("#edit-save")
            _until(page, lambda: page.text_content("#edit-status") == "Saved scenario.toml.")
            page.click("#tab-map")
            page.wait_for_selector("#world circle")
            page.click("#tab-run")
            _until(page, lambda: "Round 2 of" in page.text_content("#run-status"))
            total = do_rounds(run, plan, 2, 1)
            _until(page, lambda: f"Round 3 of {total}" in page.text_content("#run-status"))
            page.click("#tab-plan")


def test_the_page_says_that_it_loads_before_the_first_answer(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    server = serve(scenario(tmp_path))
    page = page_of(server)
    held: list[Any] = []
    page.route("**/api/sources*", lambda route: held.append(route))
    page.reload(wait_until="domcontentloaded")
    _until(page, lambda: bool(held))
    assert page.is_visible("#loading")
    assert page.is_visible("#tiles")
    held[0].continue_()
    page.wait_for_selector("html[data-ready=yes]")
    assert page.is_hidden("#loading")


def test_hostile_names_of_a_run_are_text(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    folder = tmp_path / HOSTILE[0].replace("/", "")
    plan = small_plan()
    with start_run(folder, plan) as run:
        do_rounds(run, plan, 0, 2)
        run.log(HOSTILE[1], level="warning", slot=1)
        page = page_of(serve(tmp_path), "run", script=HIDE)
        page.wait_for_selector("#burn canvas")
        assert HOSTILE[1] in page.text_content("#log")
        run.set_status("done")
        _until(page, lambda: page.title().startswith("Done: "))
        assert page.title() == f"Done: {folder.name} · Slackwater"
        assert page.locator("img").count() == 0
        assert page.locator("script").count() == 1


@pytest.mark.parametrize(("wide", "tall", "scheme"), [(390, 844, "dark"), (1440, 900, "light")])
def test_the_edit_panel_and_the_run_view_fit_their_screens(
    serve: Serve, page_of: Open, tmp_path: Path, wide: int, tall: int, scheme: str
) -> None:
    plan = small_plan()
    with start_run(tmp_path / "run", plan) as run:
        do_rounds(run, plan, 0, 4)
        server = serve(scenario(tmp_path), token="t", writable=True)
        page = page_of(server, wide=wide, tall=tall, scheme=scheme)
        page.click("#edit > summary")
        for view in ("plan", "run"):
            page.click(f"#tab-{view}")
            page.wait_for_timeout(500)
            assert page.evaluate("document.documentElement.scrollWidth") <= wide, view
            unnamed = page.evaluate(
                "[...document.querySelectorAll('section:not([hidden]) :is(input, select, textarea, button, progress)')]"
                ".filter((e) => !(e.labels?.length || e.ariaLabel || e.textContent.trim())).map((e) => e.id)"
            )
            assert unnamed == []
            if SHOTS:
                page.screenshot(path=f"{SHOTS}/edit-{view}-{wide}-{scheme}.png", full_page=True)
        bottoms = page.evaluate(
            "[...document.querySelectorAll('#run-tiles .tile')].map((e) => e.getBoundingClientRect().bottom)"
        )
        assert max(bottoms) < tall  # what is spent, left, when it ends, how good: on the first screen


def test_a_link_with_edits_of_an_older_file_shows_the_file_as_it_is(
    serve: Serve, page_of: Open, tmp_path: Path
) -> None:
    path = scenario(tmp_path)
    server = serve(path)
    page = page_of(server)
    _planned(page)
    page.click("#edit > summary")
    _until(page, lambda: page.input_value("#edit-name") == "BE")
    page.click("#edit-remove")
    _until(page, lambda: page.text_content("#edit-status") == "Removed BE.")
    _until(page, lambda: "~" in page.evaluate("decodeURIComponent(location.hash)"))
    link = page.evaluate("location.hash.slice(1)")
    path.write_text(path.read_text().replace("budget_kg = 2.0", "budget_kg = 1.5"))
    again = page_of(server, link)
    _planned(again)
    assert again.text_content("#trouble").startswith("scenario.toml has changed since these edits were made.")
    assert "of 7 clients" in again.text_content("#tile-who")
    assert "~" not in again.evaluate("decodeURIComponent(location.hash)")
    again.click("#edit > summary")
    _until(again, lambda: again.input_value("#edit-name") == "BE")
    again.select_option("#edit-client", label="New client")
    again.fill("#edit-name", "oslo")
    again.fill("#edit-zone", "NO")
    again.fill("#edit-watts", "50")
    again.click("#edit-apply")
    _until(again, lambda: again.text_content("#edit-status") == "Added oslo.")
