"""Commands that train: train by a plan, resume, and the baseline without slack."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from slackwater import learning
from slackwater.cli.options import chart_option, console, data_option, fill_option, json_option, print_json, say
from slackwater.cli.planning import read_problem, scenario_argument
from slackwater.errors import InfeasibleError, MissingExtraError
from slackwater.planning.plan import Plan
from slackwater.planning.problem import Problem
from slackwater.report import training as views
from slackwater.report.canvas import save
from slackwater.units import iso

if TYPE_CHECKING:
    from slackwater.learning.result import Progress as Step
    from slackwater.learning.result import Result

F = TypeVar("F", bound=Callable[..., Any])
BASELINE = "baseline"

_OPTIONS = (
    click.option(
        "--task",
        default="digits",
        show_default=True,
        help="digits, mnist, fashion_mnist, cifar10, or a registered one.",
    ),
    click.option(
        "--task-data", metavar="FOLDER", help="Where the data set's files are; else the cache, else they are fetched."
    ),
    click.option("--model", metavar="NAME", help="Model variant of the task, like paper, paper-large or mlp."),
    click.option("--partition", default="dirichlet", show_default=True, help="dirichlet, iid, shards or quantity."),
    click.option(
        "--beta", type=float, default=0.5, show_default=True, help="Dirichlet concentration: smaller is more skewed."
    ),
    click.option(
        "--devices", type=int, default=0, metavar="N", help="Cross-device: devices in the region of each client."
    ),
    click.option(
        "--devices-per-slot", type=int, metavar="N", help="Cross-device: devices that train in a scheduled slot."
    ),
    click.option(
        "--local-steps", type=int, default=30, show_default=True, help="Local SGD steps a round (the paper's tau)."
    ),
    click.option("--local-epochs", type=int, metavar="N", help="Local epochs a round, instead of steps."),
    click.option("--batch-size", type=int, default=128, show_default=True, help="Samples a step."),
    click.option("--lr", type=float, default=0.1, show_default=True, help="Local learning rate."),
    click.option("--weight-decay", type=float, default=5e-4, show_default=True, help="Of the local SGD."),
    click.option("--seed", type=int, default=0, show_default=True, help="Of partition, model and batches."),
    click.option(
        "--eval-every",
        type=int,
        default=10,
        show_default=True,
        metavar="ROUNDS",
        help="Rounds between evaluations; 0: end only.",
    ),
    click.option("--server", default="plain", show_default=True, help="Server optimiser: plain, momentum or adam."),
    click.option("--server-lr", type=float, metavar="RATE", help="Of the server optimiser."),
    click.option(
        "--averaging",
        type=float,
        metavar="N",
        help="Average the models of the last N rounds (below 1: that share of them).",
    ),
    click.option("--device", default="cpu", show_default=True, help="Where to train, like cpu or cuda."),
    click.option("--threads", type=int, metavar="N", help="Processor threads in all."),
    click.option("--tensorboard", is_flag=True, help="Write TensorBoard event files into the run folder too."),
)
_OF_TASK = ("task", "task_data", "model", "partition", "beta", "devices")


def training_options(command: F) -> F:
    """What train and baseline share."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command()
@click.argument("plan", type=click.Path(path_type=Path))
@click.option(
    "--aggregator",
    default="memory",
    show_default=True,
    help="How updates are combined before the window, like ufedavg.",
)
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Run folder; it can be resumed."
)
@click.option("--no-baseline", is_flag=True, help="Do not train the no-slack baseline at the same budget beside it.")
@training_options
@chart_option("accuracy against kg")
@json_option
def train(
    plan: Path, aggregator: str, out: Path | None, no_baseline: bool, chart: Path | None, as_json: bool, **options: Any
) -> None:
    """Train by a PLAN (plan.json), every gram charged, and compare with training without slack."""
    schedule = Plan.load(plan)
    task, settings = _task(schedule.problem, options), _settings(options)
    with _Bar(schedule.problem.budget_kg, "train") as bar:
        result = learning.train(schedule, task, aggregator=aggregator, out=out, progress=bar, **settings)
    other = None if no_baseline else _baseline(schedule.problem, task, settings, out)
    _show({aggregator: result} | ({"no slack": other} if other else {}), chart, as_json)


@click.command()
@scenario_argument
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Run folder; it can be resumed."
)
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
    task, settings = _task(problem, options), _settings(options)
    with _Bar(problem.budget_kg, "no slack") as bar:
        result = learning.baseline(problem, task, out=out, progress=bar, **settings)
    _show({"no slack": result}, chart, as_json)


@click.command()
@click.argument("run", type=click.Path(path_type=Path, file_okay=False))
@chart_option("accuracy against kg")
@json_option
def resume(run: Path, chart: Path | None, as_json: bool) -> None:
    """Go on with a RUN that was stopped or killed; one that is done shows its result again."""
    with _Bar(None, "train") as bar:
        result = learning.resume(run, progress=bar)
    results = {"resumed": result}
    if (run / BASELINE / "run.db").exists():
        with _Bar(None, "no slack") as bar:
            results["no slack"] = learning.resume(run / BASELINE, progress=bar)
    _show(results, chart, as_json)


COMMANDS = (train, resume, baseline)


def _task(problem: Problem, options: dict[str, Any]) -> Any:
    try:
        from slackwater.learning import tasks
    except ModuleNotFoundError as error:
        if error.name == "torch":
            raise MissingExtraError("PyTorch", "torch") from None
        raise
    wanted = {
        "clients": len(problem.fleet),
        "seed": options["seed"],
        "partition": options["partition"],
        "beta": options["beta"],
        "devices_per_client": options["devices"],
    }
    optional = {"model": options["model"], "data": options["task_data"]}
    return tasks.make(options["task"], **wanted, **{key: value for key, value in optional.items() if value is not None})


def _settings(options: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key not in _OF_TASK}


def _baseline(problem: Problem, task: Any, settings: dict[str, Any], out: Path | None) -> Result | None:
    """The no-slack run beside a run, kept in its folder; None, and said, where the budget does not pay a single round."""
    try:
        with _Bar(problem.budget_kg, "no slack") as bar:
            return learning.baseline(problem, task, out=out and out / BASELINE, progress=bar, **settings)
    except InfeasibleError as error:
        say(f"no baseline to compare with: {error}")
        return None


def _show(results: dict[str, Result], chart: Path | None, as_json: bool) -> None:
    if chart is not None:
        save(views.accuracy_chart(results), chart)
        say(f"drew {chart}")
    if as_json:
        print_json({name: views.to_dict(result) for name, result in results.items()})
    else:
        console().print(views.summary(results))


class _Bar:
    """Live progress on stderr: a bar on a terminal, a line at each evaluation elsewhere."""

    def __init__(self, budget_kg: float | None, title: str) -> None:
        self.budget_kg, self.title = budget_kg, title
        self.bar: Progress | None = None
        self.task: Any = None

    def __enter__(self) -> _Bar:
        if sys.stderr.isatty():
            self.bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=20),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[state]}", markup=False),
                console=Console(stderr=True),
            )
            self.bar.start()
            self.task = self.bar.add_task(self.title, total=None, state="")
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def __call__(self, step: Step) -> None:
        done = step.done
        who = ", ".join(done.participants[:4]) + (
            f" +{len(done.participants) - 4}" if len(done.participants) > 4 else ""
        )
        accuracy = "" if done.accuracy is None else f"  accuracy {done.accuracy:.2%}"
        state = f"{iso(done.slot_start)}  {done.spent_kg:.3f} of {step.budget_kg:.3g} kg  loss {done.loss:.3f}{accuracy}  {who}"
        if self.bar is not None:
            self.bar.update(self.task, completed=done.number + 1, total=step.rounds, state=state)
        elif done.accuracy is not None:
            say(f"{self.title}: round {done.number + 1} of {step.rounds}  {state}")
