"""A greedy for coupled problems: take the client-slot with the largest gain per kg, until nothing fits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from slackwater.errors import InfeasibleError
from slackwater.planning import exact as selection
from slackwater.planning.cells import TIE, Candidate, Cells
from slackwater.planning.exact import Found, Groups, NoStageError, Stage, feasible_stages
from slackwater.planning.problem import NOISE, Problem


def solve_coupled_greedy(problem: Problem, ends: Sequence[int]) -> Found:
    """Return a good schedule, by largest gain per kg; the first client in a slot also pays the server's kg."""
    stages = coupled_stages(problem, ends)
    max_min = problem.utility.kind == "max-min"
    tops = [stage.at_best_level().least_utility if max_min else uncoupled_bound(stage) for stage in stages]
    best: Candidate | None = None
    for i in np.argsort(-np.array(tops), kind="stable"):
        if best is not None and tops[i] < (best.level if max_min else best.total) * (1 - TIE):
            break
        cells = Cells.of(stages[i])
        matrix = greedy(cells)
        if matrix is not None and (new := Candidate.of(cells, matrix)).beats(best):
            best = new
    if best is None:
        raise coupled_infeasible(problem, ends)
    if max_min:
        return best.found(max(uncoupled_bound(stage, best.level) for stage in stages), max(tops))
    return best.found(max(tops))


def coupled_stages(problem: Problem, ends: Sequence[int]) -> list[Stage]:
    """Return the stages that are feasible without coupling; no other can be feasible."""
    try:
        return feasible_stages(problem, ends)
    except InfeasibleError as error:
        if error.least_budget_kg is None or not problem.fleet.min_slots.any():
            raise
        raise coupled_infeasible(problem, ends) from error  # coupled, the least slots cost more


def uncoupled_bound(stage: Stage, level: float = 0.0) -> float:
    """Return a bound on the sum of f without coupling, where each client has at least this utility, kg."""
    if level > 0:
        raised = stage.at_level(level * (1 - TIE))
        if raised is None:
            return -math.inf
        stage = raised
    return selection.bound(stage.with_everyone())


def greedy(cells: Cells) -> NDArray[np.bool_] | None:
    """Return the greedy schedule for one end time; None if the clients' least slots do not fit together."""
    start = _least_slots(cells)
    return None if start is None else grow(cells, start)


def grow(cells: Cells, matrix: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return a schedule with all slots added that fit: by gain per kg, then those without gain, cheapest and earliest first."""
    growth = _Growth(cells, matrix)
    if cells.utility.kind == "max-min":
        growth.raise_level()
    growth.run()
    growth.per_gain = False
    growth.run()
    return growth.matrix


class _Growth:
    """A schedule that grows slot by slot, with the best next slot of every client at hand."""

    def __init__(self, cells: Cells, matrix: NDArray[np.bool_]) -> None:
        self.cells, self.matrix = cells, matrix.copy()
        self.u, self.count, self.load = cells.utilities(matrix), matrix.sum(axis=1), matrix.sum(axis=0)
        self.left = cells.room_kg - cells.kg(matrix)
        self.per_gain = True
        # Replaces a cost of 0, so that free slots rank by their gain.
        self.least_kg = max(NOISE * cells.stage.groups.g_max, 1e-300)
        self.price = cells.g + np.where(self.load == 0, cells.server, 0.0)
        self.closed = matrix | ~cells.open | (self.load >= cells.parallel)
        self.closed |= (self.count >= cells.high)[:, None]
        self.best = np.zeros(len(self.u), dtype=np.intp)
        self.score = np.zeros(len(self.u))

    def run(self) -> None:
        """Buy until nothing scores or fits."""
        for client in range(len(self.u)):
            self.look(client)
        while len(self.score) and self.score[client := int(self.score.argmax())] > 0:
            slot = int(self.best[client])
            if self.closed[client, slot] or self.price[client, slot] > self.left:
                self.look(client)
            else:
                self.buy(client, slot)

    def raise_level(self) -> None:
        """Buy for the client with the least utility, until it can get no more (max-min)."""
        for client in range(len(self.u)):
            self.look(client)
        while True:
            client = int(self.u.argmin())
            self.look(client)
            if self.score[client] <= 0:
                return
            self.buy(client, int(self.best[client]))

    def look(self, client: int) -> None:
        """Find a client's best next slot among those that fit."""
        if self.matrix.shape[1] == 0:
            return
        score = self._scores(client, slice(None))
        slot = int(score.argmax())
        self.best[client], self.score[client] = slot, score[slot]

    def buy(self, client: int, slot: int) -> None:
        """Take a slot, and update the scores that it changes."""
        cells = self.cells
        self.left -= self.price[client, slot]
        self.matrix[client, slot] = self.closed[client, slot] = True
        self.u[client] += cells.d[client, slot]
        self.count[client] += 1
        self.load[slot] += 1
        if self.count[client] >= cells.high[client]:
            self.closed[client] = True
        if self.load[slot] >= cells.parallel:
            self.closed[:, slot] = True  # clients with this as their best slot look again at their turn
        elif self.load[slot] == 1 and cells.server[slot] > 0:
            self.price[:, slot] = cells.g[:, slot]
            for other in np.flatnonzero(~self.closed[:, slot]):
                if (score := float(self._scores(int(other), slice(slot, slot + 1))[0])) > self.score[other]:
                    self.best[other], self.score[other] = slot, score
        self.look(client)

    def _scores(self, client: int, slots: slice) -> NDArray[np.float64]:
        """Return scores: gain per kg, or higher for cheaper slots; 0 for slots that are closed or too dear."""
        price = self.price[client, slots]
        if self.per_gain:
            f, u = self.cells.utility.of, self.u[client : client + 1]
            score = (f(u + self.cells.d[client, slots]) - f(u)) / np.maximum(price, self.least_kg)
        else:
            score = 1.0 / (price + self.least_kg)
        return np.where(self.closed[client, slots] | (price > self.left), 0.0, score)


def _least_slots(cells: Cells) -> NDArray[np.bool_] | None:
    """Return the clients' least slots within the budget: cheapest first if that works, else at the least total cost."""
    matrix = np.zeros(cells.g.shape, dtype=bool)
    if not cells.low.any():
        return matrix
    growth = _Growth(cells, matrix)
    growth.per_gain = False
    for client in np.argsort(cells.open.sum(axis=1) - cells.low, kind="stable"):  # clients with the least choice first
        for _ in range(int(cells.low[client])):
            growth.look(int(client))
            if growth.score[client] <= 0:
                break
            growth.buy(int(client), int(growth.best[client]))
    if np.all(growth.count >= cells.low):
        return growth.matrix
    from slackwater.planning.milp import cheapest  # rarely needed, and HiGHS takes a while to load

    least = cheapest(cells)
    return least if least is not None and cells.allows(least) else None


def coupled_infeasible(problem: Problem, ends: Sequence[int]) -> InfeasibleError:
    """Return the error that clients' least slots do not fit together, with the least sufficient budget if there is one."""
    from slackwater.planning.milp import cheapest

    groups = Groups(problem)
    needs: list[tuple[float, int]] = []
    for end in ends:
        with suppress(NoStageError):
            stage = Stage.at(groups, end)
            cells = Cells.of(stage, affordable=False)
            if (matrix := cheapest(cells)) is not None:
                needs.append((cells.kg(matrix) + stage.window_kg + stage.idle_kg, end))
    limit = problem.max_parallel
    tied = "the server paid for" if limit is None else f"at most {limit} clients in a slot"
    if not needs:
        return InfeasibleError(
            f"No end time works, whatever the budget: with {tied}, the least slots of all clients "
            "(min_slots, required) do not fit together. Raise max_parallel, ask for fewer slots or add slack."
        )
    need, end = min(needs)
    return InfeasibleError(
        f"No schedule fits {problem.budget_kg:g} kg: at its cheapest (s={end}) the fine-tuning window, idle power and "
        f"the least slots of clients (min_slots, required), with {tied}, cost {need:.6f} kg. Raise budget_kg to at least "
        f"{math.ceil(need * 1e6 * (1 - 1e-12)) / 1e6:.6f}, ask for fewer slots or add slack.",
        least_budget_kg=need,
        end=end,
    )
