"""What a plan, a task and settings must have in common before training begins, and how a run's file describes a task."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch

from slackwater.errors import ScenarioError
from slackwater.learning.settings import Settings
from slackwater.learning.task import Task
from slackwater.ledger.ledger import OverBudgetError
from slackwater.ledger.run import Run
from slackwater.planning.plan import Plan
from slackwater.planning.stage import BUDGET_ROUNDING
from slackwater.planning.storage import plan_from_dict


def check(plan: Plan, task: Task, settings: Settings) -> None:
    """Raise if plan, task and settings do not fit together."""
    problem, count = plan.problem, len(plan.problem.fleet)
    if len(task.clients) != count:
        raise ScenarioError(
            f"The plan has {count} clients ({_named(problem.fleet.names)}) and the task {task.name!r} has data for "
            f"{len(task.clients)}. Make the task with clients={count}."
        )
    for what, given in (("client_tests", task.client_tests), ("devices", task.devices)):
        if given and len(given) != count:
            raise ScenarioError(f"The task {task.name!r} has {what} for {len(given)} clients, the plan has {count}.")
    if not plan.packed.any():
        raise ScenarioError(
            "Nobody trains in this plan: there is not one slot in its matrix. Plan with a larger budget."
        )
    if plan.emissions_kg > problem.budget_kg * (1 + 2 * BUDGET_ROUNDING):
        raise OverBudgetError(
            f"The plan emits {plan.emissions_kg:.9g} kg, over its budget of {problem.budget_kg:.9g} kg. It is not "
            "begun; plan again."
        )
    sampled = settings.devices_per_slot
    if bool(task.devices) != (sampled is not None):
        raise ScenarioError(
            f"The task {task.name!r} has devices: say how many train in a scheduled slot with devices_per_slot."
            if task.devices
            else f"devices_per_slot is {sampled}, but the task {task.name!r} has no devices. Leave it out, or make a task with devices."
        )
    if sampled is not None:
        small = [i for i, region in enumerate(task.devices) if len(region) < sampled]
        if small:
            raise ScenarioError(
                f"devices_per_slot is {sampled}, but {problem.fleet.names[small[0]]!r} has "
                f"{len(task.devices[small[0]])} devices."
            )
    if sampled is not None and settings.device_kwh is not None:
        # A client of the plan is a region: the plan must charge its slot with the energy of all devices that train.
        together, fleet, planned = sampled * settings.device_kwh, problem.fleet, problem.costs.training_kwh
        wrong = np.flatnonzero(~np.isclose(planned, together * fleet.pue, rtol=1e-9, atol=0.0))
        if len(wrong):
            first = int(wrong[0])
            raise ScenarioError(
                f"{sampled} devices of {settings.device_kwh:g} kWh take {together:g} kWh in a slot, but the plan was made "
                f"with {planned[first] / fleet.pue[first]:g} kWh for {fleet.names[first]!r}, so the budget would not "
                f"hold. Plan again with energy_kwh={together:g}."
            )


def notes_of(plan: Plan, task: Task, settings: Settings) -> tuple[str, ...]:
    """Return what is told once at the start, and kept with the result."""
    notes, names = [], plan.problem.fleet.names
    never = [str(names[client]) for client in plan.metrics.never] if plan.before else []
    if never:
        notes.append(
            f"{_named(never)} never train{'s' if len(never) == 1 else ''} before the fine-tuning window (pi = 0): "
            f"nothing of {'its' if len(never) == 1 else 'their'} data enters before it, K stays {len(names)}, and the "
            "estimate of the global update is biased by that."
        )
    held = [s for region in task.devices for s in region] if task.devices else list(task.clients)
    small = sum(len(samples) < settings.batch_size for samples in held)
    if small:
        notes.append(
            f"{small} of {len(held)} {'devices' if task.devices else 'clients'} hold fewer samples than a batch of "
            f"{settings.batch_size}: their whole set is the batch."
        )
    return tuple(notes)


def described(task: Task) -> dict[str, Any]:
    """Return what the run's file keeps of a task: how it was made, and a fingerprint of its data."""
    digest = hashlib.sha256()
    for samples in task.clients:
        for tensor in (samples.y, samples.x[:1]):
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return {
        "name": task.name,
        "record": dict(task.record),
        "samples": [len(samples) for samples in task.clients],
        "fingerprint": digest.hexdigest(),
    }


def rebuilt(run: Run, data: str | None = None) -> Task:
    """Make a built-in or registered task again from its record; `data` is the new place of its files."""
    record: dict[str, Any] = run.task["record"]
    if "task" not in record:
        raise ScenarioError(
            f"The run in {run.folder} trains a task of your own, {run.task['name']!r}, which its file cannot make "
            "again. Give it: slackwater.resume(out, task=task)."
        )
    from slackwater.learning import tasks

    takes = tasks.option_names(record["task"])
    options = {key: value for key, value in record.items() if key in takes and value is not None}
    if data is not None and "data" in takes:
        options["data"] = data
    return tasks.make(record["task"], **options)


def plan_of(run: Run) -> Plan:
    """Return the plan that a run follows."""
    return plan_from_dict(run.plan, f"The plan of the run in {run.folder}")


def _named(names: Any, most: int = 8) -> str:
    listed = [str(name) for name in names]
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")
