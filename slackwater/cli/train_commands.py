"""Commands that train: train, resume, baseline and partition."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from slackwater import training
from slackwater.charts import result_charts as views
from slackwater.charts import style
from slackwater.charts.figures import counts_chart
from slackwater.charts.style import kilograms, printable
from slackwater.cli.options import (
    chart_option,
    console,
    data_option,
    draw,
    eval_every_option,
    evaluation_interval,
    fill_option,
    json_option,
    lab_module,
    no_run_in,
    option,
    out_option,
    precision_option,
    print_json,
    say,
    task_data_option,
    task_option,
    with_options,
)
from slackwater.cli.plan_commands import read_problem, scenario_argument
from slackwater.cli.run_commands import resume_live
from slackwater.errors import InfeasibleError, ScenarioError
from slackwater.lazy import require
from slackwater.ledger.run import FILE, Run
from slackwater.live.folder import is_live
from slackwater.planning.goals import within_budget
from slackwater.planning.plan import MEMORY_DTYPES, Plan
from slackwater.planning.problem import Problem
from slackwater.planning.schedule import NO_SLACK, no_slack_plan
from slackwater.planning.storage import plan_from_dict
from slackwater.training.data import progress_on_stderr
from slackwater.units import iso

if TYPE_CHECKING:
    from slackwater.training.loop import Progress as Step
    from slackwater.training.loop import Result
    from slackwater.training.task import Task

_NAMED = 4


class _Lines(Progress):
    """A progress bar with a line of text below it."""

    below = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yield the bar and the line below it."""
        yield from super().get_renderables()
        yield Text(self.below, no_wrap=True, overflow="ellipsis")


class Bar:
    """Show slot, clients, kg CO2e, loss and score: as a bar on a terminal, else as a line at each evaluation."""

    def __init__(self, title: str, note: str = "") -> None:
        """Start a bar; `note` is said once, after the first round, when everything asked for has been checked."""
        self.title, self.note = title, note
        self.lines: _Lines | None = None
        self.task = TaskID(0)
        self.score: float | None = None

    def __enter__(self) -> Bar:
        if sys.stderr.isatty():
            self.lines = _Lines(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=16),
                MofNCompleteColumn(),
                TimeRemainingColumn(compact=True),
                TextColumn("{task.fields[state]}", markup=False),
                console=Console(stderr=True),
            )
            self.lines.start()
            self.task = self.lines.add_task(self.title, total=None, state="")
        return self

    def __exit__(self, *_: object) -> None:
        if self.lines is not None:
            self.lines.stop()

    def __call__(self, step: Step) -> None:
        """Show a finished round."""
        done = step.done
        if self.note:
            say(self.note)
            self.note = ""
        if done.accuracy is not None:
            self.score = done.accuracy
        reached = [
            f"{done.spent_kg:.3f} of {kilograms(step.budget_kg)} kg",
            f"loss {done.loss:.3f}",
            *([f"{step.metric.name} {step.metric.text(self.score, 1)}"] if self.score is not None else []),
        ]
        window = ", fine-tuning" if done.in_window else ""
        slot = f"slot {done.slot}, {iso(done.slot_start)}{window}: {_who(done.participants)}"
        if self.lines is not None:
            self.lines.below = slot
            self.lines.update(self.task, completed=done.number + 1, total=step.rounds, state="  ".join(reached))
        elif done.accuracy is not None:
            say("  ".join([f"{self.title}: round {done.number + 1} of {step.rounds}", *reached, slot]))


def _who(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(printable(name) for name in names[:_NAMED]) + more


BASELINE = "baseline"
"""Folder inside a run folder. It exists from the start if a baseline is to be trained, so that resume knows."""
_TITLE = "no slack"
_NOT_KEPT = "without --out nothing is kept: no model, no ledger, no report, and the run cannot be resumed"

_OF_DATA = (
    task_data_option,
    option(
        "--partition",
        metavar="NAME",
        help="How the data is split over clients: dirichlet, iid, shards or quantity. Default: dirichlet.",
    ),
    option("--beta", type=float, help="Evenness of the partition; smaller is more uneven. Default: 0.5."),
    option("--seed", type=int, default=0, help="Random seed for partition, model and batches."),
)
_OF_TRAINING = (
    task_option,
    *_OF_DATA,
    option(
        "--model", metavar="NAME", help="Model of the task, such as paper, paper-large or mlp. Default: the task's."
    ),
    option("--devices", type=int, metavar="N", help="Cross-device: number of devices in the region of each client."),
    option(
        "--devices-per-slot",
        type=int,
        metavar="N",
        help="Cross-device: number of devices that train in a scheduled slot.",
    ),
    option(
        "--device-kwh",
        type=float,
        metavar="KWH",
        help="Cross-device: energy of one device in a slot, in kWh. Checks that the plan pays for all devices that train.",
    ),
    option("--local-steps", type=int, default=30, help="Local SGD steps in a round (the paper's tau)."),
    option("--local-epochs", type=int, metavar="N", help="Local epochs in a round, instead of steps."),
    option("--batch-size", type=int, default=128, help="Samples in a local step."),
    option("--lr", type=float, default=0.1, help="Local learning rate."),
    option("--weight-decay", type=float, default=5e-4, help="Weight decay of the local SGD."),
    eval_every_option(),
    option("--server", default="plain", help="Server optimiser: plain, momentum or adam."),
    option(
        "--server-lr",
        type=float,
        metavar="RATE",
        help="Learning rate of the server optimiser. Default: the optimiser's.",
    ),
    option(
        "--memory-dtype",
        type=click.Choice(MEMORY_DTYPES),
        default=MEMORY_DTYPES[0],
        help="Number type of the updates that the aggregator stores. float16 and bfloat16 need half the memory and disk.",
    ),
    option(
        "--averaging",
        type=float,
        metavar="N",
        help="Average the models of the last N rounds; below 1, of that share of all rounds. Default: no averaging.",
    ),
    option("--device", default="cpu", help="Device to train on, such as cpu or cuda."),
    precision_option,
    option("--threads", type=int, metavar="N", help="Total number of processor threads. Default: PyTorch's."),
    option("--tensorboard", is_flag=True, help="Also write TensorBoard event files into the run folder."),
    out_option(
        "Run folder, for `slackwater resume` and `report`. A folder that holds a run is an error. Default: none."
    ),
)
_OF_POLICY = ("policy", "probes", "probe_samples", "speeds")
"""Settings of a run by a policy that are not settings of training."""
_TASK_CALLS = {
    "task_data": "data",
    "model": "model",
    "partition": "partition",
    "beta": "beta",
    "devices": "devices_per_client",
}
"""Option of the command line -> option of the task."""


data_options, training_options = with_options(_OF_DATA), with_options(_OF_TRAINING)


@click.command()
@click.argument("plan", type=click.Path(path_type=Path))
@option(
    "--aggregator",
    help="How to combine updates before the window, such as ufedavg. Default: as the plan recommends, else echo.",
)
@option(
    "--policy",
    metavar="NAME",
    help="Let an online policy such as fedzero choose the clients, instead of the plan's schedule. See docs/research/rivals.md.",
)
@option("--free-probes", is_flag=True, help="With --policy: do not charge the probes of clients that do not train.")
@option("--no-baseline", is_flag=True, help="Do not train the no-slack baseline at the same budget.")
@training_options
@chart_option("the score against kg CO2e")
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
    """Train by a PLAN, and compare with the no-slack baseline.

    PLAN is a plan.json, or its folder. The ledger charges the emissions of every client against the budget.
    """
    require("torch")
    no_run_in(out)
    schedule = Plan.load(plan)
    task = make_task(options.pop("task"), schedule.problem.fleet.names, options)
    settings = {key: value for key, value in options.items() if key not in _TASK_CALLS}
    own = settings | {"eval_every": _every(schedule, settings["eval_every"])}
    with _place_for_baseline(None if no_baseline else out), Bar("train", "" if out else _NOT_KEPT) as bar:
        if policy is None:
            chosen = aggregator or schedule.aggregator
            results = {chosen: training.train(schedule, task, aggregator=chosen, out=out, progress=bar, **own)}
        else:
            if aggregator is not None:
                own["aggregator"] = aggregator
            own |= {"policy": policy, "probes": "free" if free_probes else "charged"}
            results = {policy: lab_module("policies").train(schedule.problem, task, out=out, progress=bar, **own)}
    with _shown(results, chart, as_json):
        if not no_baseline:
            results |= _beside(schedule.problem, task, settings, out)


@click.command()
@scenario_argument
@training_options
@chart_option("the score against kg CO2e")
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
    """Train a SCENARIO without slack until its budget is spent.

    All clients train in every slot from the start, with FedAvg.
    """
    require("torch")
    no_run_in(out)
    problem = within_budget(read_problem(scenario, data, fill_hours))
    task = make_task(options.pop("task"), problem.fleet.names, options)
    settings = {key: value for key, value in options.items() if key not in _TASK_CALLS}
    results = {_TITLE: _without_slack(problem, task, settings, out, "" if out else _NOT_KEPT)}
    with _shown(results, chart, as_json):
        pass


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@option(
    "--task-data",
    metavar="FOLDER",
    help="Folder of the data set, if it has moved. Default: as at the start of the run.",
)
@option(
    "--task",
    metavar="NAME",
    help="Your own task, as file.py:function or package.module:function, if the run trains one: its code runs only if you "
    "name it.",
)
@option(
    "--from-last-good",
    is_flag=True,
    help="Continue from the checkpoint before the last one, if the last one is damaged.",
)
@option(
    "--trust",
    is_flag=True,
    help="Resume a live run that somebody else or another machine began, or whose app has changed. This runs the app's code.",
)
@chart_option("the score against kg CO2e")
@json_option
def resume(
    run: Path,
    task_data: str | None,
    task: str | None,
    from_last_good: bool,
    trust: bool,
    chart: Path | None,
    as_json: bool,
) -> None:
    """Continue a RUN that was stopped, or show its result.

    RUN is the run folder. No slot is trained or charged twice.
    """
    run = run.parent if run.name == FILE else run
    if run.name == BASELINE and (run.parent / FILE).is_file():
        run = run.parent  # a run and its baseline are shown together
    if is_live(run):
        resume_live(run, as_json, from_last_good=from_last_good, trust=trust, task=task)
        return
    with Run.open(run, read_only=True) as begun:
        plan = plan_from_dict(begun.plan, f"The plan of the run in {run}")
        settings, status = begun.settings, begun.status
    if status == "done":
        say(f"the run in {run} is done. Its result:")
    title = _TITLE if plan.solver == NO_SLACK else str(settings.get("policy", settings["aggregator"]))
    with Bar(title if title == _TITLE else "train") as bar:
        resumed = lab_module("policies").resume if "policy" in settings else training.resume
        results = {
            title: resumed(run, task=_rebuilt(run, task_data, task), progress=bar, from_last_good=from_last_good)
        }
    with _shown(results, chart, as_json):
        if (run / BASELINE / FILE).is_file():
            beside = run / BASELINE
            with Bar(_TITLE) as bar:
                results[_TITLE] = training.resume(
                    beside, task=_rebuilt(beside, task_data, task), progress=bar, from_last_good=from_last_good
                )
        elif (run / BASELINE).is_dir():  # the run was stopped before its baseline began
            from slackwater.training.settings import rebuilt

            automatic = "policy" not in settings and settings["eval_every"] == _every(plan, None)
            same = {key: value for key, value in settings.items() if key not in ("aggregator", *_OF_POLICY)}
            results |= _beside(
                plan.problem, rebuilt(begun, task_data, task), same | ({"eval_every": None} if automatic else {}), run
            )


def _rebuilt(run: Path, task_data: str | None, task: str | None) -> Task | None:
    """Return the run's task with its data or its code from another place, or None to use the original ones."""
    if task_data is None and task is None:
        return None
    from slackwater.training.settings import rebuilt

    with Run.open(run, read_only=True) as begun:
        return rebuilt(begun, task_data, task)


def make_task(name: str, names: Sequence[str], options: Mapping[str, Any]) -> Task:
    """Return the task that the options ask for, with the task's own defaults."""
    asked = {call: options[key] for key, call in _TASK_CALLS.items() if options.get(key) is not None}
    return training.tasks.make_for(
        name, [str(one) for one in names], seed=options["seed"], progress=progress_on_stderr, **asked
    )


def _every(plan: Plan, asked: int | None) -> int:
    """Return the rounds between evaluations of a plan."""
    return evaluation_interval(int(np.count_nonzero(plan.matrix.any(axis=0))), asked)


def _without_slack(problem: Problem, task: Task, settings: dict[str, Any], out: Path | None, note: str = "") -> Result:
    every = _every(no_slack_plan(problem), settings["eval_every"])
    with Bar(_TITLE, note) as bar:
        return training.baseline(problem, task, out=out, progress=bar, **settings | {"eval_every": every})


def _beside(problem: Problem, task: Task, settings: dict[str, Any], out: Path | None) -> dict[str, Result]:
    """Train the no-slack baseline inside a run folder; if that is impossible, print why."""
    try:
        return {_TITLE: _without_slack(problem, task, settings, out and out / BASELINE)}
    except (InfeasibleError, training.TrainingDiverged) as error:
        say(f"There is no baseline to compare with: {error}")
        return {}


@contextmanager
def _place_for_baseline(out: Path | None) -> Iterator[None]:
    """Create the empty folder of the baseline, and remove it if the run does not start."""
    if out is None or (out / FILE).exists():
        yield
        return
    place = out / BASELINE
    with suppress(OSError):  # creating the run reports what is wrong with the folder
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        yield
    finally:
        if not (out / FILE).exists():
            with suppress(OSError):
                place.rmdir()
                out.rmdir()


@contextmanager
def _shown(results: dict[str, Result], chart: Path | None, as_json: bool) -> Iterator[None]:
    """Show the results at the end, or those that exist if the rest is stopped."""
    try:
        yield
    finally:
        draw(chart, lambda: views.score_chart(results))
        if as_json:
            print_json({name: views.to_dict(result) for name, result in results.items()})
        else:
            console().print(views.summary(results))


_MOST_ROWS = 30


@click.command()
@click.argument("task")
@option("--clients", type=int, default=7, help="Number of clients that share the training data.")
@data_options
@chart_option("the number of samples by client and class")
@json_option
def partition(task: str, clients: int, chart: Path | None, as_json: bool, **options: Any) -> None:
    """Show how the data of a TASK is split over clients.

    TASK is a data set such as digits or mnist.
    """
    require("torch")
    made = make_task(task, [f"client-{number}" for number in range(1, clients + 1)], options)
    counts = _counts(made)
    draw(chart, lambda: counts_chart(counts, title=f"{made.name}: {_how(made)}"))
    if as_json:
        held = {"samples": counts.sum(axis=1).tolist(), "label_counts": counts.tolist()}
        print_json({**made.record, "task": made.name, "clients": clients, "seed": options["seed"], **held})
        return
    screen = console()
    screen.print(_table(counts))
    if len(counts) > _MOST_ROWS:
        screen.print(Text(f"... and {len(counts) - _MOST_ROWS:,} more clients. See all with --json."))
    screen.print(Text(f"{made.name}: {counts.sum():,} samples, {_how(made)}; columns are classes.", style="dim"))


def _counts(task: Task) -> NDArray[np.int64]:
    """Return the number of samples by [client, class], counted from the data, for any task."""
    targets = [samples.take(slice(None))[1].detach().cpu().numpy() for samples in task.clients]
    labels = [y.reshape(-1).astype(np.int64) for y in targets]  # also the 0.0 and 1.0 of a model with one output
    if any(
        len(y) != len(given) or y.min(initial=0) < 0 or not np.array_equal(y, given.reshape(-1))
        for y, given in zip(labels, targets, strict=True)
    ):
        raise ScenarioError(f"The targets of task {task.name!r} are not classes, so they cannot be counted by class.")
    classes = 1 + max(int(y.max(initial=0)) for y in labels)
    return np.array([np.bincount(y, minlength=classes) for y in labels], dtype=np.int64)


def _how(task: Task) -> str:
    """Return how the data was split, as text."""
    record = task.record
    parts = [str(record["partition"])] if record.get("partition") else []
    parts += [f"{key} {record[key]}" for key in ("beta", "seed") if record.get(key) is not None]
    return ", ".join([*parts, f"{len(task.clients)} clients"])


def _table(counts: NDArray[np.int64]) -> Table:
    table = style.table("|".join(f">{name}" for name in ("client", "samples", *range(counts.shape[1]))))
    for client, row in enumerate(counts[:_MOST_ROWS], start=1):
        table.add_row(str(client), f"{row.sum():,}", *(f"{n:,}" if n else "·" for n in row.tolist()))
    total = counts.sum(axis=0)
    table.add_row("all", f"{total.sum():,}", *(f"{n:,}" for n in total.tolist()), style="bold")
    return table
