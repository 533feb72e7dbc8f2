"""Emissions to a target score from stored runs, as tables and as a picture.

A run's curve holds (hours, kg charged, test score) of the rounds whose score is above that of all rounds before. The emissions of
a method to a target, with one seed, are the smallest kg of:

1. in each run, where its curve first reaches the target, linear between two of its rounds;
2. across budgets, where the final scores of its runs, by rising kg, first reach the target, linear between two budgets.

The second exists because a plan with a fine-tuning window has its score at the end. The kg are all that the ledger charged. The
rounds are read off the test set, for all methods alike, so every figure is a little low.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from slackwater.charts import style
from slackwater.lab.store import TRAINED, Row
from slackwater.lab.tables import line, under, write_between

FULL, SHARES, HEADLINE = "full", (0.95, 0.98, 0.99, 1.0), 0.99
Point = tuple[float, float, float]
"""Hours, kg and score."""
_TICKS_KG = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)
_BEGIN, _END = "<!-- carbon-to-target: begin -->", "<!-- carbon-to-target: end -->"
_BEGIN_DETAILS, _END_DETAILS = _BEGIN.replace("begin", "targets"), _END.replace("end", "end of targets")


def target(full: float, share: float, metric: str) -> float:
    """Return the score that is this share of full training's; of AUROC, this share of its gain over 0.5."""
    chance = 0.5 if metric.lower() == "auroc" else 0.0
    return chance + share * (full - chance)


def first_reached(curve: Sequence[Point], wanted: float) -> tuple[float, float] | None:
    """Return hours and kg where a curve first reaches a score, linear between two points; None if it never does."""
    before: Point | None = None
    for point in curve:
        if point[2] >= wanted:
            if before is None or point[2] == before[2]:
                return point[0], point[1]
            way = (wanted - before[2]) / (point[2] - before[2])
            return before[0] + way * (point[0] - before[0]), before[1] + way * (point[1] - before[1])
        before = point
    return None


def to_target(runs: Iterable[Row], wanted: float) -> tuple[float, float] | None:
    """Return hours and kg of one method and seed to a score, over its rounds and its budgets; None if it is not reached."""
    done = sorted((row for row in runs if row["status"] == TRAINED), key=lambda row: row["kg"])
    within = [found for row in done if (found := first_reached(row["curve"], wanted)) is not None]
    across = first_reached([(row["hours_taken"], row["kg"], row["score"]) for row in done], wanted)
    ways = within if across is None else [*within, across]
    return min(ways, key=lambda way: way[1]) if ways else None


class Results:
    """The stored runs of one task, without those that tuned."""

    def __init__(self, rows: Iterable[Row], task: str) -> None:
        self.of: dict[str, dict[int, list[Row]]] = defaultdict(lambda: defaultdict(list))
        """Method -> seed -> rows. The runs of `full` count for no-slack too: it is the same method with a larger budget."""
        for row in rows:
            if row["task"] != task:
                continue
            if not row["tuning"]:
                self.of[row["method"]][row["seed"]].append(row)
        for seed, full in self.of.get(FULL, {}).items():
            self.of["no-slack"][seed] += full

    def full(self, seed: int) -> Row | None:
        """Return the run of full training."""
        rows = self.of.get(FULL, {}).get(seed, [])
        return rows[0] if rows and rows[0]["status"] == TRAINED else None

    def ways(self, method: str, share: float) -> list[tuple[float, float, float] | None]:
        """Return for each seed hours, kg and share of full training's kg to a target; None: not reached."""
        found: list[tuple[float, float, float] | None] = []
        for seed, rows in sorted(self.of.get(method, {}).items()):
            full = self.full(seed)
            if full is None or all(row["method"] == FULL for row in rows):
                continue
            way = to_target(rows, target(full["score"], share, full["metric"]))
            found.append(None if way is None else (*way, way[1] / full["kg"]))
        return found


def headline(rows: Iterable[Row], titles: Mapping[str, str], methods: Sequence[str]) -> Iterator[str]:
    """Return the result as Markdown: sentences, then a table of the shares of emissions for each of two targets."""
    kept = list(rows)
    found = _found(kept, titles)
    yield from summary(kept, titles, methods)
    yield ""
    for share in (HEADLINE, 1.0):
        yield f"**Emissions to {100 * share:g} % of full training's score, in percent of full training's emissions.**\n"
        yield line("task", *(_name(method) for method in methods), "seeds")
        yield under(len(methods) + 2)
        means = _means(found, methods, share)
        for task, result in found.items():
            ways = {method: result.ways(method, share) for method in methods}
            best = _least(means, task)
            shown = [_percent(ways[method], bold=method == best) for method in methods]
            yield line(titles[task], *shown, max(len(of) for of in ways.values()))
        for task in titles:
            if task not in found and share == HEADLINE:
                yield line(titles[task], *["not run"] * len(methods), 0)
        if len(means) > 1:
            yield line("mean (not reached: 100)", *(f"{average:.1f}" for average in _averages(means).values()), "")
        yield ""
    trained = [row for row in kept if row["task"] in titles]
    hours = sum(row["seconds"] for row in trained) / 3600
    yield f"Cost: {len(trained)} training runs and {hours:.1f} hours on one thread, with the runs that tune."


def details(rows: Iterable[Row], titles: Mapping[str, str], methods: Sequence[str]) -> Iterator[str]:
    """Return a table as Markdown: every target, and the scores by budget."""
    found = _found(rows, titles)
    yield "**All targets: kg, and hours after the start in brackets; then the worst client's score at each budget.**\n"
    yield line("task", "method", *(f"{share:.0%}" for share in SHARES), "final score by T", "worst client by T")
    yield under(len(SHARES) + 4)
    for task, result in found.items():
        for method in (FULL, *methods):
            if method == FULL or result.of.get(method):
                yield line(titles[task], _name(method), *_details(result, method))


def summary(rows: Iterable[Row], titles: Mapping[str, str], methods: Sequence[str]) -> Iterator[str]:
    """Return the result as sentences, one a target: the average of ours, and the next method."""
    ours, *others = methods
    found = _found(rows, titles)
    for share in (HEADLINE, 1.0):
        means = _means(found, methods, share)
        if not means:
            return
        averages = _averages(means)
        next_best = min(others, key=lambda method: averages[method], default=ours)
        first = sum(_least(means, task) == ours for task in means)
        tasks = f"{len(means)} task{'s' if len(means) > 1 else ''}"
        yield (
            f"- To {100 * share:g} % of full training's score, auto emits {averages[ours]:.1f} % of full training's "
            f"emissions on average over {tasks}; {_name(next_best)} emits {averages[next_best]:.1f} %. "
            f"Auto emits least on {first} of {len(means)}."
        )


def _found(rows: Iterable[Row], titles: Mapping[str, str]) -> dict[str, Results]:
    """Return the tasks with results of some method beside full training."""
    kept = list(rows)
    of_task = {task: Results(kept, task) for task in titles}
    return {task: one for task, one in of_task.items() if any(one.ways(method, HEADLINE) for method in one.of)}


Means = dict[str, dict[str, float | None]]
"""Task -> method -> mean share of full training's emissions, None if some seed does not reach the target."""


def _means(found: Mapping[str, Results], methods: Sequence[str], share: float) -> Means:
    """Return the means of the tasks on which every method was run."""
    ways = {task: {method: one.ways(method, share) for method in methods} for task, one in found.items()}
    return {
        task: {method: _mean(of) for method, of in of_task.items()}
        for task, of_task in ways.items()
        if all(of_task.values())
    }


def _averages(means: Means) -> dict[str, float]:
    """Return the mean over tasks of each method, in percent; a target that is not reached counts as full training."""
    columns: dict[str, list[float]] = defaultdict(list)
    for of_task in means.values():
        for method, mean in of_task.items():
            columns[method].append(1.0 if mean is None else mean)
    return {method: 100 * statistics.mean(column) for method, column in columns.items()}


def _least(means: Means, task: str) -> str | None:
    """Return the method with the least emissions on a task; None before every method was run."""
    reached = {method: mean for method, mean in means.get(task, {}).items() if mean is not None}
    return min(reached, key=lambda method: reached[method], default=None)


def _details(result: Results, method: str) -> list[str]:
    if method == FULL:
        kg = [row["kg"] for rows in result.of[FULL].values() for row in rows if row["status"] == TRAINED]
        ways = ["", "", "", f"{statistics.mean(kg):.2f} (50)" if kg else ""]
    else:
        ways = [_kg(result.ways(method, share)) for share in SHARES]
    return [*ways, _by_budget(result, method, "score"), _by_budget(result, method, "worst_client")]


def _by_budget(result: Results, method: str, key: str) -> str:
    scores: dict[int, list[float]] = defaultdict(list)
    for rows in result.of.get(method, {}).values():
        for row in rows:
            if row["method"] == method and row["status"] == TRAINED and row[key] is not None:
                scores[row["hours"]].append(row[key])
    return ", ".join(f"{T}: {100 * statistics.mean(of):.1f}" for T, of in sorted(scores.items()))


def _mean(ways: Sequence[Point | None]) -> float | None:
    """Return the mean share of full training's emissions; None if a seed does not reach the target."""
    reached = [way[2] for way in ways if way is not None]
    return statistics.mean(reached) if reached and len(reached) == len(ways) else None


def _percent(ways: Sequence[Point | None], *, bold: bool) -> str:
    reached = [100 * way[2] for way in ways if way is not None]
    if not ways:
        return "not run"
    if len(reached) < len(ways):
        return "not reached" if not reached else f"{len(reached)} of {len(ways)} seeds: {statistics.mean(reached):.1f}"
    text = f"{statistics.mean(reached):.1f}" + (f" ± {statistics.stdev(reached):.1f}" if len(reached) > 1 else "")
    return f"**{text}**" if bold else text


def _kg(ways: Sequence[Point | None]) -> str:
    reached = [way for way in ways if way is not None]
    if not reached:
        return "-"
    kg = [way[1] for way in reached]
    spread = f" ± {statistics.stdev(kg):.2f}" if len(kg) > 1 else ""
    missed = f", {len(ways) - len(reached)} not" if len(reached) < len(ways) else ""
    return f"{statistics.mean(kg):.2f}{spread} ({statistics.mean(way[0] for way in reached):.0f}{missed})"


def _name(method: str) -> str:
    return {"auto": "ours (auto)", "paper": "the paper's", "no-slack": "no slack", "fedzero": "FedZero",
            "threshold": "threshold", FULL: "full training"}.get(method, method)  # fmt: skip


def write_page(page: Path, results: str, targets: str) -> None:
    """Replace the tables of a page: the headline, and the details."""
    write_between(page, _BEGIN, _END, results, "## Results")
    write_between(page, _BEGIN_DETAILS, _END_DETAILS, targets, "## All targets")


def draw(rows: Iterable[Row], titles: Mapping[str, str], methods: Sequence[str], out: Path) -> Path:
    """Draw each method's final score at each budget, the mean over seeds, against its emissions."""
    kept = list(rows)
    found = _found(kept, titles)
    columns = min(2, len(found)) or 1
    lines = -(-len(found) // columns) or 1
    figure = style.new_figure(style.TEXT_IN, 0.5 + 2.5 * lines)
    grid = figure.subplots(lines, columns, squeeze=False)
    for axes in grid.flat[len(found) :]:
        axes.set_visible(False)
    for axes, (task, result) in zip(grid.flat, found.items(), strict=False):
        lowest: list[float] = []
        for number, method in enumerate(methods):
            groups: dict[int, list[Row]] = defaultdict(list)
            for of in result.of.get(method, {}).values():
                for row in of:
                    if row["status"] == TRAINED:
                        groups[row["hours"]].append(row)
            points = sorted(
                (statistics.mean(r["kg"] for r in of), statistics.mean(r["score"] for r in of))
                for of in groups.values()
            )
            if points:
                lowest.append(points[0][0])
                axes.plot(
                    [kg for kg, _ in points], [100 * score for _, score in points], label=_name(method), markersize=4,
                    marker=style.MARKERS[number % len(style.MARKERS)], color=style.SERIES[number % len(style.SERIES)],
                    linewidth=1.2, zorder=3.0 - 0.1 * number,
                )  # fmt: skip
        full = [row for of in result.of.get(FULL, {}).values() for row in of if row["status"] == TRAINED]
        if full:
            mean = statistics.mean(row["score"] for row in full)
            axes.axhline(100 * mean, color=style.MUTED, linestyle=":", linewidth=1.0)
        axes.set_xscale("log")
        axes.set_xticks([tick for tick in _TICKS_KG if lowest and 0.7 * min(lowest) <= tick <= 25 * min(lowest)])
        axes.xaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
        axes.set_title(titles[task], fontsize=style.TITLE_PT)
        metric = full[0]["metric"] if full else "score"
        style.tidy(axes, grid="y", xlabel="kg CO$_2$e charged", ylabel=f"{metric} x 100; dotted: full training")
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=len(methods), frameon=False, fontsize=style.FONT_PT,
        columnspacing=1.2, handletextpad=0.5,
    )  # fmt: skip
    out.parent.mkdir(parents=True, exist_ok=True)
    return style.save(figure, out)
