"""Plans from a given schedule, and the baseline without slack: counted, not optimised."""

from __future__ import annotations

import math
import time
from bisect import bisect_left

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slackwater.errors import InfeasibleError, ScenarioError
from slackwater.planning.emissions import Emissions, emissions, utilities_of
from slackwater.planning.exact import BUDGET_ROUNDING
from slackwater.planning.plan import Plan
from slackwater.planning.problem import Problem
from slackwater.planning.states import reachable
from slackwater.units import iso

GIVEN = "given"


def plan_from_matrix(problem: Problem, matrix: ArrayLike, *, end: int, levels: ArrayLike | None = None) -> Plan:
    """Return the plan of a schedule [client, slot] over the whole horizon that ends at s = `end`.

    The schedule must meet the problem's constraints: window, availability, limits and budgets. Its bound is the trivial
    one, so its gap says little.

    Args:
        problem: Clients, intensity and budget.
        matrix: [client, slot], whether a client trains.
        end: The end time s.
        levels: [client, slot], number of the level at which each trains. Default: full power.
    """
    began = time.perf_counter()
    chosen = _as_schedule(problem, matrix)
    slack = problem.horizon - problem.rounds
    if isinstance(end, bool) or not isinstance(end, int | np.integer) or not 0 <= end <= slack:
        raise ScenarioError(f"The end time s must be a whole number from 0 to the slack of {slack}, not {end!r}.")
    stop = problem.rounds + int(end)
    before = stop - problem.fine_tune
    if before < 0:
        raise ScenarioError(f"With s={end} the window of {problem.fine_tune} slots would begin before the first slot.")
    _check_slots(problem, chosen, before, stop)
    _check_limits(problem, chosen[:, :before])
    at_level = None if levels is None else _as_levels(problem, levels)
    packed = np.packbits(chosen, axis=1)
    made = unproved_plan(problem, packed, end=int(end), solver=GIVEN, began=began, levels=at_level)
    if made.emissions_kg > problem.budget_kg * (1 + BUDGET_ROUNDING):
        raise InfeasibleError(
            f"The schedule emits {made.emissions_kg:.6g} kg, over the budget of {problem.budget_kg:.6g} kg. Raise "
            "budget_kg to that, or take slots out.",
            least_budget_kg=made.emissions_kg,
            end=int(end),
        )
    if too_dear(problem, made.money):
        raise InfeasibleError(
            f"The schedule costs {made.money:.6g}, over budget_money = {problem.budget_money:.6g}. Raise budget_money to "
            "that, or take slots out.",
            end=int(end),
        )
    return made


def unproved_plan(
    problem: Problem,
    packed: NDArray[np.uint8],
    *,
    end: int,
    solver: str,
    began: float,
    levels: NDArray[np.uint8] | None = None,
) -> Plan:
    """Return a plan with a trivial bound: all clients in every slot of the horizon. It proves nothing about quality."""
    everyone = np.packbits(problem.costs.can_train(), axis=1)
    u, most = utilities_of(problem, packed, levels), utilities_of(problem, everyone)
    value, bound = _objective(problem, u), _objective(problem, most)
    return Plan(
        problem=problem,
        end=end,
        packed=packed,
        objective=value,
        upper_bound=max(bound, value),
        gap=max(0.0, bound - value) / max(abs(bound), abs(value), np.finfo(float).tiny),
        seconds=time.perf_counter() - began,
        solver=solver,
        levels=levels,
    )


def _objective(problem: Problem, u: NDArray[np.float64]) -> float:
    """Return the objective as the planner reports it: the sum of u^alpha, or of log u over clients with u > 0."""
    positive = u[u > 0]
    return math.fsum(np.log(positive) if problem.utility.kind == "log" else problem.utility.of(positive))


def _as_schedule(problem: Problem, matrix: ArrayLike) -> NDArray[np.bool_]:
    try:
        given = np.asarray(matrix)
    except ValueError:
        raise ScenarioError(
            "The schedule's rows differ in length. Give one row per client and one entry per slot."
        ) from None
    wanted = (len(problem.fleet), problem.horizon)
    if given.shape != wanted:
        raise ScenarioError(
            f"The schedule has the shape {given.shape}; the problem has {wanted[0]} clients and {wanted[1]} slots "
            f"(rounds + slack), so give it as {wanted}."
        )
    if given.dtype != bool and not np.isin(given, (0, 1)).all():
        raise ScenarioError("The schedule must hold only 0 and 1 (or False and True).")
    return given.astype(bool)


def _as_levels(problem: Problem, levels: ArrayLike) -> NDArray[np.uint8]:
    given, wanted = np.asarray(levels), (len(problem.fleet), problem.horizon)
    if given.shape != wanted or not np.isin(given, range(problem.costs.level_work.shape[1])).all():
        raise ScenarioError(f"levels must hold the number of a level, 0 for full power, in the shape {wanted}.")
    numbers = given.astype(np.uint8)
    if (np.take_along_axis(problem.costs.level_work, numbers.astype(np.intp), axis=1) == 0).any():
        raise ScenarioError("levels names a level that its client does not have.")
    return numbers


def _check_slots(problem: Problem, chosen: NDArray[np.bool_], before: int, stop: int) -> None:
    """Raise if a client trains after the end or when unavailable, or does not train in the window."""
    there = problem.costs.can_train()
    if (late := _first(problem, chosen[:, stop:], stop)) is not None:
        raise ScenarioError(f"{late}, but the run ends after {stop} slots. Choose a later end, or remove that slot.")
    if (absent := _first(problem, chosen & ~there, 0)) is not None:
        raise ScenarioError(f"{absent}, when it is not available.")
    wanted = there if problem.window == "available" else np.ones_like(there)
    if (missing := _first(problem, (wanted & ~chosen)[:, before:stop], before, verb="does not train")) is not None:
        raise ScenarioError(
            f"{missing}, which is in the fine-tuning window (slots {before} to {stop - 1}). All clients must train there: "
            "fill the window, or set fine_tune=0."
        )


def _check_limits(problem: Problem, earlier: NDArray[np.bool_]) -> None:
    """Raise if a limit of a client or a slot is broken before the window."""
    fleet, most = problem.fleet, problem.max_parallel
    counts = earlier.sum(axis=1)
    wrong = np.flatnonzero((counts < fleet.min_slots) | (counts > fleet.max_slots))
    if len(wrong):
        client = int(wrong[0])
        few = counts[client] < fleet.min_slots[client]
        limit = f"at least {fleet.min_slots[client]}" if few else f"at most {fleet.max_slots[client]}"
        raise ScenarioError(
            f"{str(fleet.names[client])!r} has {counts[client]} slots before the window; it must have {limit} "
            f"({'min' if few else 'max'}_slots)."
        )
    first = max(0, earlier.shape[1] - problem.recall)
    could = problem.costs.can_train()[:, first : earlier.shape[1]].any(axis=1) & (fleet.max_slots > 0)
    if problem.trained_ago is not None:  # whoever trained shortly before the horizon need not train again so soon
        could &= np.asarray(problem.trained_ago) + earlier.shape[1] > problem.recall
    if len(silent := np.flatnonzero(could & ~earlier[:, first:].any(axis=1))):
        raise ScenarioError(
            f"{str(fleet.names[silent[0]])!r} does not train in the last {problem.recall} slots before the window, where "
            f"recall = {problem.recall} asks for it (slots {first} to {earlier.shape[1] - 1})."
        )
    together = earlier.sum(axis=0)
    if most is not None and together.max(initial=0) > most:
        slot = int(together.argmax())
        raise ScenarioError(f"{together[slot]} clients train in slot {slot}; max_parallel allows {most}.")
    least = problem.min_parallel
    if least is not None and len(few_slots := np.flatnonzero((together > 0) & (together < least))):
        slot = int(few_slots[0])
        raise ScenarioError(
            f"Slot {slot} has {together[slot]} of the {least} clients that min_parallel asks for. Add clients there, or take "
            "the slot out."
        )


def _first(problem: Problem, wrong: NDArray[np.bool_], offset: int, verb: str = "trains") -> str | None:
    """Return the first wrong client and slot as the beginning of a sentence; None if there is none."""
    found = np.argwhere(wrong)
    if not len(found):
        return None
    client, slot = int(found[0][0]), offset + int(found[0][1])
    return f"{str(problem.fleet.names[client])!r} {verb} in slot {slot} ({iso(problem.slot_start(slot))})"


NO_SLACK = "no-slack"


def no_slack_plan(problem: Problem) -> Plan:
    """Return the baseline: all clients in slots 0 .. n-1, with n the most whole rounds that budget and traces allow.

    The problem's rounds, slack, fine-tuning window, `max_parallel` and `min_parallel` are ignored. Idle and server draw
    count. Unavailable clients skip their slots, and clients that sleep start in the first slot. The plan's own problem
    has `rounds` = n and no window: its end is s = 0.
    """
    problem.need_budget()
    began = time.perf_counter()
    longest = problem.reach
    everyone = problem.with_settings(
        rounds=longest, slack=0, deadline=None, fine_tune=0, recall=0, max_parallel=None, min_parallel=None,
        window="available",
    )  # fmt: skip
    costs = everyone.costs
    there = reachable(everyone)
    per_slot = (costs.dense() * there).sum(axis=0) + costs.idle_kg()
    if costs.server_kg is not None:
        per_slot = per_slot + np.where(there.any(axis=0), costs.server_kg, 0.0)
    paid = int(np.searchsorted(np.cumsum(per_slot), problem.budget_kg * (1 + BUDGET_ROUNDING), side="right"))
    if costs.sleeps.any() or problem.budget_money is not None:  # starts and blocks, or prices: by trying
        paid = bisect_left(range(1, paid + 1), True, key=lambda n: not _pays(everyone, there, n))
    if paid == 0:
        least = float(per_slot[0])
        if costs.sleeps.any():
            least = _first_slots(everyone, there, 1).total_kg
        if least <= problem.budget_kg:
            raise InfeasibleError(
                f"budget_money = {problem.budget_money:g} does not pay one round of all {len(problem.fleet)} clients in the "
                "first slot. Without slack no cheaper slot can be chosen; raise it."
            )
        raise InfeasibleError(
            f"The budget of {problem.budget_kg:.6g} kg does not pay one round of all {len(problem.fleet)} clients: in the "
            f"first slot it costs {least:.6g} kg. Without slack no cheaper slot can be chosen; raise budget_kg to that.",
            least_budget_kg=least,
        )
    slack = max(0, problem.horizon - paid)
    shown = everyone.with_settings(rounds=paid, slack=slack)
    matrix = np.zeros((len(problem.fleet), paid + slack), dtype=bool)
    matrix[:, :paid] = there[:, :paid]
    return unproved_plan(shown, np.packbits(matrix, axis=1), end=0, solver=NO_SLACK, began=began)


def _first_slots(everyone: Problem, there: NDArray[np.bool_], slots: int) -> Emissions:
    """Return the emissions of all available clients in the first slots."""
    first = there & (np.arange(there.shape[1]) < slots)[None, :]
    return emissions(everyone, np.packbits(first, axis=1), slots - everyone.rounds)


def _pays(everyone: Problem, there: NDArray[np.bool_], slots: int) -> bool:
    """Return whether both budgets pay for all available clients in the first slots."""
    needs = _first_slots(everyone, there, slots)
    return needs.total_kg <= everyone.budget_kg * (1 + BUDGET_ROUNDING) and not too_dear(everyone, needs.money)


def too_dear(problem: Problem, money: float | None) -> bool:
    """Return whether electricity of this price is over `budget_money`, if there is one."""
    most = problem.budget_money
    return most is not None and money is not None and money > most + BUDGET_ROUNDING * abs(most)
