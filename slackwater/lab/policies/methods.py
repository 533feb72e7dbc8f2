"""Compare methods on one's own problem and task, over seeds, and test the differences: `sw.compare_methods`."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from slackwater.charts import notebook, style
from slackwater.charts.result_charts import kinds_label
from slackwater.charts.style import headline, new_figure, tidy
from slackwater.errors import InfeasibleError, ScenarioError
from slackwater.lab.policies.policy import Policy
from slackwater.lab.policies.registry import PLANNED, POLICIES, check_method, split_method
from slackwater.lab.policies.training import train as train_by_policy
from slackwater.ledger.score import ACCURACY, MetricLabel
from slackwater.planning.plan import Plan
from slackwater.planning.planner import plan as make_plan
from slackwater.planning.problem import Problem
from slackwater.training import tasks
from slackwater.training.aggregators import AGGREGATORS, Aggregator
from slackwater.training.loop import Result, TrainingDiverged, TrainingStopped, train
from slackwater.training.progress_bar import ProgressBar
from slackwater.training.task import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

log = logging.getLogger(__name__)
Method = str | Plan | Policy | Aggregator | type[Any] | Callable[[], Any]
MakeTask = Task | str | Callable[[int], Task]
_EXACT = 14
"""Most seeds for which all sign flips are tried: 16,384."""
_DRAWS = 20_000
_EVEN = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One method trained with one seed."""

    method: str
    seed: int
    score: float
    """NaN if the run diverged, or if the budget pays no schedule."""
    worst_client: float | None
    kg: float
    rounds: int
    client_rounds: int
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A method against the first one, paired by seed."""

    method: str
    reference: str
    mean: float
    """Mean over the seeds of score minus the reference's score."""
    better: bool
    """Whether the mean is in favour of the method."""
    seeds: int
    """Seeds in which both trained."""
    p: float
    """Two-sided, by flipping the signs of the differences; NaN with fewer than two seeds."""
    p_holm: float
    """The same, corrected for the number of methods (Holm)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MethodComparison:
    """Scores and emissions of methods over seeds."""

    cells: tuple[Cell, ...]
    metric: MetricLabel
    budget_kg: float
    synthetic: bool

    @property
    def methods(self) -> list[str]:
        """Return the names of the methods, in order; the first is the reference."""
        return list(dict.fromkeys(cell.method for cell in self.cells))

    def scores(self, method: str) -> dict[int, float]:
        """Return seed -> score of a method, without runs that failed."""
        return {cell.seed: cell.score for cell in self.cells if cell.method == method and not math.isnan(cell.score)}

    @property
    def differences(self) -> list[Difference]:
        """Test every method against the first.

        The test is the sign-flip permutation test of the mean of the differences, paired by seed: if two methods were
        equal, each difference could as well have the other sign. All flips are tried up to 14 seeds, else 20,000 random
        ones. With n seeds the smallest p is 2 / 2^n, so fewer than 6 seeds cannot give p < 0.05.
        """
        reference, *others = self.methods
        found = []
        for method in others:
            mine, theirs = self.scores(method), self.scores(reference)
            apart = np.array([mine[seed] - theirs[seed] for seed in mine if seed in theirs])
            mean = float(apart.mean()) if len(apart) else math.nan
            found.append((method, mean, len(apart), sign_flip_p(apart)))
        corrected = _holm([p for *_, p in found])
        return [
            Difference(
                method=method, reference=reference, mean=mean, better=(mean > 0) is self.metric.higher_is_better and mean != 0,
                seeds=seeds, p=p, p_holm=holm,
            )
            for (method, mean, seeds, p), holm in zip(found, corrected, strict=True)
        ]  # fmt: skip

    def __repr__(self) -> str:
        """Show a line for each method, and the tests."""
        lines = [f"{name}  {self._mean(name)}  {self._kg(name)}" for name in self.methods]
        lines += [self._sentence(one) for one in self.differences]
        return "\n".join([f"{self.metric.heading} at {self.budget_kg:g} kg", *lines])

    def _repr_html_(self) -> str:
        by = {one.method: one for one in self.differences}
        rows = [
            (name, self._mean(name), self._kg(name), self.metric.difference(by[name].mean) if name in by else "",
             f"{by[name].p:.3g}" if name in by else "", f"{by[name].p_holm:.3g}" if name in by else "")
            for name in self.methods
        ]  # fmt: skip
        head = notebook.paragraph(
            f"{self.metric.title}{self.metric.direction} at {self.budget_kg:g} kg CO2e. p: sign-flip test, two-sided, paired by "
            f"seed, against {self.methods[0]}; Holm: corrected for {max(1, len(self.methods) - 1)} methods.",
            notebook.synthetic_sentence(self.synthetic),
        )
        return head + notebook.table(f"method|>{self.metric.name}|>kg|>difference|>p|>p (Holm)", rows)

    def to_frame(self) -> Any:
        """Return a row for each method and seed, as a data frame of pandas, else of polars."""
        names = ("method", "seed", "score", "worst_client", "kg", "rounds", "client_rounds", "note")
        columns = {name: [getattr(cell, name) for cell in self.cells] for name in names}
        columns[self.metric.name] = columns.pop("score")
        return notebook.as_frame(columns)

    def plot(self) -> Figure:
        """Return a figure: a dot for each seed and a bar at the mean, by method; on the right the kg."""
        figure = new_figure(style.TEXT_IN, 1.0 + 0.34 * len(self.methods))
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(2, 1))
        for row, method in enumerate(self.methods):
            scores = [self.metric.shown(score) for score in self.scores(method).values()]
            kg = [cell.kg for cell in self.cells if cell.method == method and not math.isnan(cell.score)]
            for axes, values in ((left, scores), (right, kg)):
                axes.scatter(
                    values,
                    np.full(len(values), row),
                    s=12,
                    alpha=0.6,
                    linewidths=0,
                    color=style.SERIES[row % len(style.SERIES)],
                )
                if values:
                    axes.plot([float(np.mean(values))] * 2, [row - 0.2, row + 0.2], color=style.INK, linewidth=1.6)
        left.set_yticks(
            range(len(self.methods)), [style.shortened(name, 30) for name in self.methods], parse_math=False
        )
        left.set_ylim(len(self.methods) - 0.5, -0.5)
        right.axvline(self.budget_kg, color=style.MUTED, linestyle=":", linewidth=1.0)
        tidy(left, grid="x", xlabel=self.metric.axis)
        tidy(right, grid="x", xlabel="kg CO$_2$e (dotted: budget)")
        headline(figure, self._finding(), warning=kinds_label(["simulated"], synthetic=self.synthetic))
        return notebook.displayed(figure)

    def _finding(self) -> str:
        """Return which method has the best mean score."""
        means = {name: float(np.mean(list(scores.values()))) for name in self.methods if (scores := self.scores(name))}
        if not means:
            return "No method ran"
        best = min(means, key=lambda name: self.metric.rank(means[name]))
        shown = style.shortened(best, 30).replace("$", r"\$")
        return f"{shown} has the best mean: {self._mean(best)} at {self.budget_kg:g} kg"

    def _mean(self, method: str) -> str:
        scores = list(self.scores(method).values())
        if not scores:
            return "-"
        spread = f" ± {self.metric.text(float(np.std(scores, ddof=1)))}" if len(scores) > 1 else ""
        return self.metric.text(float(np.mean(scores))) + spread

    def _kg(self, method: str) -> str:
        kg = [cell.kg for cell in self.cells if cell.method == method and not math.isnan(cell.score)]
        return f"{np.mean(kg):.3f} kg" if kg else "no run"

    def _sentence(self, one: Difference) -> str:
        word = "better" if one.better else "worse" if one.mean else "equal"
        return (
            f"{one.method} against {one.reference}: {self.metric.difference(one.mean)} ({word}), p = {one.p:.3g}, corrected "
            f"{one.p_holm:.3g}, {one.seeds} seeds"
        )


def compare_methods(
    problem: Problem,
    task: MakeTask,
    methods: Sequence[Method] | Mapping[str, Method],
    seeds: int | Sequence[int] = 6,
    *,
    progress: bool = False,
    **settings: Any,
) -> MethodComparison:
    """Train methods on one problem at equal budgets, over seeds, and test their differences. Ctrl-C compares the finished runs.

    Args:
        problem: Clients, intensity and budget.
        task: A function of the seed that returns a task, the name of a task, or one `Task` for all seeds (then only the
            model's start and the batches differ).
        methods: Names (`slackwater rivals` lists them), plans, aggregators or policies of your own, as objects or classes; a
            mapping names them. The first is the reference. An aggregator trains by the plan of `sw.plan(problem)`.
        seeds: Number of seeds, or the seeds. Fewer than 6 cannot show a difference at p < 0.05.
        progress: Show a progress bar.
        settings: As for `train`, such as `local_steps` and `lr`.
    """
    named = _named(methods)
    numbers = list(range(seeds)) if isinstance(seeds, int) else [int(seed) for seed in seeds]
    if not numbers or len(set(numbers)) < len(numbers):
        raise ScenarioError("Give at least one seed, and each seed once.")
    defaults: dict[str, Any] = {"eval_every": 0, "training_loss": False, "threads": 1}
    bar = ProgressBar("compare", len(named) * len(numbers)) if progress else None
    cells, metric = [], ACCURACY
    try:
        with _registered(named, problem) as runs:
            for seed in numbers:
                one = _task(task, problem, seed)
                metric = one.label
                for name, how in runs.items():
                    cells.append(_cell(name, seed, how, problem, one, defaults | settings))
                    if bar is not None:
                        bar.step(f"{name}, seed {seed}: {metric.text(cells[-1].score, 1)}")
    except (TrainingStopped, KeyboardInterrupt):
        if not cells:
            raise
        log.warning("Stopped: %d of %d runs are done, and compared.", len(cells), len(named) * len(numbers))
    finally:
        if bar is not None:
            bar.close()
    ordered = sorted(cells, key=lambda cell: list(named).index(cell.method))
    return MethodComparison(
        cells=tuple(ordered), metric=metric, budget_kg=problem.budget_kg, synthetic=problem.traces.synthetic
    )


Train = Callable[[Problem, Task, dict[str, Any]], Result]


@contextmanager
def _registered(methods: Mapping[str, Method], problem: Problem) -> Iterator[dict[str, Train]]:
    """Yield how each method trains; objects of the user's own have a name in the registries until the end.

    Every plan is made once, when it is first needed: it is the same for all seeds.
    """
    planned = cache(lambda name: PLANNED[name].make(problem))
    best = cache(lambda: make_plan(problem))
    runs: dict[str, Train] = {}
    added: list[tuple[dict[str, Any], str]] = []
    try:
        for number, (name, method) in enumerate(methods.items()):
            if isinstance(method, str):
                key, other = split_method(check_method(method))
                runs[name] = _by_planned(planned, key, other) if key in PLANNED else _by_policy(key, other)
                continue
            if isinstance(method, Plan):
                runs[name] = _by_plan(method, method.aggregator)
                continue
            made, key = _factory(method), f"own-{number}-{id(method):x}"
            sample = made()
            if isinstance(sample, Aggregator):
                AGGREGATORS.register(key, made)
                added.append((AGGREGATORS.own, key))
                runs[name] = _by_plan(best, key)
            elif isinstance(sample, Policy):
                POLICIES.register(key, made)
                added.append((POLICIES.own, key))
                runs[name] = _by_policy(key, None)
            else:
                raise ScenarioError(
                    f"The method {name!r} is {type(sample).__name__}: neither a name, a plan, a policy (see "
                    "slackwater.lab.policies.Online) nor an aggregator (see slackwater.training.Aggregator)."
                )
        yield runs
    finally:
        for registry, key in added:
            registry.pop(key, None)


def _factory(method: Any) -> Callable[..., Any]:
    """Return a function that makes a new policy or aggregator for each run; an object is copied as it is now."""
    if isinstance(method, type) or (callable(method) and not isinstance(method, Policy | Aggregator)):
        return method
    kept = copy.deepcopy(method)
    return lambda: copy.deepcopy(kept)


def _by_policy(policy: str, aggregator: str | None) -> Train:
    chosen = {} if aggregator is None else {"aggregator": aggregator}

    def run(problem: Problem, task: Task, settings: dict[str, Any]) -> Result:
        return train_by_policy(problem, task, policy=policy, **settings | chosen)

    return run


def _by_planned(planned: Callable[[str], tuple[Plan, str]], name: str, aggregator: str | None) -> Train:
    def run(problem: Problem, task: Task, settings: dict[str, Any]) -> Result:
        plan, usual = planned(name)
        return train(plan, task, **settings | {"aggregator": aggregator or usual})

    return run


def _by_plan(plan: Plan | Callable[[], Plan], aggregator: str) -> Train:
    def run(problem: Problem, task: Task, settings: dict[str, Any]) -> Result:
        return train(plan if isinstance(plan, Plan) else plan(), task, **settings | {"aggregator": aggregator})

    return run


def _cell(name: str, seed: int, how: Train, problem: Problem, task: Task, settings: dict[str, Any]) -> Cell:
    try:
        result = how(problem, task, settings | {"seed": seed})
    except (InfeasibleError, TrainingDiverged) as error:
        return Cell(
            method=name,
            seed=seed,
            score=math.nan,
            worst_client=None,
            kg=math.nan,
            rounds=0,
            client_rounds=0,
            note=str(error),
        )
    return Cell(
        method=name, seed=seed, score=result.score, worst_client=result.worst_client_score, kg=result.emissions_kg,
        rounds=len(result.history), client_rounds=sum(len(done.participants) for done in result.history),
        note="; ".join(result.notes),
    )  # fmt: skip


def _task(task: MakeTask, problem: Problem, seed: int) -> Task:
    if isinstance(task, Task):
        return task
    names = [str(name) for name in problem.fleet.names]
    made = tasks.make_for(task, names, seed=seed) if isinstance(task, str) else task(seed)
    if not isinstance(made, Task):
        raise ScenarioError(f"task(seed) returns {type(made).__name__}, not a sw.Task.")
    return made


def _named(methods: Sequence[Method] | Mapping[str, Method]) -> dict[str, Method]:
    if isinstance(methods, Mapping):
        named = {str(name): method for name, method in methods.items()}
    else:
        if isinstance(methods, str):
            raise ScenarioError(f"methods is the text {methods!r}; give a list, like [{methods!r}].")
        listed = [(m if isinstance(m, str) else getattr(m, "__name__", type(m).__name__), m) for m in methods]
        named = dict(listed)
        if len(named) < len(listed):
            raise ScenarioError("Two methods have the same name. Name them with a mapping: {'mine': .., 'other': ..}.")
    if not named:
        raise ScenarioError("Give at least one method.")
    return named


def sign_flip_p(differences: NDArray[np.float64]) -> float:
    """Return the two-sided p of the mean of paired differences, by flipping their signs; NaN for fewer than two."""
    count = len(differences)
    if count < 2:
        return math.nan
    if count <= _EXACT:
        signs = np.array(list(product((-1.0, 1.0), repeat=count)))
        means, extra = np.abs(signs @ differences), 0
    else:
        signs = np.random.default_rng(0).choice((-1.0, 1.0), size=(_DRAWS, count))
        means, extra = np.abs(signs @ differences), 1  # the observed signs count as a draw, so that p is never 0
    observed = abs(float(differences.sum()))
    reached = int(np.count_nonzero(means >= observed - _EVEN * max(1.0, observed)))
    return (reached + extra) / (len(signs) + extra)


def _holm(p: Sequence[float]) -> list[float]:
    """Return p corrected for several tests (Holm, 1979); NaN stays."""
    known = sorted((i for i, value in enumerate(p) if not math.isnan(value)), key=lambda i: p[i])
    corrected, most = [math.nan] * len(p), 0.0
    for rank, i in enumerate(known):
        most = max(most, min(1.0, (len(known) - rank) * p[i]))
        corrected[i] = most
    return corrected
