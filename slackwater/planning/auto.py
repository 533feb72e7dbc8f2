"""Choose every setting from the carbon data, by predicting how well a schedule trains."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slackwater.errors import InfeasibleError
from slackwater.planning.exact import BUDGET_ROUNDING
from slackwater.planning.plan import DEFAULT_AGGREGATOR, ECHO_GAMMA, ECHO_MOST, Plan, Recommendation
from slackwater.planning.planner import DEFAULT_GAP, Done, Progress, Solver, optimise
from slackwater.planning.problem import Alpha, Problem
from slackwater.planning.schedule import no_slack_plan, unproved_plan

log = logging.getLogger(__name__)
RATES = (0.9, 0.318, 0.112, 0.0398, 0.0141, 0.005)
"""Shares of the distance to the optimum that a round covers."""
HETEROGENEITY = 0.1
"""Squared distance of a client's optimum from the mean optimum, relative to that of the first model."""
REMEMBERED = round(1 / (1 - ECHO_GAMMA))
"""Rounds that `echo` remembers."""
MOST_GROUPS = 64
"""Clients with the same slots form one group. Of more groups than this, this many are taken, evenly by number of slots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """The predicted training quality of a schedule; smaller is better."""

    unlearned: float
    """Mean over the rates of rho^2: the part of the way from the first model to the optimum that remains."""
    uneven: float
    """Mean over the rates of sum_c (beta_c - mean)^2: how unevenly the clients count in the last model."""

    @property
    def error(self) -> float:
        """Return the mean squared distance of the last model from the optimum, relative to that of the first."""
        return self.unlearned + HETEROGENEITY * self.uneven


def quality(plan: Plan, *, fedavg: bool = False) -> Quality:
    """Return the predicted quality of a plan trained with `echo`, or with FedAvg throughout."""
    rows, times = _groups(plan)
    active = plan.matrix.any(axis=0)
    in_window = np.full(plan.problem.horizon, fedavg)
    in_window[plan.before : plan.problem.rounds + plan.end] = True
    return follow(rows[:, active], times, in_window[active])


FULL_ROUNDS = 50
"""Rounds of all clients with FedAvg that count as full training."""
CALIBRATION = (0.1642, 0.71)
"""(a, b) of missing share = a * (predicted share)^b, fitted on MNIST cells (docs/research/calibration.md; a test repeats the fit)."""
CALIBRATION_BAND = (-0.033, 0.176)
"""10 and 90 % quantiles of measured minus calibrated share, on tasks and weeks that were not fitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """How much of full training's gain in score a schedule should miss; full training is 50 rounds of all clients."""

    missing: float
    """Share of the gain over an untrained model: 0.02 is two per cent of it."""
    low: float
    high: float
    """Limits that hold about 80 % of the schedules measured on tasks that were not fitted. Below 0: better than full training."""


def expected(error: float, clients: int) -> Expected:
    """Return the calibrated meaning of a predicted remaining error."""
    everybody = np.ones((1, FULL_ROUNDS), dtype=bool)
    full = follow(everybody, np.array([float(clients)]), np.ones(FULL_ROUNDS, dtype=bool)).error
    factor, power = CALIBRATION
    missing = float(factor * max(0.0, (error - full) / (1 - full)) ** power)
    return Expected(missing=missing, low=missing + CALIBRATION_BAND[0], high=missing + CALIBRATION_BAND[1])


def forgotten(plan: Plan) -> float:
    """Return the share of clients whose latest update is older than `echo` remembers when the window begins."""
    before = plan.matrix[:, : plan.before]
    rounds = before[:, before.any(axis=0)]
    return float(np.mean(~rounds[:, -REMEMBERED:].any(axis=1)))


def follow(
    rows: NDArray[np.bool_],
    times: NDArray[np.float64],
    in_window: NDArray[np.bool_],
    rates: tuple[float, ...] = RATES,
    heterogeneity: float = HETEROGENEITY,
) -> Quality:
    """Return the predicted quality, following the model round by round.

    `rows` [group, round] says who trains, `times` [group] how many clients a group stands for, `in_window` [round]
    where FedAvg is used.
    """
    groups, rounds = rows.shape
    pace = np.array(rates)[:, None]
    clients = float(times.sum())
    model = np.zeros((len(rates), groups + 1))
    """[rate, group or first model]: coefficients of the optima and of theta_0."""
    model[:, -1] = 1.0
    stored = np.zeros((groups, len(rates), groups + 1))
    flat = stored.reshape(groups, -1)
    length, worth, tiny = np.zeros(groups), np.zeros(groups), np.finfo(float).tiny
    of_groups, of_sum = np.append(heterogeneity / times, 1.0), heterogeneity / clients
    only_groups, over_rates = np.append(np.ones(groups), 0.0), np.full(len(rates), 1 / len(rates))

    def squares(updates: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return squared lengths of updates [.., rate, group or first model], for optima anywhere around their mean."""
        together = (
            updates @ only_groups
        )  # products with vectors: sums and means of small arrays take several times longer
        found = ((updates * updates) @ of_groups - of_sum * together * together) @ over_rates
        return np.asarray(np.maximum(found, 0.0))  # rounding of a difference

    # A client's update points to its own optimum, the mean update of its group to the mean of their optima.
    own = heterogeneity * float((pace**2).mean()) * (1 - 1 / times)
    for t in range(rounds):
        there = np.flatnonzero(rows[:, t])
        stored[there] = pace * model
        stored[there, :, there] -= pace[:, 0]
        if in_window[t]:
            weights = times[there] / times[there].sum()
            model = model - np.tensordot(weights, stored[there], axes=1)
            continue
        length[there] = np.sqrt(squares(stored[there]) + own[there])
        worth *= ECHO_GAMMA
        worth[there] = 1.0
        usual = float(times[there] @ length[there] / times[there].sum())
        weights = times * worth / float(times @ worth)
        weights = weights * np.minimum(1.0, usual / np.maximum(length, tiny))
        update = (weights @ flat).reshape(model.shape)
        whole, shorter = float(weights @ length), math.sqrt(float(squares(update)))
        model = model - update * (min(ECHO_MOST, whole / shorter) if shorter > 0 else 1.0)
    beta, rho = model[:, :-1], model[:, -1]
    return Quality(unlearned=float((rho**2).mean()), uneven=float(_spread(beta, times, clients).mean()))


def _spread(beta: NDArray[np.float64], times: NDArray[np.float64], clients: float) -> NDArray[np.float64]:
    """Return the sum over clients of the squared deviation of their coefficients; a group's clients share one."""
    mean = beta.sum(axis=-1, keepdims=True) / clients
    return np.asarray(((beta / times - mean) ** 2 * times).sum(axis=-1))


def _groups(plan: Plan) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    packed, times = np.unique(plan.packed, axis=0, return_counts=True)
    if len(packed) > MOST_GROUPS:
        order = np.argsort(np.bitwise_count(packed).sum(axis=1), kind="stable")
        chosen = order[np.linspace(0, len(order) - 1, MOST_GROUPS).round().astype(np.intp)]
        packed, times = packed[chosen], np.full(MOST_GROUPS, math.ceil(times.sum() / MOST_GROUPS))
    return np.unpackbits(packed, axis=1, count=plan.problem.horizon).astype(bool), times.astype(np.float64)


AGGREGATOR = DEFAULT_AGGREGATOR
FINE_TUNES = (1, 2, 3)
"""Never 0: without a window, long slack lost up to five points (docs/research/auto.md)."""
ALPHAS: tuple[Alpha, ...] = (0.1, 0.01)
"""At most the paper's 0.1: a larger alpha leaves clients out before the window."""
RECALL = 10
"""Slots before the window in which every client trains at least once, in half of the schedules compared."""
RECALL_WORTH = 1.25
"""With recall the error must be this many times smaller (20 % less): on a small budget, rare clients then train only late."""
LATE_COST = 5.0
"""A schedule whose clients all train only in the window counts as 1 + this many times its error. With less than 3, schedules that
leave a client out were chosen where one with everybody trained better; as a rule without exception, it chose s = 0 where the
budget pays so few slots that every longer schedule leaves one out (two-hour slots, docs/research/auto.md)."""
_MOST_ENDS = 160
"""End times compared with the first window and alpha; fewer with many clients or a long horizon."""
_BEST_ENDS = 12
"""Best end times that are also compared with the other windows and alphas."""
_FEW_BEST = 3
"""The same with a long horizon."""
_FINALISTS = 8
_MOST_CELLS = 20_000_000
"""Client-slots up to which the rest of a budget is spent; with more, it would not buy one in a million."""
_LOOKED_CELLS = 10_000_000
"""Client-slots of all first schedules together, so that a year of hours takes no minute: fewer end times are compared."""
_MANY, _FEWER_ENDS = 1000, 16
"""From this many clients on, a schedule takes a second or more, so fewer end times are compared."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Looked:
    """A schedule and its predicted quality."""

    plan: Plan
    quality: Quality

    @property
    def rank(self) -> float:
        """Return the sort key, smaller is better: the predicted error, raised for what the predictor does not see.

        It grows with the share of forgotten clients and with the share that trains only in the window. The predictor is
        linear, but a deep network that ends on the rounds of one or two clients loses what the others taught it, and
        where data differ much, a client that is left out is missed (docs/research/auto.md).
        """
        plan = self.plan
        late = float(np.mean(~plan.matrix[:, : plan.before].any(axis=1)))
        raised = (1 + forgotten(plan)) * (1 + LATE_COST * late)
        return self.quality.error * raised * (RECALL_WORTH if plan.problem.recall else 1)


def auto_plan(
    problem: Problem,
    *,
    end: int | None = None,
    solver: Solver = "exact",
    gap: float = DEFAULT_GAP,
    time_limit_s: float = 60.0,
    progress: Progress | None = None,
) -> Plan:
    """Return the plan with the least predicted error over s, t_ft, recall and alpha, or for a given `end`.

    A schedule counts as worse the more of its clients train only in the window: where clients' data differ much, leaving
    one out cost more than a longer schedule gained (docs/research/auto.md).

    Of `fine_tune`, `recall` and `alpha`, those that the problem leaves free are chosen. The greedy makes the schedules
    to compare. `solver` solves the most promising; these spend the rest of their budget and are compared again. Ctrl-C
    ends the comparison; the best schedule so far is returned.
    """
    many = len(problem.fleet) >= _MANY
    slack = problem.horizon - problem.rounds
    cells = len(problem.fleet) * problem.horizon
    most = min(slack + 1, _FEWER_ENDS if many else max(_FEWER_ENDS, min(_MOST_ENDS, _LOOKED_CELLS // cells)))
    ends = _ends(slack, most) if end is None else [end]
    look = _Look(problem=problem, ends=ends, progress=progress)
    seen = look.all()
    # The greedy's schedule may differ from the solver's in a slot that matters, so the solver's schedules decide.
    slow = many or solver == "milp" or problem.coupled
    finalists = sorted(seen, key=lambda one: one.rank)[: 1 if slow else _FINALISTS]
    solved = [
        spend(optimise(one.plan.problem, end=one.plan.end, solver=solver, gap=gap, time_limit_s=time_limit_s))
        for one in finalists
    ]
    best = min((_Looked(plan=one, quality=quality(one)) for one in solved), key=lambda one: one.rank)
    return replace(best.plan, recommended=_recommendation(best.plan, best.quality, len(seen)))


def _ends(slack: int, most: int) -> list[int]:
    """Return at most so many end times from 0 to the slack: all of them, or half evenly spaced and half in equal ratios.

    A small budget is spent within the first per cent of a long slack, between the first two of evenly spaced end times.
    """
    if slack < most:
        return list(range(slack + 1))
    half = most // 2
    near = np.geomspace(1, slack, most - half).round().astype(int).tolist()
    return sorted({round(s) for s in np.linspace(0, slack, half)} | set(near))


def spend(made: Plan) -> Plan:
    """Return the plan with all client-slots before the window that the rest of its budget pays, cheapest first.

    An optimal plan leaves only slots without value for its objective; a greedy or unproved one may leave others. Clients that
    are off between blocks get no slot more: it could cost a start.
    """
    problem, before = made.problem, made.before
    if len(problem.fleet) * before > _MOST_CELLS:
        return made
    costs, matrix = problem.costs, made.matrix
    room = problem.budget_kg * (1 + BUDGET_ROUNDING) - made.emissions_kg
    open_to = costs.can_train()[:, :before] & ~matrix[:, :before] & ~costs.sleeps[:, None]
    money = math.inf if problem.budget_money is None else problem.budget_money - (made.money or 0.0)
    prices = np.where(open_to, costs.dense()[:, :before], np.inf)
    counts, together = matrix[:, :before].sum(axis=1), matrix[:, :before].sum(axis=0)
    bought = 0
    affordable = np.argwhere(prices <= room)
    for client, slot in affordable[np.argsort(prices[tuple(affordable.T)], kind="stable")].tolist():
        price = float(prices[client, slot])
        starts = costs.server_kg is not None and not together[slot]
        price += float(costs.server_kg[slot]) if costs.server_kg is not None and starts else 0.0
        full = problem.max_parallel is not None and together[slot] >= problem.max_parallel
        alone = together[slot] + 1 < (problem.min_parallel or 1)
        cost = 0.0 if costs.price is None else float(costs.energy_kwh[client] * costs.price[costs.row[client], slot])
        cost += costs.server_kwh * float(costs.server_price[slot]) if costs.server_price is not None and starts else 0.0
        if price > room or cost > money or full or alone or counts[client] >= problem.fleet.max_slots[client]:
            continue
        matrix[client, slot] = True
        counts[client] += 1
        together[slot] += 1
        room, money = room - price, money - cost
        bought += 1
    if not bought:
        return made
    more = unproved_plan(
        problem, np.packbits(matrix, axis=1), end=made.end, solver=made.solver, began=0.0, levels=made.levels
    )
    bound = max(made.upper_bound, more.objective)
    return replace(made, packed=more.packed, objective=more.objective, upper_bound=bound)


@dataclass(kw_only=True)
class _Look:
    """The schedules that are compared, and how many of them are made."""

    problem: Problem
    ends: Sequence[int]
    progress: Progress | None
    began: float = field(default_factory=time.perf_counter)
    made: int = 0

    def all(self) -> list[_Looked]:
        """Return schedules for all values of the settings that are free; after Ctrl-C, those made until then."""
        seen: list[_Looked] = []
        problem = self.problem
        recalls = (0, RECALL) if "recall" in problem.free else (problem.recall,)
        try:
            self._search(_chosen(problem, recall=recalls[0]), seen)
            for recall in recalls[1:]:
                with contextlib.suppress(InfeasibleError):
                    self._search(_chosen(problem, recall=recall), seen)
        except KeyboardInterrupt:
            if not seen:
                raise
            log.warning("Stopped: this is the best of the %d schedules compared so far.", len(seen))
        return seen

    def _search(self, problem: Problem, seen: list[_Looked]) -> None:
        """Add schedules for every end time with the first window and alpha, and for the best with the others."""
        windows = FINE_TUNES if "fine_tune" in problem.free else (problem.fine_tune,)
        alphas = ALPHAS if "alpha" in problem.free else (problem.alpha,)
        settings = list(product(windows, alphas))
        first = len(seen)
        self._look(problem, *settings[0], self.ends, seen)
        few = len(self.ends) < _MOST_ENDS and len(problem.fleet) * problem.horizon * _MOST_ENDS > _LOOKED_CELLS
        count = 1 if len(problem.fleet) >= _MANY else _FEW_BEST if few else _BEST_ENDS
        best = sorted(seen[first:], key=lambda one: one.rank)[:count]
        for fine_tune, alpha in settings[1:]:
            if fine_tune <= problem.horizon:
                # A longer window may exceed the budget or include an unavailable client.
                with contextlib.suppress(InfeasibleError):
                    self._look(problem, fine_tune, alpha, [one.plan.end for one in best], seen)

    def _look(self, problem: Problem, fine_tune: int, alpha: Alpha, ends: Sequence[int], seen: list[_Looked]) -> None:
        """Add a schedule for each feasible end time; if none is, raise the error with the smallest sufficient budget."""
        variant = _chosen(problem, fine_tune=fine_tune, alpha=alpha)
        refused: InfeasibleError | None = None
        before = len(seen)
        for end in ends:
            try:
                found = optimise(variant, end=end, solver="greedy")
            except InfeasibleError as error:
                refused = _cheaper(refused, error)
            else:
                seen.append(_Looked(plan=found, quality=quality(found)))
            self.made += 1
            if self.progress is not None:
                self.progress(Done(seconds=time.perf_counter() - self.began, schedules=self.made))
        if len(seen) == before and refused is not None:
            raise refused


def _chosen(problem: Problem, **settings: Any) -> Problem:
    """Return the problem with chosen settings, which stay free."""
    return problem.with_settings(free=problem.free, **settings)


def _cheaper(one: InfeasibleError | None, other: InfeasibleError) -> InfeasibleError:
    """Return the error with the smaller sufficient budget."""
    if one is None or one.least_budget_kg is None:
        return other
    return other if other.least_budget_kg is not None and other.least_budget_kg < one.least_budget_kg else one


def _recommendation(chosen: Plan, predicted: Quality, looked: int) -> Recommendation:
    problem, slots = chosen.problem, chosen.slots_per_client
    rare, often = int(np.argmin(slots)), int(np.argmax(slots))
    names = problem.fleet.names
    least = f"{slots[rare]} slot{'s' if slots[rare] != 1 else ''}"
    without = without_slack(problem)
    against = "" if without is None else f" (same budget without slack: {100 * without[1]:.3g} %)"
    window = f"{problem.fine_tune} slot{'s' if problem.fine_tune > 1 else ''}"
    recalled = f", every client once in the {problem.recall} slots before it" if problem.recall else ""
    recent = round(len(slots) * (1 - forgotten(chosen)))
    why = [
        f"Best of {looked} schedules: s = {chosen.end}, a window of {window}{recalled}, and alpha = {problem.alpha}. "
        f"Predicted remaining error {100 * predicted.error:.3g} %{against}: a ranking score, not an accuracy. "
        f"{recent:,} of {len(slots):,} clients train in the last {REMEMBERED} rounds before the window."
    ]
    if without is not None:
        why.append(f"It trains {int(slots.sum()):,} client-slots; without slack the same budget pays {without[0]:,}.")
    why.append(
        f"Participation is uneven: {names[rare]!s} trains in {least}, {names[often]!s} in {slots[often]}. "
        f"{AGGREGATOR} remembers every client's latest update, and was best or close to it at every end time measured."
        if slots[rare] < slots[often]
        else f"All clients train in {least}; {AGGREGATOR} still beats FedAvg, because its steps are longer."
    )
    left = problem.budget_kg - chosen.emissions_kg
    why.append(
        f"{max(0.0, left):.3g} kg of the budget stay unused: no further slot before the window is open and affordable."
    )
    return Recommendation(
        aggregator=AGGREGATOR,
        settings={"end": chosen.end, "fine_tune": problem.fine_tune, "recall": problem.recall, "alpha": problem.alpha},
        error=predicted.error,
        why=tuple(why),
    )


def without_slack(problem: Problem) -> tuple[int, float] | None:
    """Return client-slots and predicted error of FedAvg with all clients; None if the budget does not pay one round."""
    try:
        everybody = no_slack_plan(problem)
    except InfeasibleError:
        return None
    return int(everybody.slots_per_client.sum()), quality(everybody, fedavg=True).error
