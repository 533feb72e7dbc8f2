"""The widget of plan.explore(): its modules parse, and in a browser it shows the plan and plans again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from made import hostile_plan, small_plan

import slackwater as sw
from slackwater.dashboard import notebook_widget
from slackwater.dashboard.notebook_widget import PlanAnswers, page_html, page_modules, widget_module
from slackwater.errors import MissingExtraError

PATIENCE_MS = 30_000
SHOTS = os.environ.get("SLACKWATER_SCREENSHOTS")
PAGE = '<!doctype html><meta charset="utf-8"><title>A notebook</title><body><h1>A notebook</h1><div id="cell"></div>'
SHOW = """async ([source, first]) => {
  const { default: widget } = await import(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
  const heard = (window.messages = []);
  const model = {
    get: () => first,
    on: (event, hear) => heard.push(hear),
    off: (event, hear) => heard.splice(heard.indexOf(hear), 1),
    send: async (content) => { const said = await window.python(content); for (const hear of [...heard]) hear(said); },
  };
  window.clean = widget.render({ model, el: document.getElementById("cell") });
}"""
"""What a notebook does with a widget: it imports the module, and calls render."""


@pytest.fixture
def explored(browser: Any) -> Iterator[Callable[..., tuple[Any, Any, list[dict[str, Any]]]]]:
    """Return host page, frame of the widget and its messages, for a plan; errors on the page fail the test."""
    contexts, wrong, open_answers = [], [], []

    def go(plan: sw.Plan, *, wide: int = 1000) -> tuple[Any, Any, list[dict[str, Any]]]:
        answers, asked = PlanAnswers(plan), list[dict[str, Any]]()
        open_answers.append(answers)

        def python(content: dict[str, Any]) -> dict[str, Any]:
            status, body = answers.answer(content["path"], content["query"])
            asked.append(content | {"body": json.loads(body)})
            return {"id": content["id"], "status": status, "body": body}

        context = browser.new_context(viewport={"width": wide, "height": 1000})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: wrong.append(f"a dialog: {dialog.message}"))
        page.on("request", lambda request: _local(request.url) or wrong.append(f"asked for {request.url}"))
        page.expose_function("python", python)
        page.route("http://notebook.test/", lambda route: route.fulfill(content_type="text/html", body=PAGE))
        page.goto("http://notebook.test/")
        page.evaluate(SHOW, [widget_module(), answers.first()])
        frame = page.frame_locator("iframe")
        frame.locator("html[data-ready=yes]").wait_for(state="attached")
        return page, frame, asked

    yield go
    for context in contexts:
        context.close()
    for answers in open_answers:
        answers.close()
    assert wrong == []


def _local(url: str) -> bool:
    return url.startswith(("blob:", "data:", "about:")) or url == "http://notebook.test/"


def _waited(page: Any, so: Callable[[], bool], seconds: float = 30.0) -> None:
    for _ in range(int(20 * seconds)):
        if so():
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"not within {seconds:g} s")


def test_every_module_parses_and_imports_only_what_is_delivered(tmp_path: Path) -> None:
    modules = page_modules()
    assert {"notebook/page.js", "static/plan.js", "static/grid.js", "static/hours.js", "static/base.js"} <= set(modules)
    for name, source in modules.items():
        imported = {part[3] for part in notebook_widget._IMPORT.finditer(source)}
        assert not imported, f"{name} still imports by path"
        assert "innerHTML" not in source or "vendor" in name
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed; the browser parses them below")
    for number, source in enumerate([*modules.values(), widget_module()]):
        file = tmp_path / f"{number}.mjs"
        file.write_text(source, encoding="utf-8")
        checked = subprocess.run([node, "--check", str(file)], capture_output=True, text=True)
        assert checked.returncode == 0, checked.stderr


def test_the_page_loads_nothing_from_elsewhere() -> None:
    html = page_html()
    assert 'id="schedule"' in html
    assert "--trains" in html
    assert "<link" not in html
    assert "<script" not in html
    assert " src=" not in html


def test_it_shows_this_plan_without_asking_python(explored: Any) -> None:
    plan = small_plan(clients=5, slots=48)
    page, frame, asked = explored(plan)
    frame.locator("#hours canvas").first.wait_for()
    _waited(page, lambda: "…" not in frame.locator("#tile-quality").text_content())
    used = f"{plan.emissions_kg:.4g}"
    assert used in frame.locator("#tile-saved-note").text_content()
    assert f"{int(plan.slots_per_client.sum()):,} client-rounds" in frame.locator("#tile-who-note").text_content()
    assert {one["path"] for one in asked} <= {"api/front"}
    assert frame.locator("#synthetic").is_visible()
    assert "Synthetic intensity. Intensity: lifecycle" in frame.locator("#origin").inner_text()
    canvas = frame.locator("#schedule .grid-scroll canvas")
    canvas.hover(position={"x": 500, "y": 60})
    frame.locator(".grid-tip:not([hidden])").wait_for()
    assert "g/kWh" in frame.locator(".grid-tip").text_content()
    height = page.locator("iframe").evaluate("(frame) => [frame.clientHeight, frame.contentDocument.body.offsetHeight]")
    assert 0 <= height[0] - height[1] <= 4, "the frame is as tall as the page in it"
    assert page.locator("h1").evaluate("(h) => getComputedStyle(h).fontSize") == "32px", "the notebook keeps its styles"
    if SHOTS:
        page.screenshot(path=str(Path(SHOTS) / "notebook.png"), full_page=True)


def test_a_slider_plans_again_in_python(explored: Any) -> None:
    plan = small_plan(clients=5, slots=48)
    page, frame, asked = explored(plan)
    before = frame.locator("#tile-saved-note").text_content()
    less = plan.problem.budget_kg / 2
    frame.locator("#budget-kg").fill(f"{less:.3f}")
    frame.locator("#budget-kg").press("Enter")
    _waited(page, lambda: any(one["path"] == "api/plan/best" for one in asked))
    best = next(one["body"] for one in asked if one["path"] == "api/plan/best")
    assert best["budget_kg"] == pytest.approx(round(less, 3))
    assert 0 < best["emissions_kg"] <= best["budget_kg"] < plan.emissions_kg
    shown = f"The run emits {best['emissions_kg']:.4g} of"
    _waited(page, lambda: shown in frame.locator("#tile-saved-note").text_content())
    assert frame.locator("#tile-saved-note").text_content() != before
    assert frame.locator("#trouble").is_hidden()


def test_the_map_and_its_shapes_come_on_request(explored: Any) -> None:
    _, frame, asked = explored(small_plan(clients=5, slots=24))
    frame.locator("#world").locator("xpath=ancestor::details").locator("> summary").click()
    frame.locator("#world circle").first.wait_for()
    assert frame.locator("#world circle").count() == 5
    assert {"api/map", "vendor/countries-110m.json"} <= {one["path"] for one in asked}
    frame.locator("#world circle").first.click()
    frame.locator("#zone-filter").click()
    zone = frame.locator("#zone-name").text_content().split(":")[0]
    assert frame.locator("#filter").input_value() == f"zone:{zone}", "one zone, and no name that has it in it"


def test_hostile_names_stay_text(explored: Any) -> None:
    page, frame, _ = explored(hostile_plan())
    frame.locator("#hours canvas").first.wait_for()
    assert "from <b>" in frame.locator("#origin").inner_text()
    assert not frame.locator("#synthetic").is_visible(), "its intensity is not of the typical year"
    assert frame.locator("img").count() == 0
    assert page.title() == "A notebook"


def test_a_widget_that_is_removed_hears_no_more(explored: Any) -> None:
    page, _, _ = explored(small_plan())
    assert page.evaluate("window.messages.length") == 1
    page.evaluate("window.clean()")
    assert page.evaluate("window.messages.length") == 0


def test_answers_are_json_and_errors_are_sentences() -> None:
    answers = PlanAnswers(small_plan())
    try:
        first = json.loads(answers.first())
        assert json.loads(first["problem"])["clients"]["name"]
        assert json.loads(first["plan"])["tiles"]["quality"]["remaining_error"] > 0
        status, body = answers.answer("api/plan", {"budget_kg": "much"})
        assert (status, json.loads(body)["error"]) == (422, "budget_kg must be a number, not 'much'.")
        status, body = answers.answer("api/plan", {"budget_kg": "0.000001", "end": "0"})
        assert (status, json.loads(body)["status"]) == (200, "infeasible")
        assert answers.answer("api/run", {})[0] == 404
        assert answers.answer("../secrets", {})[0] == 404
        status, body = answers.answer("api/scenario", {})
        assert "budget_kg" in json.loads(body)["toml"]
    finally:
        answers.close()


def test_without_anywidget_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slackwater.lazy.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"needs anywidget.*pip install 'slackwater\[notebook\]'"):
        small_plan().explore()


def test_the_widget_answers_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("anywidget")
    plan = small_plan()
    widget = plan.explore()
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(widget, "send", sent.append)
    try:
        assert json.loads(json.loads(widget.first)["plan"])["emissions_kg"] == pytest.approx(plan.emissions_kg)
        widget._handle_custom_msg({"id": "a-0", "path": "api/plan", "query": {"end": str(plan.end)}}, [])
        for _ in range(1200):
            if sent:
                break
            time.sleep(0.05)
        (reply,) = sent
        assert (reply["id"], reply["status"]) == ("a-0", 200)
        assert json.loads(reply["body"])["end"] == plan.end
        assert "PAGE" in widget._esm
    finally:
        widget.close()
