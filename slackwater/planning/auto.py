"""Choose every setting from the carbon data, by a prediction of how well a schedule trains."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from slackwater.errors import InfeasibleError
from slackwater.planning.exact import BUDGET_ROUNDING
from slackwater.planning.plan import DEFAULT_AGGREGATOR, ECHO_GAMMA, ECHO_MOST, Plan, Recommendation
from slackwater.planning.planner import Solver, plan
from slackwater.planning.problem import Alpha, Problem
from slackwater.planning.schedule import no_slack_plan, unproved_plan

RATES = (0.9, 0.318, 0.112, 0.0398, 0.0141, 0.005)
"""Shares of the way that a round covers."""
HETEROGENEITY = 0.1
"""Squared distance of a client's optimum from the mean of all, over that of the first model."""
REMEMBERED = round(1 / (1 - ECHO_GAMMA))
"""Rounds that `echo` remembers."""
MOST_GROUPS = 64
"""Clients with the same slots are one group; of more groups than this, as many are taken, evenly by number of slots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """What a schedule leaves undone; smaller is better."""

    unlearned: float
    """Mean over the rates of rho^2: how much of the way from the first model to the optimum is left."""
    uneven: float
    """Mean over the rates of sum_c (beta_c - mean)^2: how unevenly the clients count in the last model."""

    @property
    def error(self) -> float:
        """Mean squared distance of the last model from the optimum, over that of the first."""
        return self.unlearned + HETEROGENEITY * self.uneven


def quality(plan: Plan, *, fedavg: bool = False) -> Quality:
    """Of a plan that is trained by `echo`, or by FedAvg throughout."""
    rows, times = _groups(plan)
    active = plan.matrix.any(axis=0)
    in_window = np.full(plan.problem.horizon, fedavg)
    in_window[plan.before : plan.problem.rounds + plan.end] = True
    return follow(rows[:, active], times, in_window[active])


def forgotten(plan: Plan) -> float:
    """Share of the clients whose latest update is older than `echo` remembers when the window begins."""
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
    """`rows` [group, round], who trains; `times` [group], how many clients it stands for; `in_window` [round]."""
    groups, rounds = rows.shape
    pace = np.array(rates)[:, None]
    clients = float(times.sum())
    model = np.zeros((len(rates), groups + 1))
    """[rate, group or first model]: coefficients of the optima and of theta_0."""
    model[:, -1] = 1.0
    stored = np.zeros((groups, len(rates), groups + 1))
    length, worth = np.zeros(groups), np.zeros(groups)
    # A client's own update points to its own optimum, the mean of its group's to the mean of theirs.
    own = heterogeneity * float((pace**2).mean()) * (1 - 1 / times)
    for t in range(rounds):
        there = np.flatnonzero(rows[:, t])
        stored[there] = pace * model
        stored[there, :, there] -= pace[:, 0]
        if in_window[t]:
            weights = times[there] / times[there].sum()
            model = model - np.tensordot(weights, stored[there], axes=1)
            continue
        length[there] = np.sqrt(_squares(stored[there], times, clients, heterogeneity) + own[there])
        worth *= ECHO_GAMMA
        worth[there] = 1.0
        usual = float(times[there] @ length[there] / times[there].sum())
        weights = times * worth / float(times @ worth)
        weights = weights * np.minimum(1.0, usual / np.maximum(length, np.finfo(float).tiny))
        update = np.tensordot(weights, stored, axes=1)
        whole, shorter = float(weights @ length), math.sqrt(float(_squares(update, times, clients, heterogeneity)))
        model = model - update * (min(ECHO_MOST, whole / shorter) if shorter > 0 else 1.0)
    beta, rho = model[:, :-1], model[:, -1]
    return Quality(unlearned=float((rho**2).mean()), uneven=float(_spread(beta, times, clients).mean()))


def _squares(
    updates: NDArray[np.float64], times: NDArray[np.float64], clients: float, heterogeneity: float
) -> NDArray[np.float64]:
    """Squared lengths of updates [.., rate, group or first model], for optima that lie anywhere around their mean."""
    squares = updates[..., -1] ** 2 + heterogeneity * _spread(updates[..., :-1], times, clients)
    return np.asarray(squares.mean(axis=-1))


def _spread(beta: NDArray[np.float64], times: NDArray[np.float64], clients: float) -> NDArray[np.float64]:
    """Sum over clients of the squared deviation of their coefficients; those of a group share its coefficient."""
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
"""Not 0: without a window long slack lost up to five points (docs/research/auto.md)."""
ALPHAS: tuple[Alpha, ...] = (0.1, 0.01)
"""Nothing above the paper's 0.1: that leaves clients out before the window."""
RECALL = 10
"""Slots before the window in which everybody trains at least once, in half of the schedules that are looked at."""
RECALL_WORTH = 1.25
"""These must promise an error so many times smaller: with little budget their rare clients are heard late, and not before."""
_MOST_ENDS = 160
"""End times that are looked at with the first window and alpha, evenly over the slack; fewer with many clients."""
_BEST_ENDS = 12
"""Of these the best are looked at with the other windows and alphas."""
_FINALISTS = 8
_MOST_CELLS = 20_000_000
"""Client-slots up to which what is left of a budget is spent; of more, it would not buy one in a million."""
_MANY, _FEWER_ENDS = 1000, 16
"""From so many clients on a schedule takes a second or more."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Looked:
    """One schedule, and what it promises."""

    plan: Plan
    quality: Quality

    @property
    def rank(self) -> tuple[int, float]:
        """Smaller is better: first that nobody trains in the window alone, then the predicted error.

        The error counts more by the share of clients that are forgotten: the predictor is linear, but a deep network
        that ends on the rounds of one or two clients loses what the others taught it (docs/research/auto.md).
        """
        plan = self.plan
        alone = int(np.count_nonzero(~plan.matrix[:, : plan.before].any(axis=1)))
        return alone, self.quality.error * (1 + forgotten(plan)) * (RECALL_WORTH if plan.problem.recall else 1)


def auto_plan(
    problem: Problem, *, end: int | None = None, solver: Solver = "exact", time_limit_s: float = 60.0
) -> Plan:
    """The plan of the least predicted error over s, t_ft and alpha, for the given `end` if there is one.

    Among those in which as few clients as possible train in the window alone: where clients' data differ much, leaving
    one out cost more than a longer schedule gained (docs/research/auto.md).

    The problem's own `fine_tune`, `recall` and `alpha` are not used. Schedules are compared as the greedy makes them; the
    most promising are solved by `solver`, spend what is left, and are compared again.
    """
    many = len(problem.fleet) >= _MANY
    slack = problem.horizon - problem.rounds
    most = min(slack + 1, _FEWER_ENDS if many else _MOST_ENDS)
    ends = sorted({round(s) for s in np.linspace(0, slack, most)}) if end is None else [end]
    seen = _search(problem.with_settings(recall=0), ends)
    if not problem.coupled:
        with contextlib.suppress(InfeasibleError):
            seen += _search(problem.with_settings(recall=RECALL), ends)
    # The greedy's schedule may differ from the solver's in a slot that matters, so the last word is on the solver's own.
    slow = many or solver == "milp" or problem.coupled
    finalists = sorted(seen, key=lambda one: one.rank)[: 1 if slow else _FINALISTS]
    solved = [
        spend(plan(one.plan.problem, end=one.plan.end, solver=solver, time_limit_s=time_limit_s)) for one in finalists
    ]
    best = min((_Looked(plan=one, quality=quality(one)) for one in solved), key=lambda one: one.rank)
    return replace(best.plan, recommended=_recommendation(best.plan, best.quality, len(seen)))


def spend(made: Plan) -> Plan:
    """The same plan with every client-slot before the window that what is left of its budget still pays, cheapest first.

    An optimal plan leaves none, but for slots that its objective counts for nothing; a greedy or unproved one may.
    """
    problem, before = made.problem, made.before
    if len(problem.fleet) * before > _MOST_CELLS:
        return made
    costs, matrix = problem.costs, made.matrix
    room = problem.budget_kg * (1 + BUDGET_ROUNDING) - made.emissions_kg
    open_to = costs.can_train()[:, :before] & ~matrix[:, :before]
    prices = np.where(open_to, costs.dense()[:, :before], np.inf)
    counts, together = matrix[:, :before].sum(axis=1), matrix[:, :before].sum(axis=0)
    bought = 0
    affordable = np.argwhere(prices <= room)
    for client, slot in affordable[np.argsort(prices[tuple(affordable.T)], kind="stable")].tolist():
        price = float(prices[client, slot])
        starts = costs.server_kg is not None and not together[slot]
        price += float(costs.server_kg[slot]) if costs.server_kg is not None and starts else 0.0
        full = problem.max_parallel is not None and together[slot] >= problem.max_parallel
        if price > room or full or counts[client] >= problem.fleet.max_slots[client]:
            continue
        matrix[client, slot] = True
        counts[client] += 1
        together[slot] += 1
        room -= price
        bought += 1
    if not bought:
        return made
    more = unproved_plan(problem, np.packbits(matrix, axis=1), end=made.end, solver=made.solver, began=0.0)
    bound = max(made.upper_bound, more.objective)
    return replace(made, packed=more.packed, objective=more.objective, upper_bound=bound)


def _search(problem: Problem, ends: Sequence[int]) -> list[_Looked]:
    """Every end time with the first window and alpha, the best of them with the others."""
    seen = _look(problem, FINE_TUNES[0], ALPHAS[0], ends)
    best = sorted(seen, key=lambda one: one.rank)[: 1 if len(problem.fleet) >= _MANY else _BEST_ENDS]
    for fine_tune, alpha in list(product(FINE_TUNES, ALPHAS))[1:]:
        if fine_tune <= problem.horizon:
            # A longer window may not be paid for, or meet somebody who is not there.
            with contextlib.suppress(InfeasibleError):
                seen += _look(problem, fine_tune, alpha, [one.plan.end for one in best])
    return seen


def _look(problem: Problem, fine_tune: int, alpha: Alpha, ends: Sequence[int]) -> list[_Looked]:
    """Schedules for those end times that have one; if none has, the refusal with the smallest budget that would do."""
    variant = problem.with_settings(fine_tune=fine_tune, alpha=alpha)
    seen: list[_Looked] = []
    refused: InfeasibleError | None = None
    for end in ends:
        try:
            found = plan(variant, end=end, solver="greedy")
        except InfeasibleError as error:
            refused = _cheaper(refused, error)
        else:
            seen.append(_Looked(plan=found, quality=quality(found)))
    if not seen and refused is not None:
        raise refused
    return seen


def _cheaper(one: InfeasibleError | None, other: InfeasibleError) -> InfeasibleError:
    """The refusal with the smaller of the budgets that would do."""
    if one is None or one.least_budget_kg is None:
        return other
    return other if other.least_budget_kg is not None and other.least_budget_kg < one.least_budget_kg else one


def _recommendation(chosen: Plan, predicted: Quality, looked: int) -> Recommendation:
    problem, slots = chosen.problem, chosen.slots_per_client
    rare, often = int(np.argmin(slots)), int(np.argmax(slots))
    names = problem.fleet.names
    least = f"{slots[rare]} slot{'s' if slots[rare] != 1 else ''}"
    without = _without_slack(problem)
    against = "" if without is None else f", against {without[1]:.3g} for everybody without slack"
    window = f"{problem.fine_tune} slot{'s' if problem.fine_tune > 1 else ''}"
    recalled = f", everybody once in the {problem.recall} slots before it" if problem.recall else ""
    recent = round(len(slots) * (1 - forgotten(chosen)))
    why = [
        f"Of {looked} schedules, the one that ends at s = {chosen.end} with a window of {window}{recalled} and alpha = "
        f"{problem.alpha} is predicted to train best: it leaves {predicted.error:.3g} of the first model's error{against}, "
        f"and {recent:,} of {len(slots):,} clients train in the last {REMEMBERED} rounds before the window."
    ]
    if without is not None:
        why.append(
            f"It has {int(slots.sum()):,} client-slots of training where the budget pays {without[0]:,} without slack."
        )
    why.append(
        f"Participation is uneven, from {least} of {names[rare]!s} to {slots[often]} of {names[often]!s}: "
        f"{AGGREGATOR} remembers every client's latest update, and was the best or close to it at every end time measured."
        if slots[rare] < slots[often]
        else f"All clients train in {least}; {AGGREGATOR} is still ahead of FedAvg, since its steps are longer."
    )
    left = problem.budget_kg - chosen.emissions_kg
    why.append(
        f"{max(0.0, left):.2g} kg of the budget are left, for which no further slot before the window can be had."
    )
    return Recommendation(
        aggregator=AGGREGATOR,
        settings={"end": chosen.end, "fine_tune": problem.fine_tune, "recall": problem.recall, "alpha": problem.alpha},
        error=predicted.error,
        why=tuple(why),
    )


def _without_slack(problem: Problem) -> tuple[int, float] | None:
    """Client-slots and predicted error of FedAvg with everybody; None if the budget does not pay one round of it."""
    try:
        everybody = no_slack_plan(problem)
    except InfeasibleError:
        return None
    return int(everybody.slots_per_client.sum()), quality(everybody, fedavg=True).error
