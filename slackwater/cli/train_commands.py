"""Commands that train: train by a plan, resume, the baseline without slack, and how data is split."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
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
    fill_option,
    filled,
    json_option,
    lab_module,
    option,
    print_json,
    say,
    with_options,
)
from slackwater.cli.plan_commands import read_problem, scenario_argument
from slackwater.cli.run_commands import resume_live
from slackwater.errors import InfeasibleError, ScenarioError
from slackwater.ledger.run import FILE, Run
from slackwater.live.folder import is_live
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
    """The bar, and below it what would not fit beside it."""

    below = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        """Return what is drawn."""
        yield from super().get_renderables()
        yield Text(self.below, no_wrap=True, overflow="ellipsis")


class Bar:
    """Slot and its time, who trains, kg spent, loss, accuracy: live on a terminal, a line at each evaluation elsewhere."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.lines: _Lines | None = None
        self.task = TaskID(0)
        self.accuracy: float | None = None

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
        """Show a round that is done."""
        done = step.done
        if done.accuracy is not None:
            self.accuracy = done.accuracy
        reached = [
            f"{done.spent_kg:.3f} of {kilograms(step.budget_kg)} kg",
            f"loss {done.loss:.3f}",
            *([f"accuracy {self.accuracy:.1%}"] if self.accuracy is not None else []),
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
    help="Choose online who trains, like fedzero, on the plan's problem instead of by its schedule; see docs/research/rivals.md.",
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
            results = {chosen: training.train(schedule, task, aggregator=chosen, out=out, progress=bar, **own)}
        else:
            if aggregator is not None:
                own["aggregator"] = aggregator
            own |= {"policy": policy, "probes": "free" if free_probes else "charged"}
            results = {policy: lab_module("policies").train(schedule.problem, task, out=out, progress=bar, **own)}
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
        go_on = lab_module("policies").resume if "policy" in settings else training.resume
        results = {title: go_on(run, task=_moved(run, task_data), progress=bar, from_last_good=from_last_good)}
    with _shown(results, plan.problem, chart, as_json):
        if (run / BASELINE / FILE).is_file():
            beside = run / BASELINE
            with Bar(_TITLE) as bar:
                results[_TITLE] = training.resume(
                    beside, task=_moved(beside, task_data), progress=bar, from_last_good=from_last_good
                )
        elif (run / BASELINE).is_dir():  # the run was stopped before its baseline began
            from slackwater.training.settings import rebuilt

            automatic = "policy" not in settings and settings["eval_every"] == _every(plan, None)
            same = {key: value for key, value in settings.items() if key not in ("aggregator", *_OF_POLICY)}
            results |= _beside(
                plan.problem, rebuilt(begun, task_data), same | ({"eval_every": None} if automatic else {}), run
            )


def _moved(run: Path, task_data: str | None) -> Task | None:
    """Return the run's task with its files from another folder; None to take it as it was."""
    if task_data is None:
        return None
    from slackwater.training.settings import rebuilt

    with Run.open(run, read_only=True) as begun:
        return rebuilt(begun, task_data)


def make_task(name: str, clients: int, options: Mapping[str, Any]) -> Task:
    """Return the task that the command line asks for, with the task's own defaults."""
    takes = training.tasks.option_names(name)
    offered = {"seed": options["seed"], "progress": progress_on_stderr}
    asked = {call: options[key] for key, call in _TASK_CALLS.items() if options.get(key) is not None}
    return training.tasks.make(
        name, clients=clients, **{key: value for key, value in offered.items() if key in takes}, **asked
    )


def _every(plan: Plan, asked: int | None) -> int:
    """Return the rounds between evaluations."""
    rounds = int(np.count_nonzero(plan.matrix.any(axis=0)))
    return max(1, round(rounds / _EVALUATIONS)) if asked is None else asked


def _without_slack(problem: Problem, task: Task, settings: dict[str, Any], out: Path | None) -> Result:
    every = _every(no_slack_plan(problem), settings["eval_every"])
    with Bar(_TITLE) as bar:
        return training.baseline(problem, task, out=out, progress=bar, **settings | {"eval_every": every})


def _beside(problem: Problem, task: Task, settings: dict[str, Any], out: Path | None) -> dict[str, Result]:
    """Train the no-slack run in a run's folder; if there cannot be one, say why."""
    try:
        return {_TITLE: _without_slack(problem, task, settings, out and out / BASELINE)}
    except (InfeasibleError, training.TrainingDiverged) as error:
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


_MOST_ROWS = 30


@click.command()
@click.argument("task")
@option("--clients", type=int, default=7, help="Clients that share the training data.")
@data_options
@chart_option("who holds what")
@json_option
def partition(task: str, clients: int, chart: Path | None, as_json: bool, **options: Any) -> None:
    """Show who holds what when the data of a TASK (like digits or mnist) is split over clients."""
    made = make_task(task, clients, options)
    counts = _counts(made)
    draw(chart, lambda: counts_chart(counts, title=f"{made.name}: {_how(made)}"))
    if as_json:
        held = {"samples": counts.sum(axis=1).tolist(), "label_counts": counts.tolist()}
        print_json({**made.record, "task": made.name, "clients": clients, "seed": options["seed"], **held})
        return
    screen = console()
    screen.print(_table(counts))
    if len(counts) > _MOST_ROWS:
        screen.print(Text(f"... and {len(counts) - _MOST_ROWS:,} more clients; --json has all."))
    screen.print(Text(f"{made.name}: {counts.sum():,} samples, {_how(made)}; columns are classes.", style="dim"))


def _counts(task: Task) -> NDArray[np.int64]:
    """Return [client, class], counted from the data, so that it holds for tasks of other packages too."""
    labels = [samples.y.detach().cpu().numpy() for samples in task.clients]
    if any(y.ndim != 1 or y.dtype.kind not in "iu" or y.min(initial=0) < 0 for y in labels):
        raise ScenarioError(
            f"The targets of task {task.name!r} are not classes, so there is nothing to count by class."
        )
    classes = 1 + max(int(y.max(initial=0)) for y in labels)
    return np.array([np.bincount(y, minlength=classes) for y in labels], dtype=np.int64)


def _how(task: Task) -> str:
    """Return what is known of how the data was split."""
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
