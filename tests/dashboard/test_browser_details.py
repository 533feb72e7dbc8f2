"""Plan, map and compare in a real browser: nothing is cut off, hidden, mixed up or said too early."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen
from zoneinfo import ZoneInfo

import pytest
from browsing import download, settled, slide, tile
from made import HOSTILE, SCENARIO, do_rounds, hostile_plan, scenario, small_plan, start_run

import slackwater as sw
from slackwater.dashboard.server import Dashboard
from slackwater.scenario import load_scenario

Serve = Callable[..., Dashboard]
Open = Callable[..., Any]

INK_BY_SLOT = """
([chart, slots, name]) => {
  const canvas = document.querySelectorAll("#hours canvas")[chart], over = document.querySelectorAll("#hours .u-over")[chart];
  const text = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const ink = [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
  const { data, width, height } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const inked = (at) => data[at + 3] > 100 && ink.every((value, i) => Math.abs(value - data[at + i]) < 40);
  return Array.from({ length: slots }, (_, slot) => {
    const x = Math.round(over.offsetLeft + (slot + 0.5) / slots * over.clientWidth);
    return Array.from({ length: height }, (_, y) => 4 * (y * width + x)).some(inked);
  });
}
"""
"""Whether a chart has a line of this colour in the middle of each slot."""

OVERLAPPING = """
() => {
  const boxes = [...document.querySelectorAll("#world text.name")].map((one) => [one.textContent, one.getBoundingClientRect()]);
  const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  return boxes.flatMap(([name, a], i) => boxes.slice(i + 1).filter(([, b]) => meet(a, b)).map(([other]) => `${name}, ${other}`));
}
"""


def test_quality_and_what_is_not_final_are_said_before_the_settings_are_compared(
    serve: Serve, page_of: Open, tmp_path: Path
) -> None:
    page = page_of(serve(scenario(tmp_path)))
    settled(page)
    final = tile(page, "quality")
    assert "error left" in final
    assert page.get_attribute("#tiles", "class") == "tiles"
    page.route("**/api/plan/best**", lambda route: None)
    slide(page, "budget", 300)
    page.wait_for_selector("#end-hint-joint:not(:empty)", state="attached")
    assert page.locator("#plan-legend .largest").count() == 1
    assert "waiting" in page.get_attribute("#tiles", "class")
    assert "so far" in page.evaluate("getComputedStyle(document.querySelector('#tiles h2'), '::after').content")
    assert "error left" in tile(page, "quality")
    assert tile(page, "quality") != final
    assert "largest objective at s = " in page.text_content("#end-hint-joint")
    page.unroute("**/api/plan/best**")


def test_the_largest_objective_is_marked_also_on_a_plan_that_is_known_from_before(
    serve: Serve, page_of: Open, tmp_path: Path
) -> None:
    server = serve(scenario(tmp_path))
    marked = []
    for _ in range(2):  # the second page gets the server's kept plan at once
        page = page_of(server)
        settled(page)
        page.wait_for_selector("#plan-legend .largest", timeout=10_000)
        marked.append(page.text_content("#end-hint-joint"))
    assert marked[0] == marked[1]
    assert "largest objective at s = " in marked[1]


MARKED = """
() => {
  const canvas = document.querySelector("#schedule .grid-scroll canvas"), scale = canvas.width / canvas.clientWidth;
  const text = getComputedStyle(document.documentElement).getPropertyValue("--ink").trim();
  const ink = [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
  const { data } = canvas.getContext("2d").getImageData(0, Math.round(31 * scale), canvas.width, 1);
  const inked = (at) => data[4 * at + 3] > 200 && ink.every((value, i) => Math.abs(value - data[4 * at + i]) < 30);
  return Array.from({ length: canvas.width }, (_, at) => at).some(inked);
}
"""
"""Whether the time axis of the schedule has the triangle, between its labels and the rows."""


def test_the_largest_objective_is_not_marked_at_the_edge_of_hours_without_it(
    serve: Serve, page_of: Open, tmp_path: Path
) -> None:
    page = page_of(serve(scenario(tmp_path)))
    settled(page)
    page.wait_for_selector("#plan-legend .largest")
    assert page.evaluate(MARKED)
    largest = int(page.text_content("#end-hint-joint").rpartition("= ")[2]) + 4  # rounds come before s
    for hours, there in ((f"0-{largest}", True), (f"0-{largest - 2}", False)):
        page.evaluate("(hours) => { location.hash = `plan?zoom=${hours}`; }", hours)
        page.wait_for_function("(hours) => location.hash.includes(`zoom=${hours}`)", arg=hours)
        settled(page)
        page.wait_for_selector("#plan-legend .largest")
        page.wait_for_timeout(300)
        assert page.evaluate(MARKED) == there, hours


RANKS = """
async () => {
  const { ask, unpacked } = await import("./base.js"), { tellCell } = await import("./why.js");
  const source = document.getElementById("source").value;
  const problem = await ask("/api/problem", { source }), { free, ...settings } = problem.settings, found = { trains: [], out: [] };
  const plan = await ask("/api/plan/best", { source, ...settings, free: free.join(","), end: "auto" });
  const bits = unpacked(plan.schedule), available = unpacked(problem.available);
  for (let client = 0; client < bits.rows; client++) for (let slot = 0; slot < plan.window[0]; slot++) {
    const text = tellCell(problem, plan, bits, available, client, slot)[2], rank = Number(text.match(/its (\\d+)/)[1]);
    found[bits.has(client, slot) ? "trains" : "out"].push([rank, plan.client_slots[client] - 1, text]);
  }
  return found;
}
"""
"""Every cell before the window of one slot: rank of the hour, rounds of its client there, and the explanation."""


def test_an_hour_that_recall_asks_for_is_not_explained_by_the_budget(
    serve: Serve, page_of: Open, tmp_path: Path
) -> None:
    page = page_of(serve(scenario(tmp_path, head=SCENARIO + "recall = 6\n")))
    settled(page)
    found = page.evaluate(RANKS)
    dirty = [text for rank, rounds, text in found["trains"] if rank > rounds]
    clean = [text for rank, rounds, text in found["out"] if rank <= rounds]
    assert dirty, "recall asks for an hour that is not among the cleanest"
    assert clean
    assert all("recall asks for a round in every 6 slots" in text for text in dirty)
    assert all("recall needs some of its" in text for text in clean)
    assert all("the budget pays" in text for rank, rounds, text in found["trains"] if rank <= rounds)


def test_only_what_the_planner_chose_is_called_chosen(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    page = page_of(serve(scenario(tmp_path)))
    settled(page)
    assert "end s = " in page.text_content("#plan-status")
    assert "alpha" not in page.text_content("#plan-status"), "the scenario sets it"
    slide(page, "end", 5)
    settled(page)
    page.wait_for_function("() => !document.getElementById('plan-status').textContent.includes('end s')")
    assert "recall" in page.text_content("#plan-status")


def test_synthetic_data_is_named_on_the_first_screen(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    page = page_of(serve(scenario(tmp_path / "typical")), wide=390, tall=844)
    settled(page)
    for view, shown in (("plan", True), ("map", True), ("run", False), ("compare", False)):
        page.click(f"#tab-{view}")
        assert page.is_visible("#synthetic") == shown, view
    head = page.locator("header").bounding_box()
    assert head["height"] < 140, "the badge takes no line of its own"
    hostile_plan().save(tmp_path / "own" / "plan.json")
    own = page_of(serve(tmp_path / "own"))
    settled(own)
    assert not own.is_visible("#synthetic")


def test_a_view_without_content_makes_no_promise(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    page = page_of(serve(scenario(tmp_path)))
    settled(page)
    page.click("#tab-run")
    page.wait_for_function("() => !document.querySelector('#json-links a')")
    page.click("#tab-compare")
    page.wait_for_selector("#choices:not(:empty)")
    assert "Nothing to compare yet" in page.text_content("#choices")
    assert page.text_content("#compare-status") == ""


def test_charts_by_hour_draw_every_slot_as_the_last_and_the_single_ones(
    serve: Serve, page_of: Open, tmp_path: Path
) -> None:
    page = page_of(serve(scenario(tmp_path)), wide=1440, tall=1500)
    settled(page)
    slide(page, "budget", 400)
    slide(page, "slack", 40)
    slide(page, "end", 40)
    settled(page)
    page.wait_for_timeout(400)
    shown = json.load(urlopen(page.evaluate("document.querySelector('#json-links a').href")))
    slots, busy = shown["settings"]["horizon"], [watts > 0 for watts in shown["power_w_by_slot"]]
    assert busy[-1], "the fine-tuning window is the last slot"
    alone = [at for at in range(1, slots - 1) if busy[at] and not busy[at - 1] and not busy[at + 1]]
    assert alone, "a slot of training between two without"
    assert page.evaluate(INK_BY_SLOT, [2, slots, "trains"]) == [True] * slots
    assert page.evaluate(INK_BY_SLOT, [0, slots, "series-1"]) == busy
    border = page.evaluate("getComputedStyle(document.querySelector('.u-legend th')).borderBottomStyle")
    assert border == "none", "no rules of the tables in the legends"


def test_the_legend_of_a_chart_names_the_slot_under_the_pointer(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    page = page_of(serve(scenario(tmp_path)), wide=1440, tall=1500)
    settled(page)
    page.wait_for_selector("#hours .u-over")
    over = page.locator("#hours .u-over").nth(1).bounding_box()
    for slot, part in ((3, 0.2), (3, 0.85), (23, 0.85)):
        page.mouse.move(over["x"] + (slot + part) / 24 * over["width"], over["y"] + 30)
        for chart in range(3):
            named = page.locator("#hours .u-legend").nth(chart).text_content()
            assert f"1 Jan 2022, {slot:02}:00 UTC" in named, (slot, part, chart)


def test_names_are_cut_to_their_place_and_never_at_its_edge(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    page = page_of(serve(scenario(tmp_path, names=("W" * 60, HOSTILE[0], "<b>", "x", "y", "z", HOSTILE[4]))))
    settled(page)
    edge = page.evaluate(
        """() => { const g = document.querySelector("#schedule .grid-scroll canvas").getContext("2d");
          const { data } = g.getImageData(0, 40, 3, 7 * 34 - 8); return new Set(new Uint32Array(data.buffer)).size; }"""
    )
    assert edge == 1, "the first pixels are blank"
    assert f"\u2068{HOSTILE[4]}\u2069" in tile(page, "who"), "a name from right to left moves no words around it"


def test_settings_without_a_schedule_are_final_and_offer_nothing_to_save(
    serve: Serve, page_of: Open, tmp_path: Path
) -> None:
    page = page_of(serve(scenario(tmp_path)))
    settled(page)
    assert page.is_visible("#schedule-export")
    page.fill("#budget-kg", "0.0001")
    page.keyboard.press("Tab")
    page.wait_for_selector("#plan-status.infeasible")
    page.wait_for_selector("#tiles:not(.waiting)")
    assert tile(page, "saved") == "– No schedule fits these settings."
    for export in ("schedule", "hours", "front"):
        assert page.locator(f"#{export}-export").get_attribute("hidden") is not None, export
    page.click("#reset")
    settled(page)
    assert page.is_visible("#schedule-export")


def test_a_filter_without_a_match_says_so(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    page = page_of(serve(scenario(tmp_path)))
    settled(page)
    page.fill("#filter", "nowhere")
    assert page.text_content("#schedule .grid-say") == "No client matches."
    page.fill("#filter", "")
    assert "Point at a cell" in page.text_content("#schedule .grid-say")


def test_a_zone_chosen_on_the_map_is_not_a_part_of_other_names(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    names = ("frankfurt", "FR-backup", "dublin", "helsinki", "kista", "berlin", "paris")
    page = page_of(serve(scenario(tmp_path, names=names)), "map")
    page.wait_for_selector("#world circle")
    page.click("#zones button:has-text('FR')")
    page.click("#zone-filter")
    page.focus("#schedule canvas")
    said = []
    for _ in range(3):
        page.keyboard.press("ArrowDown")
        said.append(page.text_content("#schedule .grid-say").partition(",")[0])
    assert set(said) == {"paris (FR)"}


def test_a_zone_that_is_not_on_the_map_is_chosen_in_the_table(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    hostile_plan().save(tmp_path / "plan.json")
    page = page_of(serve(tmp_path), "map")
    page.wait_for_selector("#zones button")
    button = page.locator("#zones button").nth(2)
    wanted = button.text_content().partition(" (not on the map)")[0]
    button.focus()
    page.keyboard.press("Enter")
    assert wanted in page.text_content("#zone-name")
    assert button.get_attribute("aria-pressed") == "true"
    page.wait_for_selector("#tiles:not(.waiting)", state="attached")
    page.click("#zone-filter")
    page.focus("#schedule canvas")
    page.keyboard.press("ArrowDown")
    assert f"({wanted})" in page.text_content("#schedule .grid-say")


@pytest.mark.parametrize(("wide", "tall"), [(1440, 900), (390, 844)])
def test_the_map_shows_whole_countries_and_no_name_over_another(
    serve: Serve, page_of: Open, tmp_path: Path, wide: int, tall: int
) -> None:
    zones = ("FI", "SE-SE1", "NO-NO4", "SE-SE2", "DK-DK1", "DK-DK2", "GB", "IE", "DE")
    sites = "".join(f'[[client]]\nname = "{zone}"\nzone = "{zone}"\npower_w = 300\n' for zone in zones)
    (tmp_path / "scenario.toml").write_text(SCENARIO + sites)
    page = page_of(serve(tmp_path / "scenario.toml"), "map", wide=wide, tall=tall)
    page.wait_for_selector("#world text.name")
    assert page.locator("#world text.name").count() >= 6
    assert page.evaluate(OVERLAPPING) == []
    box = page.locator("#world svg").bounding_box()
    for zone in ("FI", "GB", "IE", "DE"):
        shape = page.locator("#world path.land", has=page.locator(f"title:text-matches('^{zone}:')")).bounding_box()
        assert shape["x"] >= box["x"], zone
        assert shape["y"] >= box["y"], zone
        assert shape["x"] + shape["width"] <= box["x"] + box["width"] + 1, zone
        assert shape["y"] + shape["height"] <= box["y"] + box["height"] + 1, zone
    table = page.locator("#zones").bounding_box()
    clients = page.locator("#zones th").last.bounding_box()
    room = page.locator("#zones").locator("..").bounding_box()
    assert clients["x"] + clients["width"] <= room["x"] + room["width"] + 1, "the last column is seen"
    assert table["width"] <= room["width"] + 1


def test_a_saved_picture_says_what_it_shows_and_where_its_data_is_from(
    serve: Serve, page_of: Open, tmp_path: Path
) -> None:
    path = scenario(tmp_path)
    path.write_text(path.read_text() + 'unavailable = ["sat 10:00-12:00"]\n')
    page = page_of(serve(path))
    settled(page)
    schedule = download(page, "schedule as SVG", tmp_path).read_text("utf-8")
    for words in ("scenario.toml: ", "Synthetic intensity.", "fine-tuning window", "cannot train", "after the end"):
        assert words in schedule, words
    assert "Synthetic intensity." in download(page, "hours as SVG", tmp_path).read_text("utf-8")
    rows = list(csv.reader(download(page, "hours as CSV", tmp_path).read_text("utf-8").splitlines()))
    assert [row[0] for row in rows[1:3]] == ["2022-01-01T00:00Z", "2022-01-01T01:00Z"]
    assert max(len(cell) for row in rows[1:] for cell in row) < 18, "no digits without meaning"
    page.click("#tab-map")
    page.wait_for_selector("#world circle")
    picture = download(page, "map as SVG", tmp_path).read_text("utf-8")
    assert "1 Jan 2022, 00:00 UTC" in picture
    assert "Green outline: trains in this hour." in picture


def test_differences_of_shares_are_points_and_signs_are_alike(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    page = page_of(serve(scenario(tmp_path)))
    settled(page)
    page.click("#pin")
    slide(page, "budget", 500)
    slide(page, "alpha", 12)
    settled(page)
    page.click("#pin")
    page.click("#tab-compare")
    page.wait_for_selector("#columns thead th:nth-child(3)")
    cells = page.locator("#columns td").all_text_contents()
    assert not [text for text in cells if text.startswith("-")], "one sign for minus"
    row = page.locator("#columns tr", has_text="Predicted remaining error").locator("td").all_text_contents()
    assert " points" in row[1]
    assert row[1].count("%") == 1, "a difference of shares is no share"
    assert "emissions" not in page.text_content("#differences .grid-say")
    saved = download(page, "difference as SVG", tmp_path).read_text("utf-8")
    assert "only in the baseline" in saved
    assert ", against 1: " in saved


def test_an_end_in_another_time_zone_names_the_moment_in_utc_too(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    path = scenario(tmp_path, head='time_zone = "America/New_York"\n' + SCENARIO)
    page = page_of(serve(path), wide=390, tall=844)
    settled(page)
    ends = sw.plan(load_scenario(path).problem()).ends_at
    local = ends.astimezone(ZoneInfo("America/New_York"))
    assert page.text_content("#tile-ends") == f"{local:%a %d %b %Y, %H:%M}", "a long name would break within a word"
    assert "America/New_York time; " in tile(page, "ends")
    assert f"{ends.day} {ends:%b %Y, %H:%M} UTC" in tile(page, "ends")
    box = page.locator("#finish").bounding_box()
    assert box["width"] > 300, "date and time of day fit"


def test_a_chart_of_a_run_has_a_crosshair_zoom_and_lines_to_hide_and_keeps_them_as_the_run_goes_on(
    serve: Serve, page_of: Open, tmp_path: Path
) -> None:
    plan = small_plan(slots=24)
    with start_run(tmp_path / "run", plan) as run:
        do_rounds(run, plan, 0, 4)
        page = page_of(serve(tmp_path), "run", wide=1440)
        over = page.wait_for_selector("#burn .u-over")
        legend = page.locator("#burn .u-legend .u-series")

        def at_the_left() -> str:
            box = over.bounding_box()
            page.mouse.move(box["x"] + 30, box["y"] + 30)
            page.mouse.move(box["x"] + 2, box["y"] + 30)
            return str(legend.first.locator(".u-value").text_content())

        first = at_the_left()
        assert [legend.nth(at).locator(".u-value").text_content() for at in (1, 2)] != ["–", "–"], "every line is read"
        box = over.bounding_box()
        page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 30)
        page.mouse.down()
        page.mouse.move(box["x"] + 0.9 * box["width"], box["y"] + 30, steps=4)
        page.mouse.up()
        zoomed = at_the_left()
        assert zoomed != first
        name = legend.nth(1).locator("th")
        name.focus()
        page.keyboard.press("Enter")
        assert name.get_attribute("aria-pressed") == "false"
        done = page.get_attribute("#run-progress", "value")
        do_rounds(run, plan, 4, 2)
        page.wait_for_function(
            "(before) => document.getElementById('run-progress').value > before + 0.05", arg=float(done)
        )
        page.wait_for_timeout(300)
        assert legend.nth(1).locator("th").get_attribute("aria-pressed") == "false"
        assert at_the_left() == zoomed
        box = over.bounding_box()
        page.mouse.dblclick(box["x"] + 50, box["y"] + 30)
        assert at_the_left() == first
        assert page.get_attribute("#burn", "aria-label").startswith("kg remaining against time")
