"""The Compare view: plans and runs side by side, in the same terms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slackwater.dashboard import answers
from slackwater.dashboard.library import Entry, read_plan
from slackwater.dashboard.runs import RunReader
from slackwater.errors import ScenarioError, SlackwaterError

MOST = 8


def compare_answer(chosen: Sequence[tuple[Entry, RunReader | None]]) -> dict[str, Any]:
    """Return a column for each; one that cannot be read says why and does not hide the others."""
    if len(chosen) > MOST:
        raise ScenarioError(f"{len(chosen)} are too many to compare; choose up to {MOST}.")
    return {"columns": [_column(entry, reader) for entry, reader in chosen]}


def _column(entry: Entry, reader: RunReader | None) -> dict[str, Any]:
    head = {"id": entry.id, "kind": entry.kind, "label": entry.label}
    try:
        return head | (_of_plan(entry) if reader is None else _of_run(reader))
    except (SlackwaterError, OSError) as error:
        return head | {"error": str(error)}


def _of_plan(entry: Entry) -> dict[str, Any]:
    if entry.kind == "scenario":
        raise ScenarioError(
            "A scenario has no plan yet. Pin one from the Plan view, or save it with: slackwater plan --out DIR"
        )
    plan = read_plan(entry.path)
    return {"plan": answers.plan_answer(plan, all_ends=False), "metrics": answers.metrics_answer(plan), "run": None}


def _of_run(reader: RunReader) -> dict[str, Any]:
    state, fixed = reader.look(), reader.fixed()
    evaluated = [one for one in state["rounds"] if one["accuracy"] is not None]
    return {
        "plan": fixed["plan"],
        "metrics": fixed["metrics"],
        "run": {
            "kind": state["kind"],
            "status": state["status"],
            "spent_kg": state["spent_kg"],
            "rounds_done": state["rounds_done"],
            "rounds_planned": state["rounds_planned"],
            "aggregator": fixed["settings"].get("aggregator"),
            "task": fixed["task"].get("name"),
            "seed": fixed["settings"].get("seed"),
            "accuracy": evaluated[-1]["accuracy"] if evaluated else None,
            "curve": [[one["spent_kg"], one["accuracy"]] for one in evaluated],
            "seconds": sum(one["seconds"] for one in state["rounds"]),
        },
    }
