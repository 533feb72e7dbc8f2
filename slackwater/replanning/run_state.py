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


_MASKS = ("trained", "lost", "plan")


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
        shape = (len(problem.fleet), problem.horizon)
        return cls(
            trained=np.zeros(shape, dtype=bool),
            lost=np.zeros(shape, dtype=bool),
            held_kg=np.zeros(shape[1]),
            plan=np.zeros(shape, dtype=bool),
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
            data[name] = {
                "shape": list(data[name].shape),
                "bits": base64.b64encode(np.packbits(data[name]).tobytes()).decode(),
            }
        data["held_kg"] = self.held_kg.tolist()
        data["replay"] = None if self.replay is None else self.replay.to_dict()
        data["stated_kg"] = [kg if np.isfinite(kg) else None for kg in self.stated_kg.tolist()]
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> State:
        """Return the state that `to_dict` described."""
        try:
            values = {field.name: data[field.name] for field in fields(cls)}
            for name in _MASKS:
                rows, slots = values[name]["shape"]
                bits = np.frombuffer(base64.b64decode(values[name]["bits"]), dtype=np.uint8)
                if rows < 0 or slots < 0 or len(bits) != (rows * slots + 7) // 8:  # otherwise zeros would be appended
                    raise ValueError(f"{name} has {len(bits):,} bytes for {rows} clients and {slots} slots")
                values[name] = np.unpackbits(bits, count=rows * slots).reshape(rows, slots).astype(bool)
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
    """Actual emissions of settled slots: training and idle draw."""
    in_flight_kg: float
    """Upper bounds charged for slots in flight."""
    expected_kg: float
    """Expected emissions of slots in flight."""
    slots: NDArray[np.int64]
    """[client], slots trained."""
    trained_ago: NDArray[np.float64]
    """[client], slots since each last trained; infinite if never."""
    training_kg: Floats
    """[client], emissions of training; in flight, those expected."""

    def earned_kg(self, g_max_kg: float) -> Floats:
        """Return the utility so far [client], kg: savings against g_max in every slot trained."""
        return np.maximum(self.slots * g_max_kg - self.training_kg, 0.0)


def look_back(
    problem: Problem, state: State, intensity: Floats, settled: int, measured_kg: Floats | None = None
) -> Past:
    """Return the past by the intensity [client, slot] of the horizon: actual in the first `settled` slots, then expected.

    `measured_kg` [client, slot] replaces modelled training emissions; NaN where nothing was measured.
    """
    costs, now = problem.costs, state.slot
    trained, burnt = state.trained[:, :now], (state.trained | state.lost)[:, :now]
    g = costs.energy_kwh[:, None] * intensity[:, :now]
    if measured_kg is not None:
        g = np.where(np.isnan(measured_kg[:, :now]), g, measured_kg[:, :now])
    training = np.where(burnt, g, 0.0)
    idle = (costs.idle_kwh[:, None] * intensity[:, :now]).sum(axis=0)
    return Past(
        spent_kg=float(training[:, :settled].sum() + idle[:settled].sum()),
        in_flight_kg=float(state.held_kg[settled:now].sum()),
        expected_kg=float(training[:, settled:].sum() + idle[settled:].sum()),
        slots=trained.sum(axis=1),
        trained_ago=now - np.where(trained, np.arange(now), -np.inf).max(axis=1, initial=-np.inf),
        training_kg=np.where(trained, g, 0.0).sum(axis=1),
    )
