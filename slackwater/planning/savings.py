"""Savings by waiting for cleaner hours, regardless of the effect on the model (the paper's section III)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slackwater.errors import DataError, ScenarioError
from slackwater.intensity.traces import Factor, Provenance, Traces
from slackwater.units import energy_kwh, iso

_MINUTES_PER_HOUR = 60


def client_savings(g: NDArray[np.float64], hours: int, slacks: Sequence[int]) -> NDArray[np.float64]:
    """Return equation (3) [zone, slack]: the share of emissions saved by the cheapest `hours` slots of hours + slack.

    `g` is [zone, slot] from the start on, in any unit of emissions; `hours` and `slacks` count its slots. NaN where the
    first `hours` slots emit nothing: savings relative to zero are undefined, not 100 %.
    """
    _check_slots(g, hours, slacks)
    return _relative(_cheapest(g, hours, slacks), _cheapest(g, hours, [0]))


def group_savings(g: NDArray[np.float64], hours: int, slack: int) -> NDArray[np.float64]:
    """Return the paper's Delta(N) [N - 1], N = 1..zones: the N cleanest zones with slack against the N cleanest without.

    The two sets need not be the same zones. Arguments and NaN as in `client_savings`.
    """
    _check_slots(g, hours, [slack])
    return _group(_cheapest(g, hours, [0])[:, 0], _cheapest(g, hours, [slack])[:, 0])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Spread:
    """Statistics of a figure over the starts for which it is defined; NaN if there is none."""

    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    """Population standard deviation over these starts (divided by their number)."""
    q10: NDArray[np.float64]
    q90: NDArray[np.float64]
    defined: NDArray[np.int64]
    """Number of starts for which the figure is defined: relative savings are not where emissions without slack are 0."""

    def to_dict(self) -> dict[str, Any]:
        """Return the statistics for JSON, with NaN as null."""
        return {name: _plain(getattr(self, name)) for name in ("mean", "std", "q10", "q90", "defined")}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SavingsStudy:
    """Savings by slack for single zones and for the N cleanest, over several starts. Shares, not per cent."""

    zones: tuple[str, ...]
    hours: int
    """Hours of training, the paper's T."""
    slack: int
    """Hours of slack, the paper's t_sl."""
    slot_minutes: int
    power_w: float
    """Power of a client, the same in every zone; it scales `saved_kg` and cancels in the shares."""
    seed: int
    starts: tuple[datetime, ...]
    """In order of time."""
    client: Spread
    """[zone], equation (3) at the full slack."""
    saved_kg: Spread
    """[zone], kg CO2e that one client saves at the full slack."""
    group: Spread
    """[N - 1], Delta(N) at the full slack."""
    heat_map: NDArray[np.float64]
    """[zone, slack], equation (3) from the first slot of the traces on, for a slack of 1, 2, ... slots; NaN where it is
    undefined."""
    factor: Factor
    synthetic: bool
    provenance: tuple[Provenance, ...]

    def __repr__(self) -> str:
        """Show the setting and the mean saving over the zones on one line."""
        return (
            f"SavingsStudy({len(self.zones)} zones, {self.hours} h + {self.slack} h of slack, {len(self.starts)} starts: "
            f"saves {np.nanmean(self.client.mean):.1%} on average)"
        )

    @property
    def slack_hours(self) -> NDArray[np.float64]:
        """Return the slack of each column of the heat map [slack], hours."""
        return np.arange(1, self.heat_map.shape[1] + 1) * self.slot_minutes / _MINUTES_PER_HOUR

    def to_dict(self) -> dict[str, Any]:
        """Return the study for JSON, with NaN as null."""
        return {
            "zones": list(self.zones),
            "hours": self.hours,
            "slack": self.slack,
            "slot_minutes": self.slot_minutes,
            "power_w": self.power_w,
            "seed": self.seed,
            "starts": [iso(start) for start in self.starts],
            "client": self.client.to_dict(),
            "saved_kg": self.saved_kg.to_dict(),
            "group": self.group.to_dict(),
            "slack_hours": self.slack_hours.tolist(),
            "heat_map": _plain(self.heat_map),
            "factor": self.factor,
            "synthetic": self.synthetic,
            "provenance": [one.to_dict() for one in self.provenance],
        }


def study(
    traces: Traces, *, hours: int = 100, slack: int = 236, starts: int = 100, seed: int = 0, power_w: float = 300.0
) -> SavingsStudy:
    """Return the savings of slack alone, by zone and by number of clients (section III of the paper).

    Args:
        traces: The intensity of the zones.
        hours: Hours of training.
        slack: Extra hours allowed.
        starts: Random starts to average over, without repetition, from those that fit; 1 takes the first slot.
        seed: Random seed of the starts.
        power_w: Draw of a client, watts; only the kg depend on it.
    """
    train, extra = _slots("hours", hours, 1, traces), _slots("slack", slack, 0, traces)
    if starts < 1:
        raise ScenarioError(f"starts is {starts}; draw at least one.")
    if not 0 < power_w < np.inf:
        raise ScenarioError(f"power_w is {power_w}; give a positive number of watts.")
    fitting = traces.slots - train - extra + 1
    if fitting < 1:
        have = traces.slots * traces.slot_minutes / _MINUTES_PER_HOUR
        raise DataError(
            f"{hours} hours of training with {slack} hours of slack needs {hours + slack} hours, the traces have "
            f"{have:g}. Load a longer period, or ask for less slack."
        )
    drawn = np.zeros(1, dtype=np.int64)
    if starts > 1:
        drawn = np.sort(np.random.default_rng(seed).choice(fitting, size=min(starts, fitting), replace=False))
    g = traces.intensity * energy_kwh(power_w, traces.slot_minutes / _MINUTES_PER_HOUR)
    both = np.array([_cheapest(g[:, first:], train, [0, extra]) for first in drawn])
    fixed, waiting = both[:, :, 0], both[:, :, 1]
    return SavingsStudy(
        zones=traces.zones,
        hours=hours,
        slack=slack,
        slot_minutes=traces.slot_minutes,
        power_w=power_w,
        seed=seed,
        starts=tuple(traces.start + timedelta(minutes=traces.slot_minutes) * int(first) for first in drawn),
        client=_spread(_relative(waiting, fixed)),
        saved_kg=_spread(fixed - waiting),
        group=_spread(np.array([_group(*pair) for pair in zip(fixed, waiting, strict=True)])),
        heat_map=client_savings(g, train, range(1, extra + 1)),
        factor=traces.factor,
        synthetic=traces.synthetic,
        provenance=traces.provenance,
    )


def _cheapest(g: NDArray[np.float64], hours: int, slacks: Sequence[int]) -> NDArray[np.float64]:
    """Return the sum of the `hours` cheapest slots of the first hours + slack [zone, slack].

    Each slack only sorts in its new slots. Summed in sorted order, the result never rises with the slack, not even by
    rounding, and without slack the savings are exactly 0.
    """
    sums = np.empty((len(g), len(slacks)))
    kept, seen = np.sort(g[:, :hours], axis=1), hours
    for column in np.argsort(np.asarray(slacks, dtype=np.int64), kind="stable"):
        upto = hours + slacks[column]
        if upto > seen:
            kept = np.sort(np.concatenate([kept, g[:, seen:upto]], axis=1), axis=1)[:, :hours]
            seen = upto
        sums[:, column] = kept.sum(axis=1)
    return sums


def _relative(waiting: NDArray[np.float64], fixed: NDArray[np.float64]) -> NDArray[np.float64]:
    ratio = np.full(np.broadcast_shapes(waiting.shape, fixed.shape), np.nan)
    np.divide(waiting, fixed, out=ratio, where=np.broadcast_to(fixed > 0, ratio.shape))
    return 1.0 - ratio


def _group(fixed: NDArray[np.float64], waiting: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return Delta(N) from the zones' emissions: the N zones with the least sum are the N with the least each."""
    return _relative(np.cumsum(np.sort(waiting)), np.cumsum(np.sort(fixed)))


def _spread(values: NDArray[np.float64]) -> Spread:
    """Return the statistics over the starts of [start, figure]."""
    mean, std, q10, q90 = np.full((4, values.shape[1]), np.nan)
    defined = np.count_nonzero(~np.isnan(values), axis=0)
    for i in np.flatnonzero(defined):  # one by one: np.nanmean warns of columns without a value
        column = values[~np.isnan(values[:, i]), i]
        mean[i], std[i] = column.mean(), column.std()
        q10[i], q90[i] = np.quantile(column, [0.1, 0.9])
    return Spread(mean=mean, std=std, q10=q10, q90=q90, defined=defined)


def _plain(values: NDArray[Any]) -> list[Any]:
    """Return nested lists with None for NaN, which JSON does not have."""
    plain = values.astype(object)
    plain[np.isnan(values)] = None
    nested: list[Any] = plain.tolist()
    return nested


def _slots(name: str, hours: int, least: int, traces: Traces) -> int:
    if hours < least:
        raise ScenarioError(f"{name} is {hours}; it must be at least {least}.")
    slots, rest = divmod(hours * _MINUTES_PER_HOUR, traces.slot_minutes)
    if rest:
        raise ScenarioError(
            f"{name} is {hours}; give a whole number of the traces' {traces.slot_minutes}-minute slots."
        )
    return int(slots)


def _check_slots(g: NDArray[np.float64], hours: int, slacks: Sequence[int]) -> None:
    if hours < 1:
        raise ScenarioError(f"hours is {hours}; it must be at least 1.")
    if least := min([0, *slacks]):
        raise ScenarioError(f"slack is {least}; it must be at least 0.")
    needed = hours + max([0, *slacks])
    if g.shape[1] < needed:
        raise DataError(f"{hours} slots with a slack of {needed - hours} needs {needed} slots, there are {g.shape[1]}.")
