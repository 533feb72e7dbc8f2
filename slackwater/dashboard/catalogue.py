"""Catalogue of one folder's scenario, plans and runs by short id, and their comparison."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from slackwater.dashboard import plan_json as answers
from slackwater.dashboard.edits import MARK
from slackwater.dashboard.runs import MOST_PLAN_BYTES, RunReader, plan_of_run, written_at
from slackwater.errors import ScenarioError, SlackwaterError
from slackwater.ledger.run import FILE as RUN_FILE
from slackwater.ledger.schema import task_name
from slackwater.planning.plan import Plan
from slackwater.planning.problem import Problem
from slackwater.planning.storage import load_plan
from slackwater.scenario import DataText

PLAN_FILE = "plan.json"
_DEEPEST = 4
_MOST_FOLDERS = 5_000
_MOST_ENTRIES = 300


class NotFound(SlackwaterError):
    """The id is not in the catalogue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A scenario, plan or run."""

    id: str
    kind: Literal["scenario", "plan", "run"]
    label: str
    """Path relative to the folder: text to show, never a path to open."""
    path: Path
    changes: str = ""
    """Changes of a page to a scenario; see `edits`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A problem whose traces extend beyond its own slack, so that the slider can increase it."""

    problem: Problem
    data: DataText


ReadScenario = Callable[[Path, str], Opened]
"""Reads a scenario file, with the changes of a page."""


class Catalogue:
    """The served folder, and its scenario if there is one."""

    def __init__(
        self,
        folder: Path | None,
        *,
        scenario: Path | None = None,
        read_scenario: ReadScenario | None = None,
        data: str | None = None,
        fill_hours: int | None = None,
    ) -> None:
        self._folder, self._scenario, self._read = folder, scenario, read_scenario
        self.data, self.fill_hours = data, fill_hours
        self._opened: dict[tuple[str, int], Opened] = {}
        self._found: dict[str, Entry] = {}
        self._lock = threading.Lock()

    def entries(self) -> list[Entry]:
        """Return all entries: the scenario, plans, then runs, the last one written first; new runs appear as they are written."""
        found: list[Entry] = []
        if self._scenario is not None:
            found.append(self._entry("scenario", self._scenario))
        if self._folder is not None:
            for at, (where, folders, files) in enumerate(os.walk(self._folder)):  # links are not followed
                here = Path(where)
                depth = len(here.relative_to(self._folder).parts)
                folders[:] = sorted(name for name in folders if not name.startswith(".")) if depth < _DEEPEST else []
                for name, kind in ((PLAN_FILE, "plan"), (RUN_FILE, "run")):
                    if name in files and not (here / name).is_symlink():
                        found.append(self._entry(kind, here / name))  # type: ignore[arg-type]
                if at > _MOST_FOLDERS or len(found) >= _MOST_ENTRIES:
                    break
        shown = found[:_MOST_ENTRIES]
        runs = _last_first([one for one in shown if one.kind == "run"])
        self._found = {one.id: one for one in [*(one for one in shown if one.kind != "run"), *runs]}
        return list(self._found.values())

    def entry(self, entry_id: str) -> Entry:
        """Return the entry of an id; only an unknown id starts a new search of the folder."""
        base, _, changes = entry_id.partition(MARK)
        if base not in self._found:
            self.entries()
        if (found := self._found.get(base)) is not None and not changes:
            return found
        if found is not None and found.kind == "scenario":
            return replace(found, id=entry_id, label=f"{found.label}, edited", changes=changes)
        raise NotFound("There is no such scenario, plan or run; it may have been moved. Reload the page.")

    def problem(self, entry_id: str) -> Opened:
        """Return the problem of a scenario, plan or run; a changed file is read again."""
        one = self.entry(entry_id)
        key = (one.id, self.stamp(one))
        with self._lock:
            if key not in self._opened:
                if one.kind == "scenario":
                    assert self._read is not None
                    opened = self._read(one.path, one.changes)
                else:
                    plan = plan_of_run(one.path) if one.kind == "run" else read_plan(one.path)
                    opened = Opened(problem=plan.problem, data=data_of(plan))
                while len(self._opened) >= 8:  # problems with many clients are large
                    self._opened.pop(next(iter(self._opened)))
                self._opened[key] = opened
            return self._opened[key]

    def stamp(self, entry: Entry) -> int:
        """Return a number that changes with the file; the plan of a run never changes."""
        return 0 if entry.kind == "run" else _stamp(entry.path)

    def run_id(self, folder: Path) -> str:
        """Return the id that a run in this folder has, also before its file is written."""
        return _id("run", str(folder / RUN_FILE))

    def _entry(self, kind: Literal["scenario", "plan", "run"], path: Path) -> Entry:
        base = self._folder or path.parent
        shown = path if kind != "run" else path.parent
        try:
            label = str(shown.relative_to(base))
        except ValueError:
            label = shown.name
        if label == ".":
            label = base.resolve().name
        label = label.encode("utf-8", "replace").decode()  # a file name may contain bytes that are not text
        return Entry(id=_id(kind, str(path)), kind=kind, label=label, path=path)


def read_plan(path: Path) -> Plan:
    """Read a plan file; raise SlackwaterError if it is too large to show."""
    if path.stat().st_size > MOST_PLAN_BYTES:
        raise SlackwaterError(
            f"{path.name} has {path.stat().st_size / 2**20:,.0f} MiB; a browser can show at most {MOST_PLAN_BYTES // 2**20} MiB. "
            "Use: slackwater plan SCENARIO --chart FILE"
        )
    return load_plan(path)


def _id(kind: str, path: str) -> str:
    return kind[0] + hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()[:12]


def _last_first(runs: list[Entry]) -> list[Entry]:
    """Return the last run written first; a run inside another one's folder, such as its baseline, follows it."""
    folders = {one.path.parent for one in runs}

    def rank(one: Entry) -> tuple[float, Path]:
        outermost = [folder for folder in one.path.parents if folder in folders][-1]
        return -written_at(outermost / RUN_FILE), one.path.parent

    return sorted(runs, key=rank)


def _stamp(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return -1  # the reader reports the error


def data_of(plan: Plan) -> DataText:
    """Return the intensity source of a stored plan, as far as a scenario can name it."""
    traces = plan.problem.traces
    if traces.provenance and all(known.synthetic for known in traces.provenance):
        return DataText(source="typical", factor=traces.factor)
    sources = sorted({known.source for known in traces.provenance})
    folders = {str(Path(source.split(", ")[0]).parent) for source in sources}
    return DataText(source=next(iter(folders)) if len(folders) == 1 else "data", factor=traces.factor)


MOST = 8


def compare_answer(chosen: Sequence[tuple[Entry, RunReader | None]]) -> dict[str, Any]:
    """Return a column for each entry; an unreadable one holds its error."""
    if len(chosen) > MOST:
        raise ScenarioError(f"{len(chosen)} entries are too many to compare. Choose at most {MOST}.")
    return {"columns": [_column(entry, reader) for entry, reader in chosen]}


def _column(entry: Entry, reader: RunReader | None) -> dict[str, Any]:
    head = {"id": entry.id, "kind": entry.kind, "label": entry.label}
    try:
        return head | (_of_plan(entry) if reader is None else _of_run(entry, reader))
    except (SlackwaterError, OSError) as error:
        return head | {"error": str(error)}


def _of_plan(entry: Entry) -> dict[str, Any]:
    if entry.kind == "scenario":
        raise ScenarioError(
            "A scenario has no plan yet. Pin one in the Plan view, or save one with: slackwater plan SCENARIO --out DIR"
        )
    plan = read_plan(entry.path)
    shown, metrics = answers.plan_answer(plan, all_ends=False), answers.metrics_answer(plan)
    return {"plan": shown, "metrics": metrics, "run": None} | _axes(plan.problem)


def _axes(problem: Problem) -> dict[str, Any]:
    """Return what the rows and columns of a schedule stand for."""
    return answers.times_answer(problem) | {"clients": [str(name) for name in problem.fleet.names]}


def _of_run(entry: Entry, reader: RunReader) -> dict[str, Any]:
    state, fixed = reader.look(), reader.fixed()
    evaluated = [one for one in state["rounds"] if one["score"] is not None]
    settled = zip(state["kg_by_round"], state["rounds"], strict=True)
    return _axes(plan_of_run(entry.path).problem) | {
        "plan": fixed["plan"],
        "metrics": fixed["metrics"],
        "run": {
            "kind": state["kind"],
            "status": state["status"],
            "spent_kg": state["spent_kg"],
            "rounds_done": state["rounds_done"],
            "rounds_planned": None if state["replans"] else state["rounds_planned"],  # a re-plan may hold more or fewer
            "aggregator": fixed["settings"].get("aggregator"),
            "task": task_name(fixed["task"]),
            "seed": fixed["settings"].get("seed"),
            "metric": state["metric"],
            "accuracy": evaluated[-1]["accuracy"] if evaluated else None,
            "score": evaluated[-1]["score"] if evaluated else None,
            "curve": [[kg, one["score"]] for kg, one in settled if one["score"] is not None],
            "seconds": sum(one["seconds"] for one in state["rounds"]),
        },
    }
