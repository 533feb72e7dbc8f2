"""The state of a run: settings of re-planning, what the controller remembers, and what was spent."""

from __future__ import annotations

import base64
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slackwater.errors import DataError, ScenarioError
from slackwater.planning.problem import Problem
from slackwater.replanning.reserve import PastPlans


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of re-planning, chosen on part of the back-tests of docs/research/forecasts.md and judged on the others."""

    replan_slots: int | None = 1
    """Slots after which to re-plan, and once more when the fine-tuning window is due. None: never."""
    reserve: float = 0.6
    """Probability that the remaining plan keeps the remaining budget; 0 keeps no reserve."""
    margin: float = 1.5
    """Factor of the upper bound on the largest rise and the highest level seen."""
    lookback_days: int = 28
    """Days of actuals that the upper bound uses."""
    end: int | None = None
    """End time s that re-planning keeps as long as a schedule fits, as the planner "auto" chose it. None: chosen again."""

    def __post_init__(self) -> None:
        if self.replan_slots is not None and self.replan_slots < 1:
            raise ScenarioError(f"replan_slots is {self.replan_slots}; re-plan every 1 or more slots, or never (None).")
        if self.reserve != 0 and not 0.5 <= self.reserve < 1:
            raise ScenarioError(
                f"reserve is {self.reserve}; give a probability from 0.5 to below 1, or 0 to keep nothing back."
            )
        if not 1 <= self.margin <= 10:
            raise ScenarioError(f"The bound's margin is {self.margin}; give a factor from 1 to 10, like 1.5.")
        if self.lookback_days < 7:
            raise ScenarioError(f"lookback_days is {self.lookback_days}; the upper bound needs at least 7 days.")


_TIED = ("levels", "up", "starting")
_MASKS = ("trained", "lost", "plan", "up", "starting")


@dataclass(slots=True, kw_only=True)
class State:
    """The decisions so far. Their cost is not stored here: it follows from the ledger or the actuals."""

    slot: int = 0
    """The next slot to decide."""
    trained: NDArray[np.bool_]
    """[client, slot], who trained; False from `slot` on."""
    lost: NDArray[np.bool_]
    """[client, slot], who drew energy for work that was lost, late or unusable: spent, but not earned."""
    held_kg: NDArray[np.float64]
    """[slot], the upper bound charged for a slot; 0 from `slot` on."""
    plan: NDArray[np.bool_]
    """[client, slot], who is planned to train before the window; meaningful from `slot` on."""
    levels: NDArray[np.uint8] | None = None
    """[client, slot], level at which a client trained or is planned to train, 0 for full power; None if none has levels."""
    up: NDArray[np.bool_] | None = None
    """[client, slot], when a client that sleeps was up; False from `slot` on. None if no client sleeps."""
    starting: NDArray[np.bool_] | None = None
    """[client, slot], when it was starting, which takes its `lead` slots; as `up`."""
    planned_at: int | None = None
    """Slot at which the plan was made; None before the first."""
    window_at: int = 0
    """First slot of the window, as planned or begun."""
    window_slots: int
    """Length of the window: `fine_tune`, or less if it was shortened."""
    stated_kg: NDArray[np.float64]
    """[slot], the least upper bound stated so far of a window that begins there; infinite if none was."""
    window_done: int = 0
    """Slots of the window that were trained."""
    stopped_at: int | None = None
    """Length of the run in slots, once it is over."""
    replay: PastPlans | None = None
    """Emissions of past plans beyond their prediction, from which the reserve is computed; None if unknown."""
    reserve_kg: float = 0.0
    """Reserve for forecast error, by the plan."""
    planned_kg: float = 0.0
    """Emissions of the whole run that the plan expected when it was made."""

    @classmethod
    def initial(cls, problem: Problem, replay: PastPlans | None = None) -> State:
        """Return the state before the first slot."""
        shape, sleeps = (len(problem.fleet), problem.horizon), bool(problem.costs.sleeps.any())
        return cls(
            trained=np.zeros(shape, dtype=bool),
            lost=np.zeros(shape, dtype=bool),
            held_kg=np.zeros(shape[1]),
            plan=np.zeros(shape, dtype=bool),
            levels=np.zeros(shape, dtype=np.uint8) if problem.costs.level_kwh.shape[1] > 1 else None,
            up=np.zeros(shape, dtype=bool) if sleeps else None,
            starting=np.zeros(shape, dtype=bool) if sleeps else None,
            window_slots=problem.fine_tune,
            stated_kg=np.full(shape[1] + 1, np.inf),
            replay=replay,
        )

    def shorten_window(self) -> None:
        """Shorten the window by one slot and drop the bounds stated for the longer one."""
        self.window_slots -= 1
        self.stated_kg[:] = np.inf

    def due(self, every: int | None) -> bool:
        """Return whether the next slot is decided on a new plan, if one is made every `every` slots."""
        if self.window_done:
            return False
        if self.planned_at is None or every is None:
            return self.planned_at is None
        # Once more when the window is due: budget released since the last plan can still be used before it.
        return self.slot - self.planned_at >= every or self.slot >= self.window_at

    def to_dict(self) -> dict[str, Any]:
        """Return the state for JSON."""
        data: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in _MASKS:
            if data[name] is not None:
                bits = np.packbits(data[name]).tobytes()
                data[name] = {"shape": list(data[name].shape), "bits": base64.b64encode(bits).decode()}
        for name in _TIED:  # only runs that need them have them
            if data[name] is None:
                del data[name]
        if self.levels is not None:
            data["levels"] = base64.b64encode(self.levels.tobytes()).decode()
        data["held_kg"] = self.held_kg.tolist()
        data["replay"] = None if self.replay is None else self.replay.to_dict()
        data["stated_kg"] = [kg if np.isfinite(kg) else None for kg in self.stated_kg.tolist()]
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> State:
        """Return the state that `to_dict` described."""
        try:
            values: dict[str, Any] = {
                field.name: data.get(field.name) if field.name in _TIED else data[field.name] for field in fields(cls)
            }
            for name in _MASKS:
                if values[name] is None and name in _TIED:
                    continue
                rows, slots = values[name]["shape"]
                bits = np.frombuffer(base64.b64decode(values[name]["bits"]), dtype=np.uint8)
                if rows < 0 or slots < 0 or len(bits) != (rows * slots + 7) // 8:  # otherwise zeros would be appended
                    raise ValueError(f"{name} has {len(bits):,} bytes for {rows} clients and {slots} slots")
                values[name] = np.unpackbits(bits, count=rows * slots).reshape(rows, slots).astype(bool)
            if values["levels"] is not None:
                numbers = np.frombuffer(base64.b64decode(values["levels"]), dtype=np.uint8)
                values["levels"] = numbers.reshape(values["trained"].shape).copy()
            values["held_kg"] = np.array(values["held_kg"], dtype=np.float64)
            values["stated_kg"] = np.array([np.inf if kg is None else kg for kg in values["stated_kg"]])
            values["replay"] = None if values["replay"] is None else PastPlans.from_dict(values["replay"])
            return cls(**values)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise DataError(
                f"The state of the run cannot be read ({error!r}). Was it written by this version?"
            ) from None


Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Past:
    """The slots before the one to decide: settled if the actual is known, else in flight."""

    spent_kg: float
    """Actual emissions of settled slots: training, idle draw, starts and the server."""
    in_flight_kg: float
    """Upper bounds charged for slots in flight."""
    expected_kg: float
    """Expected emissions of slots in flight."""
    spent_money: float
    """Price of the electricity of all these slots; 0 without prices."""
    slots: NDArray[np.int64]
    """[client], slots trained."""
    work: NDArray[Any]
    """[client], the same, each counted by its work."""
    trained_ago: NDArray[np.float64]
    """[client], slots since each last trained; infinite if never."""
    training_kg: Floats
    """[client], emissions of training, and its price times `price_weight`; in flight, those expected."""
    up_slots: NDArray[np.int64]
    """[client], slots in a row that a client that sleeps has been up; 0 if it is off or starting."""
    start_left: NDArray[np.int64]
    """[client], slots that a start in progress still takes; 0: it is over now. -1: no start is in progress."""

    def earned_kg(self, g_max_kg: float) -> Floats:
        """Return the utility so far [client], kg: savings against g_max in every slot trained."""
        return np.maximum(self.work * g_max_kg - self.training_kg, 0.0)


def look_back(
    problem: Problem,
    state: State,
    intensity: Floats,
    settled: int,
    measured_kg: Floats | None = None,
    server: Floats | None = None,
) -> Past:
    """Return the past by the intensity [client, slot] of the horizon: actual in the first `settled` slots, then expected.

    `measured_kg` [client, slot] replaces modelled training emissions; NaN where nothing was measured. `server` is the
    intensity in the server's zone [slot].
    """
    costs, now = problem.costs, state.slot
    trained, burnt = state.trained[:, :now], (state.trained | state.lost)[:, :now]
    intensity = intensity[:, :now]
    kwh = round_kwh(problem, state)[:, :now]
    g = kwh * intensity
    if measured_kg is not None:
        g = np.where(np.isnan(measured_kg[:, :now]), g, measured_kg[:, :now])
    training, active = np.where(burnt, g, 0.0), np.asarray(burnt.any(axis=0))
    waiting = (waiting_kwh(problem, state) * intensity).sum(axis=0)
    if costs.server_kg is not None:
        waiting = waiting + server_kg(problem, active, server)
    weighed, work = g, trained
    spent_money = 0.0
    if costs.price is not None:
        price = costs.price[costs.row, :now]
        # What was measured in kg says how much energy it was.
        drawn = np.divide(g, intensity, out=np.broadcast_to(kwh, g.shape).copy(), where=intensity > 0)
        spent_money = float((np.where(burnt, drawn, 0.0) * price).sum() + (waiting_kwh(problem, state) * price).sum())
        if costs.server_price is not None:
            spent_money += costs.server_kwh * float(costs.server_price[:now][active].sum())
        if problem.price_weight:
            weighed = g + problem.price_weight * drawn * price
    if state.levels is not None:
        work = np.where(
            trained, np.take_along_axis(costs.level_work, state.levels[:, :now].astype(np.intp), axis=1), 0.0
        )
    up_slots, start_left = _sleepers(problem, state)
    return Past(
        spent_kg=float(training[:, :settled].sum() + waiting[:settled].sum()),
        in_flight_kg=float(state.held_kg[settled:now].sum()),
        expected_kg=float(training[:, settled:].sum() + waiting[settled:].sum()),
        spent_money=spent_money,
        slots=trained.sum(axis=1),
        work=work.sum(axis=1),
        trained_ago=now - np.where(trained, np.arange(now), -np.inf).max(axis=1, initial=-np.inf),
        training_kg=np.where(trained, weighed, 0.0).sum(axis=1),
        up_slots=up_slots,
        start_left=start_left,
    )


def round_kwh(problem: Problem, state: State) -> Floats:
    """Return the energy of each client's round at the level of the slot [client, slot], kWh; one column without levels."""
    costs = problem.costs
    if state.levels is None:
        return costs.energy_kwh[:, None]
    return np.take_along_axis(costs.level_kwh, state.levels.astype(np.intp), axis=1)


def waiting_kwh(problem: Problem, state: State) -> Floats:
    """Return the energy of idle draw and starts in the decided slots [client, slot], kWh; one column if none sleeps."""
    costs, now = problem.costs, state.slot
    if state.up is None or state.starting is None:
        return costs.idle_kwh[:, None]
    idle_kwh, start_kwh = sleeping_kwh(problem, state.up[:, :now], state.starting[:, :now])
    return costs.idle_kwh[:, None] + idle_kwh + start_kwh


def sleeping_kwh(problem: Problem, up: NDArray[np.bool_], starting: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Return the energy of clients that sleep, for being up and for starts [client, slot], kWh, from the run's first slot."""
    costs = problem.costs
    first = up.copy()
    first[:, 1:] &= ~up[:, :-1]
    at_once = np.where(costs.lead == 0, costs.startup_kwh, 0.0)
    spread = np.where(costs.lead > 0, costs.startup_kwh / np.maximum(costs.lead, 1), 0.0)
    return costs.up_kwh[:, None] * up, at_once[:, None] * first + spread[:, None] * starting


def server_kg(problem: Problem, active: NDArray[np.bool_], intensity: Floats | None) -> Floats:
    """Return the server's emissions in the first slots [slot], kg, by whether anyone trains and its zone's intensity."""
    assert problem.costs.server_kg is not None
    if problem.server is None or intensity is None:  # its kg are given, whatever the intensity
        return np.where(active, problem.costs.server_kg[: len(active)], 0.0)
    return np.where(active, problem.costs.server_kwh * intensity[: len(active)], 0.0)


def _sleepers(problem: Problem, state: State) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return how many slots in a row each client has been up, and how many its start still takes; -1 without a start."""
    if state.up is None or state.starting is None:
        none = np.zeros(len(problem.fleet), dtype=np.int64)
        return none, none - 1
    up_slots, started = (_in_a_row(mask[:, : state.slot]) for mask in (state.up, state.starting))
    return up_slots, np.where(started > 0, problem.costs.lead - started, -1)


def _in_a_row(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return how many of the last slots are True without a break [client]."""
    return np.asarray(np.logical_and.accumulate(mask[:, ::-1], axis=1).sum(axis=1), dtype=np.int64)
