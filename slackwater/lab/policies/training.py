"""Train by a policy and resume such a run: the training loop of `slackwater.training`, with the policy as its source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import torch

from slackwater.errors import ScenarioError
from slackwater.lab.policies.policy import Policy
from slackwater.lab.policies.policy_source import PROBE_SAMPLES, PolicySettings, PolicySource, Probes, empty_plan
from slackwater.lab.policies.registry import make_policy
from slackwater.ledger.run import Run
from slackwater.planning.plan import Plan
from slackwater.planning.problem import Problem
from slackwater.training.loop import Callback, Result, carry_out, check_same_data
from slackwater.training.settings import Settings, check_model, described, plan_of, rebuilt
from slackwater.training.task import Task


def train(
    problem: Problem,
    task: Task,
    *,
    policy: str,
    probes: Probes = "charged",
    probe_samples: int | None = PROBE_SAMPLES,
    speeds: Sequence[float] | None = None,
    out: str | Path | None = None,
    progress: Callback | None = None,
    **settings: Any,
) -> Result:
    """Train `task` by a policy over the horizon of `problem`, within its budget.

    The problem's window and alpha are not used.

    Args:
        problem: Clients, horizon and budget.
        task: Data and model, with one part for each client.
        policy: Name of a policy, such as `fedzero` or `oort:2`.
        probes: `free` does not charge losses and gradients of clients that do not train.
        probe_samples: Most samples of a client in a probe; None takes all.
        speeds: Speed of each client. Default: all the same.
        out: Folder of the run, which gets `run.db` and at the end `model.pt`; `resume` continues it to the same bits.
        progress: Called after each round.
        settings: As for `slackwater.train`.
    """
    chosen = make_policy(policy)
    options = PolicySettings(
        policy=policy,
        probes=probes,
        probe_samples=probe_samples,
        speeds=None if speeds is None else tuple(float(speed) for speed in speeds),
    )
    threads = settings.pop("threads", None)
    full = Settings(
        **{"aggregator": chosen.aggregator, **settings},
        threads=torch.get_num_threads() if threads is None else threads,
    )
    plan = empty_plan(problem, policy)
    _check(problem, task, full, options, out)
    check_model(task, full)
    run = Run.create(
        out,
        plan=plan.to_dict(),
        budget_kg=problem.budget_kg,
        settings=full.to_dict() | asdict(options),
        task=described(task),
        kind="simulated",
    )
    return _carry_out(run, plan, chosen, options, task, full, progress)


def resume(
    out: str | Path, *, task: Task | None = None, progress: Callback | None = None, from_last_good: bool = False
) -> Result:
    """Continue a run by a policy to the same bits as without the stop; a finished run returns its result again.

    `from_last_good` continues from the previous checkpoint if the last one is damaged.
    """
    run = Run.open(out)
    try:
        own = {field.name for field in fields(PolicySettings)}
        if "policy" not in run.settings:
            raise ScenarioError(
                f"The run in {out} follows a plan, not a policy. Continue it with: slackwater resume {out}"
            )
        kept = {key: value for key, value in run.settings.items() if key in own}
        speeds = kept.pop("speeds", None)
        options = PolicySettings(**kept, speeds=None if speeds is None else tuple(speeds))
        settings = Settings.from_dict({key: value for key, value in run.settings.items() if key not in own})
        task = rebuilt(run) if task is None else task
        plan = plan_of(run)
        _check(plan.problem, task, settings, options, out)
        check_same_data(run, task)
        if from_last_good:
            run.fall_back()
        run.set_status("running")
    except BaseException:
        run.close()
        raise
    return _carry_out(run, plan, make_policy(options.policy), options, task, settings, progress)


def _carry_out(
    run: Run,
    plan: Plan,
    policy: Policy,
    options: PolicySettings,
    task: Task,
    settings: Settings,
    progress: Callback | None,
) -> Result:
    together = settings.devices_per_slot
    source = PolicySource(
        plan,
        policy,
        options,
        samples=[len(samples) for samples in task.clients],
        work=settings.work,
        seed=settings.seed,
        note="" if together is None else f"{together} devices together",
    )
    notes: tuple[str, ...] = ()
    if policy.needs is not None and options.probes == "free":
        notes = (
            f"The probes of the policy {options.policy!r} on clients that do not train ({policy.needs}) are not charged.",
        )
    result = carry_out(run, source, task, settings, notes, progress)
    if result.history:
        return result
    untrained = (
        f"No client trained: the budget of {result.budget_kg:g} kg does not pay the first round of the policy {options.policy!r}. "
        "Raise budget_kg, or use a policy that considers it."
    )
    return replace(result, notes=(*result.notes, untrained))


def _check(problem: Problem, task: Task, settings: Settings, options: PolicySettings, out: str | Path | None) -> None:
    count = len(problem.fleet)
    if len(task.clients) != count:
        raise ScenarioError(
            f"The scenario has {count} clients and the task {task.name!r} has data for {len(task.clients)}. Make the "
            f"task with clients={count}."
        )
    if options.speeds is not None and len(options.speeds) != count:
        raise ScenarioError(f"speeds has {len(options.speeds)} entries, but there are {count} clients.")
    if bool(task.devices) != (settings.devices_per_slot is not None):
        raise ScenarioError("devices_per_slot and a task with devices belong together: give both or neither.")
    if settings.averaging is not None:
        raise ScenarioError(
            "averaging needs the number of rounds in advance, which a policy does not know. Leave it out."
        )
    if settings.tensorboard and out is None:
        raise ScenarioError("tensorboard=True needs a folder to write to: name one with --out (out= in Python).")
