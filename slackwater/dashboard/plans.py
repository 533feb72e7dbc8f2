"""The Plan and Map views: slider settings in, a plan out, and where each zone is. A page's latest request wins."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from slackwater.dashboard import plan_json as answers
from slackwater.dashboard.catalogue import Catalogue
from slackwater.dashboard.edits import scenario_file, with_settings
from slackwater.dashboard.planner_process import PlannerProcess
from slackwater.errors import InfeasibleError, ScenarioError
from slackwater.intensity.load import TYPICAL, available_zones
from slackwater.planning.exact import BUDGET_ROUNDING
from slackwater.planning.fleet import NO_LIMIT
from slackwater.planning.planner import plan
from slackwater.planning.problem import DEFAULTS, Problem
from slackwater.scenario import scenario_text
from slackwater.units import G_PER_KG

T = TypeVar("T")
_SLIDERS = ("budget_kg", "slack", "alpha", "fine_tune", "recall")
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
    recall: int | None = None
    free: frozenset[str] | None = None
    """Settings that the planner "auto" may choose; the values given for them are those on show. None: as in the scenario."""
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
            recall=_whole(query, "recall"),
            free=None if query.get("free") is None else frozenset(filter(None, query["free"].split(","))),
            end=None if query.get("end") in (None, "", "auto") else _whole(query, "end"),
            near=_whole(query, "near"),
            page=query.get("page", "")[:64],
            number=_whole(query, "number") or 0,
        )

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings of the sliders, without those that the planner chooses."""
        left = self.free or frozenset[str]()
        return {key: value for key in _SLIDERS if (value := getattr(self, key)) is not None and key not in left}

    def variant(self, problem: Problem) -> Problem:
        """Return the problem with the settings of the sliders."""
        changes = {key: value for key in _SLIDERS if (value := getattr(self, key)) is not None}
        if self.free is not None:
            changes["free"] = self.free
        if "slack" not in changes:  # keep the horizon of a problem with a deadline
            changes["slack"] = problem.horizon - problem.rounds
        if changes["slack"] > most_slack(problem):
            raise ScenarioError(
                f"slack is {changes['slack']}; the intensity data allows at most {most_slack(problem)} slots."
            )
        return problem.with_settings(**changes)

    def key(self, problem: Problem) -> tuple[Any, ...]:
        """Return everything that the answer depends on; what the planner chooses does not depend on what is on show."""
        made = self.variant(problem)
        free = made.free if made.planner == "auto" else frozenset[str]()
        return (
            self.source, made.budget_kg, made.horizon, free, self.end,
            *(None if name in free else getattr(made, name) for name in sorted(DEFAULTS)),
        )  # fmt: skip


class Plans:
    """Plans for the open pages."""

    def __init__(self, library: Catalogue) -> None:
        self._library, self._worker, self._quick_worker = library, PlannerProcess(), PlannerProcess(nice=0)
        self._planning = threading.Lock()
        self._guarded = threading.Lock()
        self._latest: OrderedDict[str, int] = OrderedDict()
        self._known: OrderedDict[tuple[Any, ...], dict[str, Any]] = OrderedDict()
        self._goals: dict[str, tuple[Problem, Problem]] = {}
        """By source: its problem with a goal, and the same with the budget that the goal buys."""

    def close(self) -> None:
        """End the planning processes."""
        self._worker.close()
        self._quick_worker.close()

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
            **answers.times_answer(problem),
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
        problem = self._problem(asked.source)
        variant = asked.variant(problem)
        known = self._known.get(self._key("best", asked, problem))
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

    def joint(self, asked: PlanRequest) -> dict[str, Any]:
        """Return the schedule with the largest objective over all end times, under the settings on show."""
        wanted = self._claim(asked)
        variant = asked.variant(self._problem(asked.source))
        if not wanted():
            raise Outdated
        # It takes under a second, so it is never killed: a new process would need longer.
        return _or_sentence(lambda: self._quick_worker.ask("joint", variant, asked.end, lambda: True)) or {}

    def best(self, asked: PlanRequest) -> dict[str, Any]:
        """Return the plan of `slackwater plan` for these settings, with metrics, when it is proved."""
        return self._remembered("best", asked)

    def front(self, asked: PlanRequest) -> dict[str, Any]:
        """Return budget against objective around the current plan, at its end time."""
        if asked.end is None:
            raise ScenarioError("The front needs one end time: give end, a whole number.")
        return self._remembered("front", asked)

    def file(self, asked: PlanRequest) -> tuple[Path, str]:
        """Return the file of a scenario, and its text with the displayed settings and the page's changes; checked."""
        entry = self._library.entry(asked.source)
        if entry.kind != "scenario":
            raise ScenarioError(
                "Only a scenario can be edited. Copy this plan's as a scenario file, and serve that file."
            )
        problem = self._problem(asked.source)
        asked.variant(problem)
        own = answers.settings_answer(problem)
        changed = {key: value for key, value in asked.settings.items() if key in own["free"] or value != own[key]}
        return entry.path, with_settings(scenario_file(entry.path, entry.changes), changed)

    def scenario(self, asked: PlanRequest) -> dict[str, Any]:
        """Return the displayed settings as a scenario file; comments of the scenario stay."""
        if self._library.entry(asked.source).kind == "scenario":
            path, text = self.file(asked)
            told = "" if asked.end is None else f"# Plan it with: slackwater plan {path.name} --end {asked.end}\n"
            return {"name": path.name, "toml": told + text}
        problem, data = self._problem(asked.source), self._library.problem(asked.source).data
        return {"name": "scenario.toml", "toml": scenario_text(asked.variant(problem), data, end=asked.end)}

    def _problem(self, source: str) -> Problem:
        problem = self._library.problem(source).problem
        if len(problem.fleet) > MOST_CLIENTS:
            raise ScenarioError(
                f"There are {len(problem.fleet):,} clients; the page shows at most {MOST_CLIENTS:,}. Use: slackwater plan"
            )
        return problem if problem.goal == "budget" else self._around_goal(source, problem)

    def _around_goal(self, source: str, problem: Problem) -> Problem:
        """Return the problem with the budget that its goal buys, so that the sliders can vary it; keep the goal's plan."""
        with self._guarded:
            if source not in self._goals or self._goals[source][0] is not problem:
                made = plan(problem)
                around = made.problem.for_budget(
                    budget_kg=made.emissions_kg * (1 + BUDGET_ROUNDING), slack=problem.slack, free=problem.free
                )
                self._goals[source] = problem, around
                shown = answers.settled_answer(replace(made, problem=around), all_ends=True)
                self._known[self._key("best", PlanRequest(source=source), around)] = shown
            return self._goals[source][1]

    def _key(self, what: str, asked: PlanRequest, problem: Problem) -> tuple[Any, ...]:
        """Return all that an answer depends on, the file of the source included."""
        return what, self._library.stamp(self._library.entry(asked.source)), *asked.key(problem)

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

    def _remembered(self, job: str, asked: PlanRequest) -> dict[str, Any]:
        wanted = self._claim(asked)
        problem = self._problem(asked.source)
        key = self._key(job, asked, problem)
        if key not in self._known:
            found = self._of_worker(job, asked.variant(problem), asked.end, wanted)
            with self._guarded:
                self._known[key] = found
                while len(self._known) > _CACHED:
                    self._known.popitem(last=False)
            return found
        return self._known[key]

    def _of_worker(self, job: str, variant: Problem, end: int | None, wanted: Callable[[], bool]) -> dict[str, Any]:
        found = _or_sentence(lambda: self._worker.ask(job, variant, end, wanted))
        if found is None:
            raise Outdated
        return found


def most_slack(problem: Problem) -> int:
    """Return the largest slack that the traces, the prices and per-slot arrays allow."""
    return max(problem.horizon, min(problem.reach, _MOST_SLOTS)) - problem.rounds


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


# Longitude and latitude near the middle of each zone, in degrees: enough for a map without a map server. Balancing areas of
# one region are moved apart, so that their points do not overlap.
PLACES: dict[str, tuple[float, float]] = {
    # Europe
    "AT": (14.1, 47.6), "BA": (17.8, 44.2), "BE": (4.6, 50.6), "BG": (25.2, 42.7), "CH": (8.2, 46.8), "CY": (33.2, 35.0),
    "CZ": (15.3, 49.8), "DE": (10.4, 51.1), "DK": (9.9, 55.9), "DK-BHM": (14.9, 55.1), "DK-DK1": (9.2, 56.2),
    "DK-DK2": (11.9, 55.5), "EE": (25.5, 58.7), "ES": (-3.6, 40.2), "FI": (26.0, 63.5), "FR": (2.5, 46.6), "GB": (-1.6, 52.8),
    "GB-NIR": (-6.7, 54.6), "GR": (22.4, 39.4), "HR": (16.2, 45.4), "HU": (19.4, 47.2), "IE": (-8.1, 53.2), "IS": (-18.7, 64.9),
    "IT": (12.5, 42.8), "IT-CNO": (12.2, 43.4), "IT-CSO": (13.4, 41.6), "IT-NO": (9.8, 45.3), "IT-SAR": (9.0, 40.1),
    "IT-SIC": (14.2, 37.5), "IT-SO": (16.3, 40.4), "LT": (23.9, 55.3), "LU": (6.1, 49.8), "LV": (25.0, 56.9), "ME": (19.3, 42.8),
    "MK": (21.7, 41.6), "NL": (5.4, 52.3), "NO": (8.8, 61.2), "NO-NO1": (10.9, 60.3), "NO-NO2": (7.6, 58.8),
    "NO-NO3": (10.3, 63.3), "NO-NO4": (17.6, 68.2), "NO-NO5": (6.3, 60.6), "PL": (19.3, 52.1), "PT": (-8.2, 39.6), "RO": (24.9, 45.8),
    "RS": (20.8, 44.1), "SE": (15.6, 62.4), "SE-SE1": (20.0, 66.6), "SE-SE2": (15.8, 63.6), "SE-SE3": (15.2, 59.5),
    "SE-SE4": (14.2, 56.5), "SI": (14.8, 46.1), "SK": (19.5, 48.7), "TR": (35.2, 39.0), "UA": (31.4, 49.0),
    # Asia and Oceania
    "AU": (134.0, -25.0), "AU-NSW": (147.0, -32.2), "AU-QLD": (144.5, -22.5), "AU-SA": (135.5, -30.2), "AU-TAS": (146.6, -42.0),
    "AU-VIC": (144.3, -36.9), "AU-WA": (121.5, -27.0), "IN": (79.0, 22.0), "IN-MH": (76.3, 19.4), "IN-WE": (72.5, 22.8),
    "JP-KN": (135.6, 34.8), "JP-TK": (139.7, 35.7), "KR": (127.8, 36.3), "NZ": (172.5, -41.5), "SG": (103.8, 1.35), "TW": (121.0, 23.7),
    "VN": (106.3, 16.2),
    # Central and South America, Africa
    "BR": (-53.0, -10.8), "BR-CS": (-48.5, -18.8), "BR-N": (-52.5, -3.5), "BR-NE": (-40.5, -8.0), "BR-S": (-52.0, -27.5),
    "CL-SEN": (-70.6, -33.0), "PA": (-80.1, 8.5), "UY": (-56.0, -32.8), "ZA": (24.7, -29.0),
    # North America
    "CA": (-106.0, 56.0), "CA-ON": (-85.5, 50.0), "CA-QC": (-72.0, 52.5), "US-CAL-BANC": (-121.3, 39.2), "US-CAL-CISO": (-119.6, 36.9),
    "US-CAL-LDWP": (-118.3, 34.1), "US-CAL-TIDC": (-120.8, 37.6), "US-CAR-CPLE": (-78.3, 35.3), "US-CAR-CPLW": (-82.6, 35.6),
    "US-CAR-DUK": (-80.8, 35.6), "US-CAR-SC": (-79.9, 33.3), "US-CAR-SCEG": (-81.2, 33.9), "US-CENT-SWPP": (-98.0, 37.6),
    "US-FLA-FMPP": (-81.4, 28.5), "US-FLA-FPC": (-82.6, 29.2), "US-FLA-FPL": (-80.5, 26.7), "US-FLA-GVL": (-82.2, 29.8),
    "US-FLA-JEA": (-81.6, 30.4), "US-FLA-TAL": (-84.3, 30.5), "US-FLA-TEC": (-82.3, 27.8), "US-HI-OA": (-158.0, 21.5),
    "US-MIDA-PJM": (-78.5, 40.0), "US-MIDW-AECI": (-92.8, 37.6), "US-MIDW-LGEE": (-85.3, 37.8), "US-MIDW-MISO": (-90.6, 42.2),
    "US-NE-ISNE": (-71.6, 43.3), "US-NY-NYIS": (-75.3, 42.9), "US-NW-BPAT": (-119.9, 45.9), "US-NW-GRID": (-121.4, 45.3),
    "US-NW-IPCO": (-115.2, 43.4), "US-NW-NEVP": (-116.4, 38.9), "US-NW-NWMT": (-110.0, 46.9), "US-NW-PACE": (-111.5, 40.6),
    "US-NW-PGE": (-122.6, 44.9), "US-NW-PSCO": (-104.6, 39.2), "US-NW-PSEI": (-121.9, 48.0), "US-NW-TPWR": (-122.4, 47.0),
    "US-NW-WACM": (-106.2, 41.4), "US-SW-AZPS": (-111.9, 34.7), "US-SW-EPE": (-106.1, 31.9), "US-SW-PNM": (-106.4, 34.9),
    "US-SW-SRP": (-111.5, 33.4), "US-SW-TEPC": (-110.8, 32.1), "US-SW-WALC": (-114.0, 35.2), "US-TEN-TVA": (-86.8, 35.6),
    "US-TEX-ERCO": (-98.6, 31.2),
}  # fmt: skip


def place(zone: str) -> tuple[float, float] | None:
    """Return longitude and latitude of a zone; None for an unknown subzone, even if its country is known."""
    return PLACES.get(zone)


# Numbers of ISO 3166-1, as the shapes of world-atlas have them, by the country that begins a zone's name.
COUNTRIES: dict[str, str] = {
    "AT": "040", "AU": "036", "BA": "070", "BE": "056", "BG": "100", "BR": "076", "CA": "124", "CH": "756", "CL": "152",
    "CY": "196", "CZ": "203", "DE": "276", "DK": "208", "EE": "233", "ES": "724", "FI": "246", "FR": "250", "GB": "826",
    "GR": "300", "HR": "191", "HU": "348", "IE": "372", "IN": "356", "IS": "352", "IT": "380", "JP": "392", "KR": "410",
    "LT": "440", "LU": "442", "LV": "428", "ME": "499", "MK": "807", "NL": "528", "NO": "578", "NZ": "554", "PA": "591",
    "PL": "616", "PT": "620", "RO": "642", "RS": "688", "SE": "752", "SG": "702", "SI": "705", "SK": "703", "TR": "792",
    "TW": "158", "UA": "804", "US": "840", "UY": "858", "VN": "704", "ZA": "710",
}  # fmt: skip


def map_answer(library: Catalogue, source: str) -> dict[str, Any]:
    """Return every zone with its place (None if unknown), intensity by slot and clients; and further zones of the data."""
    opened = library.problem(source)
    problem = opened.problem
    wide = problem.with_settings(slack=most_slack(problem))
    names, counts = np.unique(np.asarray(problem.fleet.zone, dtype=str), return_counts=True)
    zones = []
    for row, (zone, clients) in enumerate(zip(names.tolist(), counts.tolist(), strict=True)):
        where = place(zone)
        zones.append(
            {
                "zone": zone,
                "longitude": None if where is None else where[0],
                "latitude": None if where is None else where[1],
                "country": COUNTRIES.get(zone.partition("-")[0]),
                "whole_country": zone in COUNTRIES,
                "clients": clients,
                "intensity_g_per_kwh": np.round(wide.costs.intensity[row] * G_PER_KG, 2).tolist(),
            }
        )
    further = (
        [] if opened.data.source != TYPICAL else sorted({one.zone for one in available_zones()} - set(names.tolist()))
    )
    return {
        "source": source,
        **answers.times_answer(problem),
        "slots": wide.horizon,
        "synthetic": problem.traces.synthetic,
        "zones": zones,
        "further": [
            {"zone": zone, "longitude": where[0], "latitude": where[1], "clients": 0}
            for zone in further
            if (where := place(zone)) is not None
        ],
    }
