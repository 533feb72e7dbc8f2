"""Where a run stands: how it is re-planned, what the controller remembers, and what was spent."""

from __future__ import annotations

import base64
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slackwater.errors import DataError, ScenarioError
from slackwater.planning.problem import Problem
from slackwater.replanning.reserve import Replay


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Chosen on part of the back-tests of docs/research/forecasts.md and judged on the others."""

    replan_slots: int | None = 1
    """Plan anew after so many slots, and once more when the fine-tuning window is due; None is never."""
    reserve: float = 0.6
    """Probability with which the remaining plan is meant to cost no more than what is left; 0 keeps nothing back."""
    margin: float = 1.5
    """How far beyond the largest rise and the highest level seen the upper bound lies."""
    lookback_days: int = 28
    """How much of the past the upper bound looks at."""

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
            raise ScenarioError(f"lookback_days is {self.lookback_days}; the bound needs to look at 7 days or more.")


_MASKS = ("trained", "lost", "plan")


@dataclass(slots=True, kw_only=True)
class State:
    """What was decided so far. What it cost is not kept here: that is the ledger's, or the actuals' to say."""

    slot: int = 0
    """The next slot to decide."""
    trained: NDArray[np.bool_]
    """[client, slot], who trained; False from `slot` on."""
    lost: NDArray[np.bool_]
    """[client, slot], who drew energy in vain: its work was lost, late or unusable. Spent, but not earned."""
    held_kg: NDArray[np.float64]
    """[slot], the upper bound at which a slot was taken on; 0 from `slot` on."""
    plan: NDArray[np.bool_]
    """[client, slot], who is to train before the window; meaningful from `slot` on."""
    planned_at: int | None = None
    """Slot at which the plan was made; None before the first."""
    window_at: int = 0
    """First slot of the window, as planned or begun."""
    window_slots: int
    """Length of the window: `fine_tune`, or what it was shortened to."""
    stated_kg: NDArray[np.float64]
    """[slot], the least upper bound stated so far of a window that begins there; infinite where none was."""
    window_done: int = 0
    """Slots of the window that were trained."""
    stopped_at: int | None = None
    """Slots that the run lasted, once it is over."""
    replay: Replay | None = None
    """What plans of the past emitted beyond what they said, by which the reserve is measured; None where not known."""
    reserve_kg: float = 0.0
    """Kept back because forecasts err, by the plan."""
    planned_kg: float = 0.0
    """All that the run emits by the plan, as expected when it was made."""

    @classmethod
    def initial(cls, problem: Problem, replay: Replay | None = None) -> State:
        """Before the first slot."""
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
        """One slot less; what was stated of the longer window no longer counts."""
        self.window_slots -= 1
        self.stated_kg[:] = np.inf

    def due(self, every: int | None) -> bool:
        """Whether the next slot is decided on a new plan, where one is made every so many slots."""
        if self.window_done:
            return False
        if self.planned_at is None or every is None:
            return self.planned_at is None
        # Once more when the window is due: what was released since the last plan can still be used before it.
        return self.slot - self.planned_at >= every or self.slot >= self.window_at

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
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
        """Back from JSON."""
        try:
            values = {field.name: data[field.name] for field in fields(cls)}
            for name in _MASKS:
                rows, slots = values[name]["shape"]
                bits = np.frombuffer(base64.b64decode(values[name]["bits"]), dtype=np.uint8)
                if (
                    rows < 0 or slots < 0 or len(bits) != (rows * slots + 7) // 8
                ):  # else zeros would be added, however many
                    raise ValueError(f"{name} has {len(bits):,} bytes for {rows} clients and {slots} slots")
                values[name] = np.unpackbits(bits, count=rows * slots).reshape(rows, slots).astype(bool)
            values["held_kg"] = np.array(values["held_kg"], dtype=np.float64)
            values["stated_kg"] = np.array([np.inf if kg is None else kg for kg in values["stated_kg"]])
            values["replay"] = None if values["replay"] is None else Replay.from_dict(values["replay"])
            return cls(**values)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise DataError(
                f"The state of the run cannot be read ({error!r}). Was it written by this version?"
            ) from None


Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Past:
    """The slots before the one to decide: settled where the actual is known, in flight after that."""

    spent_kg: float
    """What the settled slots really emitted: training and idle draw."""
    in_flight_kg: float
    """What the slots in flight are held at."""
    expected_kg: float
    """What the slots in flight are expected to emit."""
    slots: NDArray[np.int64]
    """[client], slots trained."""
    trained_ago: NDArray[np.float64]
    """[client], how many slots ago each trained last; infinite for those who never did."""
    training_kg: Floats
    """[client], emissions of training, those in flight as expected."""

    def earned_kg(self, g_max_kg: float) -> Floats:
        """[client], utility so far: what is saved against g_max in every slot trained."""
        return np.maximum(self.slots * g_max_kg - self.training_kg, 0.0)


def look_back(
    problem: Problem, state: State, intensity: Floats, settled: int, measured_kg: Floats | None = None
) -> Past:
    """From the intensity [client, slot] of the horizon: actual in the first `settled` slots, as expected after them.

    `measured_kg` [client, slot], NaN where nothing was measured, takes the place of modelled training emissions.
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
