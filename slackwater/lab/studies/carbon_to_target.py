"""Measure the emissions until a method has the score of full training, on several tasks.

python -m slackwater.lab carbon-to-target run --data CI_FOLDER --mnist MNIST_FOLDER --seeds 1
python -m slackwater.lab carbon-to-target table
python -m slackwater.lab carbon-to-target chart

Full training is everybody in the first 50 hours, by FedAvg. A target is a share of its score: of the accuracy itself, and of
AUROC of the gain over 0.5. `slackwater.lab.studies.carbon_targets` defines the emissions to a target.
"""

from __future__ import annotations

import logging
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

import slackwater as sw
from slackwater.cli.options import ListOf, seeds_option
from slackwater.intensity.traces import Factor
from slackwater.lab import policies
from slackwater.lab.paper.setting import FULL_HOURS, POWER_W, SLACK, START, ZONES
from slackwater.lab.policies.registry import PLANNED
from slackwater.lab.store import RESULTS, TRAINED, Row, Store, sweep, trained
from slackwater.lab.studies import carbon_targets
from slackwater.lab.studies.auto_cells import free
from slackwater.lab.studies.auto_trainer import small_task
from slackwater.planning.problem import Problem
from slackwater.planning.schedule import no_slack_plan
from slackwater.training.loop import Result, train
from slackwater.training.site_tasks import DIALYSIS_CENTRES, DIALYSIS_ZONE, FLIGHT_ORIGINS, RANDHIE_SITES
from slackwater.training.task import Samples, Task

BUDGETS = (3, 5, 10, 20)
"""T: a budget is what all clients emit in the first T hours."""
TUNING_BUDGET, TUNING_SEED = 5, 100
FULL = "full"
METHODS: dict[str, tuple[str, ...]] = {
    "auto": ("auto",),
    "paper": ("paper:10", "paper:30", "paper:50"),
    "no-slack": ("no-slack",),
    "fedzero": ("fedzero:2", "fedzero:3", "fedzero:5"),
    "carbon-greedy": ("carbon-greedy",),
    "threshold": ("threshold:10", "threshold:25", "threshold:50"),
}
"""Each method with the settings that are tuned: the paper's end time s, FedZero's clients in a round (of seven; a larger fleet in
proportion) and the threshold's quantile. `auto` has none: it chooses everything itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a task of the study trains, and where its clients are."""

    title: str
    task: str
    beta: float = 0.5
    small: bool = False
    """Images averaged to 14 x 14 and one hidden layer of 64 units, instead of the task's own model."""
    model: str | None = None
    """None: the task's own."""
    zones: tuple[str, ...] = ZONES
    """Zone of each client."""
    factor: Factor = "direct"
    """Of the intensity: zones in the Americas publish it for the whole life cycle only."""
    local_steps: int = 30
    batch_size: int = 128
    precision: str = "fp32"
    """`auto` where bfloat16 pays: the convolutional networks. The others give the same figures on every processor."""
    rates: tuple[float, ...] = (0.0316, 0.1, 0.316)
    """Learning rates that are tried for every method."""
    eval_every: int = 1
    test_samples: int | None = None
    """Score on this many test samples, the same for every run; None: on all."""


TASKS = {
    "mnist-small": Setting(title="MNIST 14 x 14", task="mnist", small=True),
    "fashion-small": Setting(title="Fashion-MNIST 14 x 14", task="fashion_mnist", small=True),
    "mnist-skewed-small": Setting(title="MNIST 14 x 14, beta 0.1", task="mnist", beta=0.1, small=True),
    "digits": Setting(title="Digits 8 x 8", task="digits"),
    "randhie": Setting(
        title="RandHIE, six sites", task="randhie", zones=tuple(RANDHIE_SITES.values()), factor="lifecycle"
    ),
    "dialysis": Setting(
        title="Dialysis, 67 clinics", task="dialysis", zones=(DIALYSIS_ZONE,) * DIALYSIS_CENTRES, factor="lifecycle",
        local_steps=5, batch_size=32, eval_every=2,
    ),
    "flights": Setting(
        title="Flights, 54 airports", task="flights", zones=tuple(FLIGHT_ORIGINS.values()), factor="lifecycle",
        local_steps=10, eval_every=2,
    ),
    "shakespeare": Setting(
        title="Shakespeare", task="shakespeare", batch_size=16, rates=(0.316, 1.0, 3.16), eval_every=2
    ),
    "mnist": Setting(title="MNIST, the paper's CNN", task="mnist", eval_every=2, precision="auto"),
    "cifar10": Setting(
        title="CIFAR-10, a ResNet", task="cifar10", model="resnet", local_steps=10, batch_size=32, eval_every=3,
        test_samples=2000, precision="auto",
    ),
}  # fmt: skip
"""In the order in which they are trained. The CNN and the ResNet cost hours on a processor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One training run."""

    task: str
    method: str
    """With its tuned setting: `threshold:25`. `full`: all clients for 50 hours."""
    hours: int
    """T: the budget is the cost of all clients in the first T hours."""
    lr: float
    seed: int


AnyStore = Store[Cell]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where intensity and data sets are; hashable, so that schedules are made once."""

    data: str = "typical"
    mnist: str | None = None

    def problem(self, task: str, hours: int) -> Problem:
        """Return the task's fleet, 300 W each, with the budget of T hours and 150 hours of slack."""
        zones = TASKS[task].zones
        traces = _traces(self.data, tuple(dict.fromkeys(zones)), TASKS[task].factor)
        row = {zone: number for number, zone in enumerate(traces.zones)}
        everybody = float(sum(np.sum(traces.intensity[row[zone], :hours]) for zone in zones)) * POWER_W / 1000
        clients = [
            sw.Client(name=f"{number:02d}-{zone}", zone=zone, power_w=POWER_W) for number, zone in enumerate(zones)
        ]
        return Problem(
            clients=clients, traces=traces, rounds=hours, slack=SLACK, fine_tune=1, alpha=0.1,
            budget_kg=everybody * (1 + 1e-12),
        )  # fmt: skip

    def load(self, task: str, seed: int) -> Task:
        """Return the task's data for its clients."""
        setting = TASKS[task]
        data = self.mnist if setting.task == "mnist" else None
        if setting.small:
            return small_task(setting.task, data, setting.beta, seed, len(setting.zones))
        takes = sw.tasks.option_names(setting.task)
        options = {
            "data": data, "beta": setting.beta, "seed": seed, "clients": len(setting.zones), "model": setting.model
        }  # fmt: skip
        loaded = sw.tasks.make(setting.task, **{k: v for k, v in options.items() if k in takes and v is not None})
        return loaded if setting.test_samples is None else _scored_on(setting.test_samples, loaded)


def _scored_on(count: int, task: Task) -> Task:
    chosen = torch.randperm(len(task.test), generator=torch.Generator().manual_seed(0))[:count]
    x, y = task.test.take(chosen)
    return replace(task, test=Samples(x=x, y=y))


@cache
def _traces(data: str, zones: tuple[str, ...], factor: Factor) -> sw.Traces:
    return sw.load_traces(data, zones=list(zones), start=START, hours=SLACK + FULL_HOURS, factor=factor)


@cache
def schedule(sources: Sources, task: str, method: str, hours: int) -> tuple[sw.Plan, str]:
    """Return the plan of a method that plans in advance, and its aggregator. It sees fleet, intensity and budget, no data."""
    problem = sources.problem(task, hours)
    name, _, number = method.partition(":")
    if name == "auto":
        return PLANNED["ours-auto"].make(free(problem))
    if name == "paper":
        return sw.plan(problem, end=int(number)), "ufedavg"
    if name in (FULL, "no-slack"):
        return no_slack_plan(problem.with_settings(slack=0, fine_tune=0)), "fedavg"
    return PLANNED[name].make(problem)


def measure(cell: Cell, sources: Sources) -> Row:
    """Train a cell on one thread."""
    torch.set_num_threads(1)
    return trained(lambda: _measured(_train(cell, sources), sources.problem(cell.task, cell.hours)))


def _train(cell: Cell, sources: Sources) -> Result:
    setting, task = TASKS[cell.task], sources.load(cell.task, cell.seed)
    how: dict[str, Any] = {
        "local_steps": setting.local_steps, "batch_size": setting.batch_size, "lr": cell.lr, "seed": cell.seed,
        "eval_every": 0 if cell.seed == TUNING_SEED else setting.eval_every, "training_loss": False, "threads": 1,
        "precision": setting.precision,
    }  # fmt: skip
    name, _, number = cell.method.partition(":")
    if name in ("fedzero", "threshold"):
        asked = max(1, round(int(number) * len(setting.zones) / len(ZONES))) if name == "fedzero" else number
        return policies.train(sources.problem(cell.task, cell.hours), task, policy=f"{name}:{asked}", **how)
    plan, aggregator = schedule(sources, cell.task, cell.method, cell.hours)
    return train(plan, task, aggregator=aggregator, **how)


def _measured(result: Result, problem: Problem) -> Row:
    """Return the result; the curve keeps the rounds with a better score than all before."""
    curve: list[list[float]] = []
    for done in result.history:
        if done.accuracy is not None and (not curve or done.accuracy > curve[-1][2]):
            curve.append([(done.slot + 1) * problem.slot_hours, round(done.spent_kg, 6), round(done.accuracy, 5)])
    slots = result.history[-1].slot + 1 if result.history else 0
    return {
        "metric": result.metric.name, "score": result.score, "worst_client": result.worst_client_score,
        "kg": result.emissions_kg, "hours_taken": slots * problem.slot_hours, "rounds": len(result.history),
        "client_rounds": sum(len(done.participants) for done in result.history), "curve": curve,
    }  # fmt: skip


def tuning_cells(task: str, methods: Iterable[str], *, hours: int = TUNING_BUDGET) -> list[Cell]:
    """Return the cells that choose a method's learning rate and setting, on a seed that no result uses."""
    tried, rates = [spec for method in methods for spec in METHODS[method]], TASKS[task].rates
    found = [Cell(task=task, method=spec, hours=hours, lr=lr, seed=TUNING_SEED) for spec in tried for lr in rates]
    return found + [Cell(task=task, method=FULL, hours=FULL_HOURS, lr=lr, seed=TUNING_SEED) for lr in rates]


def chosen(store: AnyStore, task: str, method: str) -> Cell | None:
    """Return the best tuning cell of a method, the higher score first; None while one is missing."""
    kept = [cell for cell, _ in store.cells() if cell.task == task and cell.seed == TUNING_SEED]
    specs = (FULL,) if method == FULL else METHODS[method]
    mine = [cell for cell in kept if cell.method in specs]
    scored = [(row["score"], cell) for cell in mine if (row := store.get(cell)) and row["status"] == TRAINED]
    if len(mine) < len(specs) * len(TASKS[task].rates) or not scored:
        return None
    return max(scored, key=lambda one: one[0])[1]


def result_cells(
    store: AnyStore, task: str, methods: Iterable[str], budgets: Sequence[int], seeds: Sequence[int]
) -> list[Cell]:
    """Return the cells of the tuned methods, with full training, seed by seed."""
    found = []
    for seed in seeds:
        for method in (FULL, *methods):
            best = chosen(store, task, method)
            if best is not None:
                hours = (FULL_HOURS,) if method == FULL else tuple(budgets)
                found += [replace(best, hours=T, seed=seed) for T in hours]
    return found


@click.group()
def main() -> None:
    """Measure the emissions to the score of full training; see `run`, `table` and `chart`."""


results_option = click.option("--results", type=click.Path(path_type=Path), default=RESULTS / "carbon_to_target.jsonl")
tasks_option = click.option(
    "--tasks",
    "names",
    type=ListOf(str, "task"),
    metavar="NAME,..",
    help=f"Default: all. There are: {', '.join(TASKS)}.",
)


@main.command()
@click.option("--data", default="typical", show_default=True, help="Carbon intensity: a folder of zones, or typical.")
@click.option("--mnist", default=None, help="Folder of MNIST's files. Default: the copy in the cache.")
@tasks_option
@click.option("--methods", type=ListOf(str, "method"), metavar="NAME,..", help=f"Default: {', '.join(METHODS)}.")
@click.option("--budgets", type=ListOf(int, "number of hours"), metavar="T,..", help="Default: 3,5,10,20.")
@seeds_option
@results_option
def run(
    data: str,
    mnist: str | None,
    names: list[str] | None,
    methods: list[str] | None,
    budgets: list[int] | None,
    seeds: tuple[int, ...],
    results: Path,
) -> None:
    """Tune every method, then train the missing cells, task by task, on one thread; a stopped sweep continues."""
    wanted, tried = names or list(TASKS), methods or list(METHODS)
    _check("task", wanted, TASKS)
    _check("method", tried, METHODS)
    logging.getLogger("slackwater").setLevel(logging.ERROR)
    store, sources = AnyStore(results, Cell), Sources(data=data, mnist=mnist)
    for task in wanted:
        _sweep(tuning_cells(task, tried), store, sources)
    for seed in seeds:
        for task in wanted:
            _sweep(result_cells(store, task, tried, budgets or BUDGETS, [seed]), store, sources)


def _sweep(cells: list[Cell], store: AnyStore, sources: Sources) -> None:
    for row in sweep(cells, partial(measure, sources=sources), store):
        shown = f"{row['score']:.4f}, {row['kg']:.3f} kg" if row["status"] == TRAINED else row["status"]
        said = "{task}, {method}, T={hours}, lr {lr:g}, seed {seed}".format(**row)
        click.echo(f"{said}: {shown}, {row['seconds']:.0f} s", err=True)


def _check(kind: str, names: Sequence[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            raise click.ClickException(f"There is no {kind} {name!r}. There are: {', '.join(known)}.")


@main.command()
@tasks_option
@click.option(
    "--page", type=click.Path(path_type=Path), help="Write the tables into this Markdown page, between marks."
)
@results_option
def table(names: list[str] | None, page: Path | None, results: Path) -> None:
    """Show the emissions to each target, from the stored cells."""
    _check("task", names or [], TASKS)
    store = AnyStore(results, Cell)
    makers = (carbon_targets.headline, carbon_targets.details)
    results_text, targets_text = (
        "\n".join(_wrapped(text) for text in make(_runs(store), _titles(names), list(METHODS))) for make in makers
    )
    if page is None:
        click.echo(f"{results_text}\n\n{targets_text}")
    else:
        carbon_targets.write_page(page, results_text, targets_text)


@main.command()
@tasks_option
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("docs/research/images/carbon-to-target.png"),
    show_default=True,
)
@results_option
def chart(names: list[str] | None, out: Path, results: Path) -> None:
    """Draw the score against emissions, one panel for each task."""
    _check("task", names or [], TASKS)
    click.echo(f"wrote {carbon_targets.draw(_runs(AnyStore(results, Cell)), _titles(names), list(METHODS), out)}")


def _wrapped(text: str) -> str:
    """Return a line of prose in lines as long as the pages' other ones; tables stay as they are."""
    indent = "  " if text.startswith("- ") else ""
    wrapped = textwrap.fill(text, _WIDTH, subsequent_indent=indent, break_on_hyphens=False)
    return text if text.startswith("|") or not text.strip() else wrapped + "\n" * text.endswith("\n")


_WIDTH = 99


def _titles(names: list[str] | None) -> dict[str, str]:
    return {name: TASKS[name].title for name in names or TASKS}


def _runs(store: AnyStore) -> Iterator[Row]:
    """Return every row with its method's plain name."""
    for cell, row in store.cells():
        yield {**row, **asdict(cell), "spec": cell.method, "method": cell.method.partition(":")[0],
               "tuning": cell.seed == TUNING_SEED}  # fmt: skip
