"""The widget of `plan.explore()`: the dashboard's page for one plan in a notebook, with the same modules and answers."""

from __future__ import annotations

import json
import posixpath
import re
import threading
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from slackwater.charts.style import palette_css
from slackwater.dashboard import plan_json as answers
from slackwater.dashboard.catalogue import Catalogue, Entry, Opened, data_of
from slackwater.dashboard.plans import Outdated, PlanRequest, Plans, map_answer
from slackwater.errors import SlackwaterError
from slackwater.lazy import require
from slackwater.planning.plan import Plan

SOURCE = "plan"
"""Id of the plan, as in notebook/page.js."""
_MAIN = "notebook/page.js"
_STYLES = ("static/vendor/uplot.css", "static/style.css", "notebook/page.css")
_IMPORT = re.compile(r"""(\bfrom\s*|\bimport\s*\(?\s*)(["'])(\.{1,2}/[^"']+)\2""")
_OF_PAGE = re.compile(r"<(?:link|script)\b[^>]*>(?:</script>)?\n?")
_JSON_LACKS = {"NaN": None, "Infinity": "inf", "-Infinity": "-inf"}
_JOBS = {
    "api/plan": "quick",
    "api/plan/best": "best",
    "api/plan/joint": "joint",
    "api/front": "front",
    "api/scenario": "scenario",
}
"""Request of the page -> method of `Plans` that answers it."""


def explore(plan: Plan) -> Any:
    """Return a widget that shows the plan as the dashboard does; its sliders plan again.

    Raises:
        MissingExtraError: anywidget is not installed.
        ScenarioError: There are more clients than a page can show.
    """
    require("anywidget")
    return _widget()(plan)


@cache
def _widget() -> Any:
    import anywidget
    import traitlets

    class Explorer(anywidget.AnyWidget):  # type: ignore[misc, unused-ignore]  # Any where anywidget is not installed
        """A plan to explore. Requests of the page arrive as messages; each is answered in a thread."""

        _esm = widget_module()
        first = traitlets.Unicode().tag(sync=True)
        """The problem and the plan as JSON: they show without Python too, in a notebook that is only read."""

        def __init__(self, plan: Plan) -> None:
            self.answers = PlanAnswers(plan)
            super().__init__(first=self.answers.first())
            self.on_msg(self._arrived)

        def close(self) -> None:
            """Remove the widget, and end the process that plans."""
            super().close()
            self.answers.close()

        def _arrived(self, _: Any, content: Mapping[str, Any], buffers: Any) -> None:
            threading.Thread(target=self._reply, args=(content,), daemon=True).start()

        def _reply(self, content: Mapping[str, Any]) -> None:
            status, body = self.answers.answer(str(content["path"]), content["query"])
            self.send({"id": content["id"], "status": status, "body": body})

    return Explorer


class PlanAnswers:
    """Answers of the dashboard's server for one plan: a status of HTTP and JSON."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._library = plan, _OnePlan(plan)
        self._plans = Plans(self._library)

    def first(self) -> str:
        """Return the problem and the plan itself, as JSON texts inside JSON."""
        shown = answers.settled_answer(self._plan, all_ends=False)
        return json.dumps({"problem": _as_json(self._plans.problem(SOURCE)), "plan": _as_json(shown)})

    def answer(self, path: str, query: Mapping[str, str]) -> tuple[int, str]:
        """Return status and body for a request of the page."""
        if path == "vendor/countries-110m.json":
            return 200, _file(f"static/{path}")
        if path == "api/map":
            return 200, _as_json(map_answer(self._library, SOURCE))
        job = getattr(self._plans, _JOBS.get(path, ""), None)
        if job is None:
            return 404, _as_json({"error": "There is nothing at this address."})
        try:
            return 200, _as_json(job(PlanRequest.of({**query, "source": SOURCE})))
        except Outdated:
            return 409, _as_json({"error": "The page has sent a newer request.", "outdated": True})
        except (SlackwaterError, OSError) as error:
            return 422, _as_json({"error": str(error)})

    def close(self) -> None:
        """End the process that plans."""
        self._plans.close()


class _OnePlan(Catalogue):
    """A catalogue of a plan in memory."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(None)
        self._entry_of_plan = Entry(id=SOURCE, kind="plan", label=SOURCE, path=Path(f"{SOURCE}.json"))
        self._opened_plan = Opened(problem=plan.problem, data=data_of(plan))

    def entries(self) -> list[Entry]:
        """Return the plan's entry."""
        self._found = {SOURCE: self._entry_of_plan}
        return [self._entry_of_plan]

    def problem(self, entry_id: str) -> Opened:
        """Return the plan's problem."""
        return self._opened_plan


def widget_module() -> str:
    """Return the widget as one ES module: the page as data, then notebook/host.js."""
    page = {"html": page_html(), "modules": page_modules(), "main": _MAIN}
    return f"const PAGE = {json.dumps(page)};\n{_file('notebook/host.js')}"


def page_modules() -> dict[str, str]:
    """Return the page's modules by name; each imports the others by name, for an import map, instead of by path."""
    found: dict[str, str] = {}
    waiting = [_MAIN]
    while waiting:
        name = waiting.pop()

        def named(part: re.Match[str], folder: str = posixpath.dirname(name)) -> str:
            target = posixpath.normpath(posixpath.join(folder, part[3]))
            waiting.append(target)
            return f"{part[1]}{part[2]}{target}{part[2]}"

        if name not in found:
            found[name] = _IMPORT.sub(named, _file(name))
    return found


def page_html() -> str:
    """Return the dashboard's page with its styles inside, and without what it would load."""
    styles = "\n".join([palette_css(), *map(_file, _STYLES)])
    html = _OF_PAGE.sub("", _file("static/index.html"))
    return html.replace("</head>", f"<style>\n{styles}</style>\n</head>", 1)


def _file(name: str) -> str:
    return resources.files("slackwater.dashboard").joinpath(name).read_text(encoding="utf-8")


def _as_json(content: Any) -> str:
    """Return JSON; what JSON lacks becomes null or text, as the dashboard's server writes it."""
    return json.dumps(json.loads(json.dumps(content), parse_constant=_JSON_LACKS.get))
