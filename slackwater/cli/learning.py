"""Commands that train: train by a plan, resume, and the baseline without slack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from slackwater import learning
from slackwater.cli import lab
from slackwater.cli.live import resume_live
from slackwater.cli.options import (
    chart_option,
    console,
    data_option,
    draw,
    fill_option,
    filled,
    json_option,
    option,
    print_json,
    say,
    with_options,
)
from slackwater.cli.planning import read_problem, scenario_argument
from slackwater.cli.progress import Bar
from slackwater.errors import InfeasibleError
from slackwater.learning.fetch import progress_on_stderr
from slackwater.ledger.run import FILE, Run
from slackwater.live.folder import is_live
from slackwater.planning.baseline import SOLVER as NO_SLACK
from slackwater.planning.baseline import no_slack_plan
from slackwater.planning.plan import MEMORY_DTYPES, Plan
from slackwater.planning.problem import Problem
from slackwater.planning.storage import plan_from_dict
from slackwater.report import training as views

if TYPE_CHECKING:
    from slackwater.learning.result import Result
    from slackwater.learning.task import Task

BASELINE = "baseline"
"""Folder in a run's folder, there from the beginning if a baseline is to be trained: resume knows by it."""
_TITLE = "no slack"
_EVALUATIONS = 12
"""In a run, unless told: enough for a curve, and little beside the training."""

_OF_DATA = (
    option(
        "--task-data", metavar="FOLDER", help="Where the data set's files are; else the cache, else they are fetched."
    ),
    option("--partition", help="dirichlet (unless told), iid, shards or quantity."),
    option("--beta", type=float, help="Of the partition: smaller is more uneven; 0.5 unless told."),
    option("--seed", type=int, default=0, help="Of partition, model and batches."),
)
_OF_TRAINING = (
    option("--task", default="digits", help="digits, mnist, fashion_mnist, cifar10, or a registered one."),
    *_OF_DATA,
    option("--model", metavar="NAME", help="Model variant of the task, like paper, paper-large or mlp."),
    option("--devices", type=int, metavar="N", help="Cross-device: devices in the region of each client."),
    option("--devices-per-slot", type=int, metavar="N", help="Cross-device: devices that train in a scheduled slot."),
    option(
        "--device-kwh",
        type=float,
        metavar="KWH",
        help="Cross-device: energy of one device in a slot; then it is checked that the plan pays for all that train.",
    ),
    option("--local-steps", type=int, default=30, help="Local SGD steps a round (the paper's tau)."),
    option("--local-epochs", type=int, metavar="N", help="Local epochs a round, instead of steps."),
    option("--batch-size", type=int, default=128, help="Samples a step."),
    option("--lr", type=float, default=0.1, help="Local learning rate."),
    option("--weight-decay", type=float, default=5e-4, help="Of the local SGD."),
    option(
        "--eval-every",
        type=int,
        metavar="ROUNDS",
        help=f"Rounds between evaluations, 0: only at the end; without it about {_EVALUATIONS} are made in a run.",
    ),
    option("--server", default="plain", help="Server optimiser: plain, momentum or adam."),
    option("--server-lr", type=float, metavar="RATE", help="Of the server optimiser."),
    option(
        "--memory-dtype",
        type=click.Choice(MEMORY_DTYPES),
        default=MEMORY_DTYPES[0],
        help="Type of the updates that the aggregator stores: float16 or bfloat16 halves memory and disk space.",
    ),
    option(
        "--averaging",
        type=float,
        metavar="N",
        help="Average the models of the last N rounds (below 1: that share of them).",
    ),
    option("--device", default="cpu", help="Where to train, like cpu or cuda."),
    option("--threads", type=int, metavar="N", help="Processor threads in all."),
    option("--tensorboard", is_flag=True, help="Write TensorBoard event files into the run folder too."),
    option(
        "--out",
        type=click.Path(file_okay=False),
        metavar="DIR",
        callback=lambda *given: filled(*given) and Path(given[-1]),
        help="Run folder; it can be resumed.",
    ),
)
_OF_POLICY = ("policy", "probes", "probe_samples", "speeds")
"""What the settings of a run by a policy hold beside those of training."""
_TASK_CALLS = {
    "task_data": "data",
    "model": "model",
    "partition": "partition",
    "beta": "beta",
    "devices": "devices_per_client",
}
"""What a task calls options of the command line."""


data_options, training_options = with_options(_OF_DATA), with_options(_OF_TRAINING)


@click.command()
@click.argument("plan", type=click.Path(path_type=Path))
@option(
    "--aggregator",
    help="How updates are combined before the window, like ufedavg; by default as the plan recommends, else echo.",
)
@option(
    "--policy",
    metavar="NAME",
    help="Choose online who trains, like fedzero, on the plan's problem instead of by its schedule; see docs/rivals.md.",
)
@option("--free-probes", is_flag=True, help="Of a policy: do not charge what clients compute that do not train.")
@option("--no-baseline", is_flag=True, help="Do not train the no-slack baseline at the same budget beside it.")
@training_options
@chart_option("accuracy against kg")
@json_option
def train(
    plan: Path,
    aggregator: str | None,
    policy: str | None,
    free_probes: bool,
    no_baseline: bool,
    out: Path | None,
    chart: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Train by a PLAN (plan.json), every gram charged, and compare with training without slack."""
    schedule = Plan.load(plan)
    task = make_task(options.pop("task"), len(schedule.problem.fleet), options)
    settings = {key: value for key, value in options.items() if key not in _TASK_CALLS}
    own = settings | {"eval_every": _every(schedule, settings["eval_every"])}
    with _place_for_baseline(None if no_baseline else out), Bar("train") as bar:
        if policy is None:
            chosen = aggregator or schedule.aggregator
            results = {chosen: learning.train(schedule, task, aggregator=chosen, out=out, progress=bar, **own)}
        else:
            if aggregator is not None:
                own["aggregator"] = aggregator
            own |= {"policy": policy, "probes": "free" if free_probes else "charged"}
            results = {policy: lab.load("policies").train(schedule.problem, task, out=out, progress=bar, **own)}
    with _shown(results, schedule.problem, chart, as_json):
        if not no_baseline:
            results |= _beside(schedule.problem, task, settings, out)


@click.command()
@scenario_argument
@training_options
@chart_option("accuracy against kg")
@data_option
@fill_option
@json_option
def baseline(
    scenario: Path,
    out: Path | None,
    chart: Path | None,
    data: str | None,
    fill_hours: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Train a SCENARIO without slack: everyone, every round, until the budget is spent (FedAvg)."""
    problem = read_problem(scenario, data, fill_hours)
    task = make_task(options.pop("task"), len(problem.fleet), options)
    settings = {key: value for key, value in options.items() if key not in _TASK_CALLS}
    results = {_TITLE: _without_slack(problem, task, settings, out)}
    with _shown(results, problem, chart, as_json):
        pass


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@option("--task-data", metavar="FOLDER", help="Where the data set's files are now, if they have moved.")
@option("--from-last-good", is_flag=True, help="If the last checkpoint is damaged, continue from the one before it.")
@option(
    "--trust",
    is_flag=True,
    help="Resume a live run that was not begun by you on this machine, or whose app has changed; runs the app's code.",
)
@chart_option("accuracy against kg")
@json_option
def resume(
    run: Path, task_data: str | None, from_last_good: bool, trust: bool, chart: Path | None, as_json: bool
) -> None:
    """Go on with a RUN that was stopped or killed; one that is done shows its result again."""
    run = run.parent if run.name == FILE else run
    if run.name == BASELINE and (run.parent / FILE).is_file():
        run = run.parent  # what train began together is shown together
    if is_live(run):
        resume_live(run, as_json, from_last_good=from_last_good, trust=trust)
        return
    with Run.open(run, read_only=True) as begun:
        plan = plan_from_dict(begun.plan, f"The plan of the run in {run}")
        settings, status = begun.settings, begun.status
    if status == "done":
        say(f"the run in {run} is done; its result:")
    title = _TITLE if plan.solver == NO_SLACK else str(settings.get("policy", settings["aggregator"]))
    with Bar(title if title == _TITLE else "train") as bar:
        go_on = lab.load("policies").resume if "policy" in settings else learning.resume
        results = {title: go_on(run, task=_moved(run, task_data), progress=bar, from_last_good=from_last_good)}
    with _shown(results, plan.problem, chart, as_json):
        if (run / BASELINE / FILE).is_file():
            beside = run / BASELINE
            with Bar(_TITLE) as bar:
                results[_TITLE] = learning.resume(
                    beside, task=_moved(beside, task_data), progress=bar, from_last_good=from_last_good
                )
        elif (run / BASELINE).is_dir():  # the run was stopped before its baseline began
            from slackwater.learning.fitting import rebuilt

            automatic = "policy" not in settings and settings["eval_every"] == _every(plan, None)
            same = {key: value for key, value in settings.items() if key not in ("aggregator", *_OF_POLICY)}
            results |= _beside(
                plan.problem, rebuilt(begun, task_data), same | ({"eval_every": None} if automatic else {}), run
            )


def _moved(run: Path, task_data: str | None) -> Task | None:
    """Return the run's task with its files from another folder; None to take it as it was."""
    if task_data is None:
        return None
    from slackwater.learning.fitting import rebuilt

    with Run.open(run, read_only=True) as begun:
        return rebuilt(begun, task_data)


def make_task(name: str, clients: int, options: Mapping[str, Any]) -> Task:
    """Return the task that the command line asks for, with the task's own defaults."""
    takes = learning.tasks.option_names(name)
    offered = {"seed": options["seed"], "progress": progress_on_stderr}
    asked = {call: options[key] for key, call in _TASK_CALLS.items() if options.get(key) is not None}
    return learning.tasks.make(
        name, clients=clients, **{key: value for key, value in offered.items() if key in takes}, **asked
    )


def _every(plan: Plan, asked: int | None) -> int:
    """Return the rounds between evaluations."""
    rounds = int(np.count_nonzero(plan.matrix.any(axis=0)))
    return max(1, round(rounds / _EVALUATIONS)) if asked is None else asked


def _without_slack(problem: Problem, task: Task, settings: dict[str, Any], out: Path | None) -> Result:
    every = _every(no_slack_plan(problem), settings["eval_every"])
    with Bar(_TITLE) as bar:
        return learning.baseline(problem, task, out=out, progress=bar, **settings | {"eval_every": every})


def _beside(problem: Problem, task: Task, settings: dict[str, Any], out: Path | None) -> dict[str, Result]:
    """Train the no-slack run in a run's folder; if there cannot be one, say why."""
    try:
        return {_TITLE: _without_slack(problem, task, settings, out and out / BASELINE)}
    except (InfeasibleError, learning.TrainingDiverged) as error:
        say(f"no baseline to compare with: {error}")
        return {}


@contextmanager
def _place_for_baseline(out: Path | None) -> Iterator[None]:
    """Make the baseline's empty folder, and remove it if the run is refused."""
    if out is None or (out / FILE).exists():
        yield
        return
    place = out / BASELINE
    with suppress(OSError):  # what is wrong with the folder is said when the run is made in it
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        yield
    finally:
        if not (out / FILE).exists():
            with suppress(OSError):
                place.rmdir()
                out.rmdir()


@contextmanager
def _shown(results: dict[str, Result], problem: Problem, chart: Path | None, as_json: bool) -> Iterator[None]:
    """Show the results when the rest is done; if that is stopped, what there is."""
    try:
        yield
    finally:
        synthetic = problem.traces.synthetic
        draw(chart, lambda: views.accuracy_chart(results, synthetic=synthetic))
        if as_json:
            print_json({name: views.to_dict(result) for name, result in results.items()})
        else:
            console().print(views.summary(results, synthetic=synthetic))
