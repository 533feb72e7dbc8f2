"""The Plan view: settings from the sliders in, a plan for the page out. The latest request of a page wins."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np

from slackwater.charts.schedule_chart import has_times
from slackwater.dashboard import plan_json as answers
from slackwater.dashboard.catalogue import Catalogue
from slackwater.dashboard.planner_process import PlannerProcess
from slackwater.errors import InfeasibleError, ScenarioError
from slackwater.planning.fleet import NO_LIMIT
from slackwater.planning.problem import Problem
from slackwater.scenario import scenario_text
from slackwater.units import G_PER_KG, iso

T = TypeVar("T")
MOST_CLIENTS = 20_000
"""Most clients shown; a larger schedule would take seconds to send."""
_MOST_SLOTS = 4_000
_CACHED = 64
_PAGES = 64


class Outdated(Exception):
    """The page has sent a newer request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """One request from a page."""

    source: str
    budget_kg: float | None = None
    slack: int | None = None
    alpha: float | str | None = None
    fine_tune: int | None = None
    end: int | None = None
    """None: the best of all end times."""
    near: int | None = None
    """Displayed end time, which a quick answer keeps."""
    page: str = ""
    number: int = 0

    @classmethod
    def of(cls, query: Mapping[str, str]) -> PlanRequest:
        """Read and check the fields of a request."""
        alpha = query.get("alpha")
        return cls(
            source=query.get("source", ""),
            budget_kg=_number(query, "budget_kg"),
            slack=_whole(query, "slack"),
            alpha=None if alpha is None else _number_or_word(alpha),
            fine_tune=_whole(query, "fine_tune"),
            end=None if query.get("end") in (None, "", "auto") else _whole(query, "end"),
            near=_whole(query, "near"),
            page=query.get("page", "")[:64],
            number=_whole(query, "number") or 0,
        )

    def variant(self, problem: Problem) -> Problem:
        """Return the problem with the settings of the sliders."""
        changes = {
            key: getattr(self, key)
            for key in ("budget_kg", "slack", "alpha", "fine_tune")
            if getattr(self, key) is not None
        }
        if "slack" not in changes:  # keep the horizon of a problem with a deadline
            changes["slack"] = problem.horizon - problem.rounds
        if changes["slack"] > most_slack(problem):
            raise ScenarioError(
                f"slack is {changes['slack']}; the intensity data allows at most {most_slack(problem)} slots."
            )
        return problem.with_settings(**changes)

    @property
    def key(self) -> tuple[Any, ...]:
        """Return everything that the answer depends on."""
        return self.source, self.budget_kg, self.slack, self.alpha, self.fine_tune, self.end


class Plans:
    """Plans for the open pages."""

    def __init__(self, library: Catalogue) -> None:
        self._library, self._worker = library, PlannerProcess()
        self._planning = threading.Lock()
        self._guarded = threading.Lock()
        self._latest: OrderedDict[str, int] = OrderedDict()
        self._known: OrderedDict[tuple[Any, ...], dict[str, Any]] = OrderedDict()

    def close(self) -> None:
        """End the planning process."""
        self._worker.close()

    def problem(self, source: str) -> dict[str, Any]:
        """Return what the sliders do not change: clients, grids, times, and the sliders' ranges."""
        problem = self._problem(source)
        reach = most_slack(problem)
        wide = problem.with_settings(slack=reach)
        costs, fleet = wide.costs, wide.fleet
        zones = np.unique(np.asarray(fleet.zone, dtype=str)).tolist()  # the costs number them in this order
        return {
            "source": source,
            "label": self._library.entry(source).label,
            "synthetic": problem.traces.synthetic,
            "factor": problem.traces.factor,
            "sources": sorted({known.source for known in problem.traces.provenance}),
            "filled_hours": sum(len(known.filled_hours) for known in problem.traces.provenance),
            "start": iso(problem.first_slot) if has_times(problem) else None,
            "slot_minutes": problem.traces.slot_minutes,
            "settings": answers.settings_answer(problem),
            "most_slack": reach,
            "coupled": problem.coupled,
            "g_max_kg": problem.g_max,
            "everything_kg": float(np.sum(costs.dense() * costs.can_train()) + costs.idle_kg().sum()),
            "zones": zones,
            "intensity_g_per_kwh": np.round(costs.intensity * G_PER_KG, 2).tolist(),
            "clients": {
                "name": [str(name) for name in fleet.names],
                "zone": costs.row.tolist(),
                "energy_kwh": answers.rounded(costs.energy_kwh, 9),
                "idle_kwh": answers.rounded(costs.idle_kwh, 9),
                "min_slots": fleet.min_slots.tolist(),
                "max_slots": [None if most == NO_LIMIT else most for most in fleet.max_slots.tolist()],
                "mask": costs.mask.tolist(),
            },
            "available": answers.bits(np.packbits(costs.available, axis=1)),
        }

    def quick(self, asked: PlanRequest) -> dict[str, Any]:
        """Plan while a slider moves: exact for the displayed end time. The search over all end times follows."""
        wanted = self._claim(asked)
        variant = asked.variant(self._problem(asked.source))
        known = self._known.get(("best", *asked.key))
        if known is not None:
            return known
        with self._planning:  # one at a time, so that the newest gets the whole processor
            if not wanted():
                raise Outdated
            slack = variant.horizon - variant.rounds
            if asked.end is not None:
                fixed = asked.end
                return _or_sentence(lambda: answers.quick_answer(variant, fixed))
            near = slack if asked.near is None else max(0, min(asked.near, slack))
            for end in dict.fromkeys((near, slack, slack // 2, 0)):
                try:
                    return answers.quick_answer(variant, end)
                except InfeasibleError:
                    continue
            return {"status": "searching", "message": "No schedule fits this end time; checking the others."}

    def best(self, asked: PlanRequest) -> dict[str, Any]:
        """Return the best plan over all end times, with metrics, when it is proved."""
        wanted = self._claim(asked)
        variant = asked.variant(self._problem(asked.source))
        return self._remembered(("best", *asked.key), lambda: self._worker.ask("best", variant, asked.end, wanted))

    def front(self, asked: PlanRequest) -> dict[str, Any]:
        """Return budget against objective around the current plan, at its end time."""
        if asked.end is None:
            raise ScenarioError("The front needs one end time: give end, a whole number.")
        wanted = self._claim(asked)
        variant = asked.variant(self._problem(asked.source))
        return self._remembered(("front", *asked.key), lambda: self._worker.ask("front", variant, asked.end, wanted))

    def scenario(self, asked: PlanRequest) -> dict[str, Any]:
        """Return the displayed settings as a scenario file."""
        opened = self._library.problem(asked.source)
        return {"toml": scenario_text(asked.variant(opened.problem), opened.data, end=asked.end)}

    def _problem(self, source: str) -> Problem:
        problem = self._library.problem(source).problem
        if len(problem.fleet) > MOST_CLIENTS:
            raise ScenarioError(
                f"There are {len(problem.fleet):,} clients; the page shows at most {MOST_CLIENTS:,}. Use: slackwater plan"
            )
        return problem

    def _claim(self, asked: PlanRequest) -> Callable[[], bool]:
        """Make this the latest request of its page; return a function that says whether it still is."""
        if not asked.page:
            return lambda: True
        with self._guarded:
            self._latest[asked.page] = max(asked.number, self._latest.get(asked.page, 0))
            self._latest.move_to_end(asked.page)
            while len(self._latest) > _PAGES:
                self._latest.popitem(last=False)
        return lambda: self._latest.get(asked.page, asked.number) <= asked.number

    def _remembered(self, key: tuple[Any, ...], work: Callable[[], dict[str, Any] | None]) -> dict[str, Any]:
        if key not in self._known:
            found = _or_sentence(work)
            if found is None:
                raise Outdated
            with self._guarded:
                self._known[key] = found
                while len(self._known) > _CACHED:
                    self._known.popitem(last=False)
            return found
        return self._known[key]


def most_slack(problem: Problem) -> int:
    """Return the largest slack that the traces and per-slot arrays allow."""
    own = problem.horizon - problem.rounds
    if problem.available is not None or problem.server_kg is not None:
        return own
    slots = (problem.traces.end - problem.first_slot) // timedelta(minutes=problem.traces.slot_minutes)
    return max(own, min(slots, _MOST_SLOTS) - problem.rounds)


def _or_sentence(work: Callable[[], T]) -> T | dict[str, Any]:
    """Return an infeasible problem as an answer that names what is feasible."""
    try:
        return work()
    except InfeasibleError as error:
        return {
            "status": "infeasible",
            "message": str(error),
            "least_budget_kg": error.least_budget_kg,
            "end": error.end,
        }


def _number(query: Mapping[str, str], key: str) -> float | None:
    text = query.get(key)
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        raise ScenarioError(f"{key} must be a number, not {text[:40]!r}.") from None


def _whole(query: Mapping[str, str], key: str) -> int | None:
    text = query.get(key)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise ScenarioError(f"{key} must be a whole number, not {text[:40]!r}.") from None


def _number_or_word(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
