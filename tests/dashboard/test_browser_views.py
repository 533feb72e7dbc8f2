"""Plan, map and compare in a real browser: what the first screen says, links, zoom, exports, keys and small screens."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen
from xml.etree import ElementTree

import pytest
from browsing import download, noted, settled, slide, tile
from made import HOSTILE, SCENARIO, hostile_plan, scenario, small_plan

import slackwater as sw
from slackwater.charts.style import kilograms, percent
from slackwater.dashboard.server import Dashboard
from slackwater.planning.advice import same_work_kg
from slackwater.planning.auto import quality
from slackwater.scenario import load_scenario

Serve = Callable[..., Dashboard]
Open = Callable[..., Any]
TILES = ("saved", "ends", "quality", "who")
DESK, PHONE, LARGE_PRINT = (1440, 900), (390, 844), (320, 225)
INK_LEFT_OF_CHARTS = """
() => [...document.querySelectorAll("#hours canvas")].map((canvas, i) => {
  const room = document.querySelectorAll("#hours .u-over")[i].offsetLeft - 60;
  const { data } = canvas.getContext("2d").getImageData(0, 0, room, canvas.height);
  return data.filter((_, at) => at % 4 === 3).reduce((a, b) => a + b, 0);
})
"""
"""Ink of each chart by hour left of its y axis' labels."""


def _drag_in_strip(page: Any, first: float, last: float) -> None:
    strip = page.locator("#schedule .grid-strip").bounding_box()
    gutter = page.evaluate("() => 278")
    at = [strip["x"] + gutter + share * (strip["width"] - gutter - 2) for share in (first, last)]
    page.mouse.move(at[0], strip["y"] + 20)
    page.mouse.down()
    page.mouse.move(at[1], strip["y"] + 20, steps=4)
    page.mouse.up()


@pytest.mark.parametrize(("wide", "tall"), [DESK, PHONE])
def test_the_first_screen_answers_the_four_questions_with_the_numbers_of_the_command(
    serve: Serve, page_of: Open, tmp_path: Path, wide: int, tall: int
) -> None:
    path = scenario(tmp_path)
    page = page_of(serve(path), wide=wide, tall=tall)
    settled(page)
    page.evaluate("scrollTo(0, 0)")
    for name in TILES:
        box = page.locator(f"#tile-{name}").bounding_box()
        assert min(box["x"], box["y"], wide - box["x"] - box["width"], tall - box["y"] - box["height"]) >= 0, name
    plan = sw.plan(load_scenario(path).problem())
    at_once = same_work_kg(plan)
    saved = at_once - plan.emissions_kg
    assert f"{kilograms(saved)} kg ({percent(saved / at_once)})" in tile(page, "saved")
    assert f"{plan.ends_at:%a %d %b %Y, %H:%M} UTC" in tile(page, "ends")
    assert f"{float(f'{100 * quality(plan).error:.3g}'):g} %" in tile(page, "quality")
    assert "ranking score" in tile(page, "quality")
    slots = plan.slots_per_client
    assert f"{(slots > 0).sum()} of {len(slots)} clients" in tile(page, "who")
    assert f"{plan.matrix.any(axis=0).sum()} rounds, {slots.sum()} client-rounds" in tile(page, "who")


def test_an_end_within_the_hour_is_told_in_minutes(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    page = page_of(serve(scenario(tmp_path, head="slot_minutes = 15\n" + SCENARIO)))
    settled(page)
    slide(page, "end", 18)
    noted(page, "end=18")
    settled(page)
    assert "30 min before the latest end." in tile(page, "ends")


def test_a_shared_link_restores_everything_on_show(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    server = serve(scenario(tmp_path))
    page = page_of(server)
    settled(page)
    page.click("#advanced > summary")
    slide(page, "slack", 60)
    slide(page, "alpha", 10)
    slide(page, "end", 40)
    page.fill("#filter", "e")
    page.select_option("#order", "clean")
    page.check("#group")
    page.locator("#schedule canvas").first.scroll_into_view_if_needed()
    _drag_in_strip(page, 0.25, 0.75)
    settled(page)
    noted(
        page, "slack=60", "alpha=0.7", "end=40", "filter=e", "order=clean", "group=yes", "zoom=16-48", "open=advanced"
    )
    page.click("#share")
    page.wait_for_selector("#done:not(:empty)")
    link = page.evaluate("navigator.clipboard.readText()")
    assert link == page.url
    other = page_of(server, link.partition("#")[2])
    settled(other)
    for selector in ("#tile-saved", "#tile-ends", "#tile-quality", "#tile-who", "#totals", "#metrics"):
        assert other.text_content(selector) == page.text_content(selector), selector
    for control in ("#budget-kg", "#slack", "#alpha", "#end", "#filter", "#order"):
        assert other.input_value(control) == page.input_value(control), control
    assert other.is_checked("#group")
    assert other.get_attribute("#advanced", "open") is not None
    assert other.url == page.url, "restoring a link does not change it"
    exactly = json.load(urlopen(other.evaluate("document.querySelector('#json-links a').href")))
    assert (exactly["end"], exactly["settings"]["slack"], exactly["settings"]["alpha"]) == (40, 60, 0.7)


def test_back_and_forward_undo_and_redo(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    page = page_of(serve(scenario(tmp_path)))
    settled(page)
    noted(page, "source=")
    before = page.text_content("#totals")
    slide(page, "slack", 8)
    noted(page, "slack=8")
    settled(page)
    after = page.text_content("#totals")
    page.click("#tab-map")
    page.wait_for_selector("#world circle")
    slide(page, "hour", 7)
    noted(page, "hour=7")
    page.go_back()
    noted(page, "#map", "hour=0")
    assert page.input_value("#hour") == "0"
    page.go_back()
    noted(page, "#plan", "slack=8")
    page.go_back()
    page.wait_for_function("() => !location.hash.includes('slack=')")
    settled(page)
    assert page.input_value("#slack") == "20"
    assert page.text_content("#totals") == before
    page.go_forward()
    noted(page, "slack=8")
    settled(page)
    assert page.text_content("#totals") == after


def test_schedule_and_charts_share_axis_zoom_and_cursor(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    page = page_of(serve(scenario(tmp_path)), wide=1440, tall=1500)
    settled(page)
    slide(page, "slack", 60)
    settled(page)
    page.wait_for_selector("#hours .u-over")
    over = page.locator("#hours .u-over").nth(1).bounding_box()
    grid = page.locator("#schedule .grid-scroll").bounding_box()
    page.mouse.move(over["x"] + 300, over["y"] + 30)
    page.mouse.move(over["x"] + 301, over["y"] + 30)
    named = page.locator("#hours .u-legend").first.text_content()
    assert "2022" in named, "the cursor of the power is the intensity's too"
    page.mouse.move(over["x"] + 300, grid["y"] + 60)
    said = page.text_content("#schedule .grid-tip")
    hour = named.partition("2022, ")[2][:5]
    assert hour
    assert hour in said, "the same place is the same hour in the schedule"
    page.mouse.move(over["x"] + 200, over["y"] + 30)
    page.mouse.down()
    page.mouse.move(over["x"] + 600, over["y"] + 30, steps=5)
    page.mouse.up()
    zoomed = noted(page, "zoom=")
    first, last = map(int, zoomed.partition("zoom=")[2].partition("&")[0].split("-"))
    assert 64 * 200 / over["width"] - 1 <= first < last <= 64 * 600 / over["width"] + 1
    assert page.evaluate(INK_LEFT_OF_CHARTS) == [0, 0, 0], "hours before the zoomed ones have no line beside the chart"
    page.click("#zoom-out")
    page.wait_for_function("() => !location.hash.includes('zoom=')")
    page.locator("#hours .u-series", has_text="all clients").locator("th").click()
    noted(page, "off=0.1")


def test_what_is_not_drawn_yet_is_not_saved_and_the_page_says_so(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    page = page_of(serve(scenario(tmp_path)))
    settled(page)
    held: list[Any] = []
    page.route("**/countries-110m.json", lambda route: held.append(route))
    page.click("#tab-map")
    page.wait_for_function("() => document.getElementById('world').textContent.includes('Loading')")
    for kind in ("PNG", "SVG", "CSV"):
        page.evaluate("document.getElementById('trouble').textContent = ''")
        page.click(f'button[aria-label="map as {kind}"]')
        if kind != "CSV":  # the data may be there before the shapes
            assert "nothing to save yet" in page.text_content("#trouble")
    for route in held:
        route.continue_()
    page.wait_for_selector("#world svg")
    assert download(page, "map as SVG", tmp_path).read_text("utf-8").startswith("<svg")


def test_a_zone_of_the_map_filters_the_schedule(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    page = page_of(serve(scenario(tmp_path)), "map")
    page.wait_for_selector("#world .training")
    marked = page.locator("#world circle.training").count()
    assert 0 < marked <= 7
    page.focus('#world circle[aria-label^="FR:"]')
    page.keyboard.press("Enter")
    assert "FR: " in page.text_content("#zone-name")
    asked = page.evaluate_handle(
        "() => { const got = []; document.addEventListener('slackwater:add-site', (event) => got.push(event.detail.zone)); return got; }"
    )
    page.wait_for_selector("#zone-add:visible")
    page.click("#zone-filter")
    assert page.input_value("#filter") == "zone:FR"
    page.focus("#schedule canvas")
    page.keyboard.press("ArrowDown")
    assert "FR (FR)" in page.text_content("#schedule .grid-say")
    page.click("#tab-map")
    page.click("#zone-add")
    assert asked.json_value() == ["FR"]


def test_every_picture_is_exported_with_its_data(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    path = scenario(tmp_path, names=("=1+1", *HOSTILE[:6]))
    small_plan().save(tmp_path / "plan.json")
    page = page_of(serve(path))
    settled(page)
    page.click("#optimiser > summary")
    shown = {"schedule": "plan", "hours": "plan", "front": "plan", "map": "map", "difference": "compare"}
    page.click("#pin")
    for name, view in shown.items():
        page.click(f"#tab-{view}")
        if view == "compare":
            page.check("#choices label:has-text('plan.json') input")
        page.wait_for_selector(f'button[aria-label="{name} as PNG"]:visible')
        page.wait_for_timeout(400)
        png = download(page, f"{name} as PNG", tmp_path).read_bytes()
        assert png.startswith(b"\x89PNG")
        assert len(png) > 3000, name
        root = ElementTree.parse(download(page, f"{name} as SVG", tmp_path)).getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert len(list(root.iter("{http://www.w3.org/2000/svg}path"))) > 2, name
        assert not list(root.iter("{http://www.w3.org/2000/svg}script"))
        rows = list(csv.reader(download(page, f"{name} as CSV", tmp_path).read_text("utf-8").splitlines()))
        assert len(rows) > 3, name
        assert len({len(row) for row in rows}) == 1, name
    rows = list(csv.reader((tmp_path / "schedule.csv").read_text("utf-8").splitlines()))
    assert rows[1][0] == "'=1+1", "a formula is text"
    plan = sw.plan(load_scenario(path).problem())
    assert [int(row[2]) for row in rows[1:]] == plan.slots_per_client.tolist()
    assert [sum(map(int, row[4:])) for row in rows[1:]] == plan.slots_per_client.tolist()
    kg = list(csv.DictReader((tmp_path / "hours.csv").read_text("utf-8").splitlines()))
    assert sum(float(row["kg CO2e by slot, the run"]) for row in kg) == pytest.approx(plan.emissions_kg, rel=1e-3)
    assert download(page, "compare as CSV", tmp_path).read_text("utf-8").count("\n") > 8


def test_zones_open_and_close_by_key_and_by_click(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    small_plan(clients=300, slots=60).save(tmp_path / "plan.json")
    page = page_of(serve(tmp_path))
    page.wait_for_selector("#totals dt", state="attached")
    assert page.is_checked("#group"), "many clients begin as zones"
    page.focus("#schedule canvas")
    page.keyboard.press("ArrowDown")
    said = page.text_content("#schedule .grid-say")
    assert " of 60 clients train" in said
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowDown")
    assert "client-" in page.text_content("#schedule .grid-say")
    noted(page, "zones=")
    box = page.locator("#schedule .grid-scroll canvas").bounding_box()
    page.mouse.click(box["x"] + 60, box["y"] + 34 + 6)
    page.wait_for_function("() => !location.hash.includes('zones=')")
    for key in ("+", "+"):
        page.keyboard.press(key)
    assert "zoom=" in noted(page, "zoom=")
    page.keyboard.press("0")
    page.wait_for_function("() => !location.hash.includes('zoom=')")


def test_compare_marks_differences_and_keeps_objectives_apart(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    server = serve(scenario(tmp_path))
    page = page_of(server)
    settled(page)
    page.click("#pin")
    slide(page, "budget", 400)
    settled(page)
    page.click("#pin")
    slide(page, "alpha", 10)
    settled(page)
    page.click("#pin")
    page.click("#tab-compare")
    page.wait_for_selector("#columns tbody tr")

    def cells(name: str) -> list[str]:
        row = page.locator("#columns tr", has=page.locator(f"th:text-is('{name}')"))
        return [str(text) for text in row.locator("td").all_text_contents()]

    budget, objective = cells("Budget, kg"), cells("Objective")
    assert budget[0] == "2"
    assert "−" in budget[1]
    assert "%" in budget[1]
    assert "not comparable" in objective[2]
    assert "not comparable" not in objective[1]
    assert sum("best" in text for text in objective) == 1
    assert "best" not in cells("Planned emissions, kg")[0]
    note = page.text_content("#differences-note")
    assert "client-slots are the same" in note
    page.select_option("#baseline", "pin-2")
    assert "+" in cells("Budget, kg")[0]
    page.focus("#differences canvas")
    page.keyboard.press("ArrowDown")
    assert "Trains in" in page.text_content("#differences .grid-say")
    link = noted(page, "base=pin-2", "pin=")
    other = page_of(server, link.partition("#")[2])
    other.wait_for_selector("#columns thead th:nth-child(4)")
    assert other.input_value("#baseline") == "pin-2"
    assert other.text_content("#columns") == page.text_content("#columns")


def test_a_tip_stays_on_touch_until_another_place_is_touched(browser: Any, serve: Serve, tmp_path: Path) -> None:
    server = serve(scenario(tmp_path))
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page = context.new_page()
    page.goto(f"http://127.0.0.1:{server.port}/")
    settled(page)
    page.locator("#schedule canvas").first.scroll_into_view_if_needed()
    box = page.locator("#schedule .grid-scroll canvas").bounding_box()
    page.touchscreen.tap(box["x"] + 200, box["y"] + 60)
    page.wait_for_timeout(500)
    assert page.is_visible("#schedule .grid-tip")
    head = page.locator("#tile-saved").bounding_box()
    page.touchscreen.tap(box["x"] + 100, max(5, box["y"] - 30) if head["y"] < 0 else head["y"])
    page.wait_for_selector("#schedule .grid-tip", state="hidden")
    context.close()


def test_the_keyboard_alone_reaches_and_works_everything(serve: Serve, page_of: Open, tmp_path: Path) -> None:
    page = page_of(serve(scenario(tmp_path)))
    settled(page)
    seen: list[str] = []
    for _ in range(80):
        page.keyboard.press("Tab")
        seen.append(
            page.evaluate(
                "() => { const e = document.activeElement; return e.id || e.getAttribute('aria-label') || e.textContent.slice(0, 20); }"
            )
        )
    for wanted in ("tab-plan", "budget", "finish", "alpha", "filter", "group", "schedule as PNG", "zoom-in", "share"):
        assert wanted in seen, wanted
    page.focus("#tab-plan")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#world circle")
    assert page.evaluate("document.activeElement.id") == "tab-map"
    hidden = page.evaluate("getComputedStyle(document.activeElement, ':focus-visible').outlineStyle")
    assert hidden != "none"


@pytest.mark.parametrize(
    ("wide", "tall", "scheme"), [(*PHONE, "dark"), (*LARGE_PRINT, "light"), (*LARGE_PRINT, "dark")]
)
def test_nothing_is_cut_off_on_a_phone_or_at_400_percent(
    serve: Serve, page_of: Open, tmp_path: Path, wide: int, tall: int, scheme: str
) -> None:
    """A window of 1280 pixels at 400 % is one of 320 pixels."""
    hostile_plan().save(tmp_path / "plan.json")
    page = page_of(serve(tmp_path), wide=wide, tall=tall, scheme=scheme)
    settled(page)
    page.click("#pin")
    for view, ready in (("plan", "#hours canvas"), ("map", "#zones td"), ("compare", "#columns td")):
        page.click(f"#tab-{view}")
        page.wait_for_selector(ready)
        assert page.evaluate("document.documentElement.scrollWidth") <= wide, view
