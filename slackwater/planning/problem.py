"""The scheduling problem: the paper's (opt:tuning) and (opt:alpha), what a round costs, and the utility."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slackwater.errors import DataError, ScenarioError
from slackwater.intensity.cloud import grid_zone
from slackwater.intensity.prices import Prices
from slackwater.intensity.traces import Provenance, Traces
from slackwater.planning.fleet import NO_LIMIT, Client, Fleet, available_slots, doubt_watts, is_finite_number
from slackwater.registry import unknown_key
from slackwater.units import energy_kwh, iso, time_zone, utc

Alpha = float | str
ALPHA_ABOVE_MAX_MIN = 0.1
"""Default exponent of the objective above the max-min level: the paper's choice."""


NOISE = 1e-11
"""Share of g_max below which a utility is rounding noise: n g_max - (sum of n costs) of equal numbers is not quite 0."""


def utilities(
    slots: NDArray[Any], spent_kg: NDArray[np.float64], g_max: float, base: NDArray[np.float64] | float = 0.0
) -> NDArray[np.float64]:
    """Return u = base + sum of (g_max - g) over a client's slots, kg, from their number and their cost."""
    u = base + slots * g_max - spent_kg
    return np.where(u > NOISE * g_max, u, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Utility:
    """f(u) of a client's u = sum of (g_max - g) over its slots; increasing and concave on the values u can take.

    For `log`, f(0) = 0 and f(u) = lift + log(u / floor). `floor` is at most the least positive u, and `lift` exceeds
    any difference between the log sums of two schedules. So the sum of f ranks first by the number of clients with a
    positive utility, then by the log sum.
    """

    kind: str
    alpha: float
    floor: float = 1.0
    lift: float = 0.0

    @classmethod
    def parse(cls, alpha: Alpha) -> Utility:
        """Return the utility for a number in (0, 1], "log", "max-min" or "max-min:<alpha>"."""
        if isinstance(alpha, str):
            name, _, above = alpha.strip().lower().partition(":")
            if name == "log" and not above:
                return cls(kind="log", alpha=0.0)
            if name == "max-min":
                return cls(kind="max-min", alpha=_exponent(above or ALPHA_ABOVE_MAX_MIN))
        return cls(kind="power", alpha=_exponent(alpha))

    def scaled(self, *, clients: int, least: float, largest: float) -> Utility:
        """Return the utility with the scale that `log` needs: the least positive and the largest u of any client."""
        if self.kind != "log" or least <= 0:
            return self
        return Utility(kind="log", alpha=0.0, floor=least, lift=1.0 + clients * float(np.log(largest / least) + 1.0))

    def of(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return f(u), elementwise."""
        if self.kind != "log":
            return u if self.alpha == 1.0 else np.power(u, self.alpha)
        positive = u > 0
        safe = np.where(positive, np.maximum(u, self.floor) / self.floor, 1.0)
        return np.where(positive, self.lift + np.log(safe), 0.0)

    def slope(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return f'(u) for u > 0."""
        return 1.0 / u if self.kind == "log" else self.alpha * np.power(u, self.alpha - 1.0)

    def conjugate(self, slope: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the maximum of f(u) - slope * u over u >= 0; for alpha = 1 the slope must be at least 1."""
        if self.kind == "log":
            return self.lift + np.maximum(-np.log(slope * self.floor) - 1.0, 0.0)
        if self.alpha == 1.0:
            return np.zeros_like(slope)
        return (1.0 - self.alpha) * np.power(slope / self.alpha, self.alpha / (self.alpha - 1.0))

    def peak(self, slope: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the u > 0 at which f has this slope; alpha must be below 1."""
        return 1.0 / slope if self.kind == "log" else np.power(slope / self.alpha, 1.0 / (self.alpha - 1.0))

    def reported(self, total: float, positive: int) -> float:
        """Return the reported objective, from a sum of f over clients of which `positive` have u > 0."""
        return total if self.kind != "log" else total - positive * (self.lift - float(np.log(self.floor)))


def _exponent(alpha: object) -> float:
    try:
        value = float(alpha)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        value = np.nan
    if not 0 < value <= 1:
        raise ScenarioError(
            f"alpha must be above 0 and at most 1, or 'log', 'max-min' or 'max-min:0.5'; it is {alpha!r}."
        )
    return value


RoundCause = Literal["training", "network", "evaluation"]
"""Causes for which a client-slot is charged, besides the idle draw and starts."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Costs:
    """g[client, slot] = energy_kwh[client] * intensity[row[client], slot], kg CO2e."""

    training_kwh: NDArray[np.float64]
    """[client], what the training of one round adds to the idle draw, PUE included."""
    network_kwh: NDArray[np.float64]
    """[client], sending the model to the client and back in one round; 0 if it is not counted."""
    evaluation_kwh: NDArray[np.float64]
    """[client], evaluating on the client in one round, PUE included."""
    energy_kwh: NDArray[np.float64] = field(init=False)
    """[client], all that one round adds to the idle draw: training, network and evaluation."""
    idle_kwh: NDArray[np.float64]
    """[client], idle energy of one slot, PUE included; 0 for a client that sleeps, see `up_kwh`."""
    row: NDArray[np.intp]
    """[client], row of the intensity."""
    intensity: NDArray[np.float64]
    """[row, slot], kg/kWh, over the horizon."""
    mask: NDArray[np.intp]
    """[client], row of `available`."""
    available: NDArray[np.bool_]
    """[mask, slot], whether clients with this mask can train."""
    server_kg: NDArray[np.float64] | None = None
    """[slot], charged once in each slot in which anyone trains; None without a server."""
    server_kwh: float = 0.0
    """Energy of the server in a slot, PUE included; 0 where only its kg are known."""
    sleeps: NDArray[np.bool_]
    """[client], whether the client is off between blocks; the next four fields say nothing about others."""
    up_kwh: NDArray[np.float64]
    """[client], idle energy of a slot in which a sleeping client is up, PUE included; 0 for others."""
    startup_kwh: NDArray[np.float64]
    """[client], energy of one start, PUE included, spread evenly over its `lead` slots or in the block's first slot."""
    lead: NDArray[np.intp]
    """[client], slots that a start takes before the block's first slot."""
    min_block: NDArray[np.intp]
    """[client], least number of slots in a block; a block may be shorter only at the end of the run."""
    level_training_kwh: NDArray[np.float64]
    """[client, level], `training_kwh` at each level, full power first; NaN where the client has fewer levels."""
    level_evaluation_kwh: NDArray[np.float64]
    """[client, level], `evaluation_kwh` at each level."""
    level_kwh: NDArray[np.float64] = field(init=False)
    """[client, level], `energy_kwh` at each level; a single column if no client has levels."""
    level_work: NDArray[np.float64]
    """[client, level], share of the work of full power; 0 where the client has fewer levels."""
    price: NDArray[np.float64] | None = None
    """[row, slot], currency per kWh; may be negative. None without prices."""
    server_price: NDArray[np.float64] | None = None
    """[slot], the same in the server's zone; None without prices or without the server's energy."""
    price_weight: float = 0.0
    """kg CO2e that one unit of currency counts as in the utility."""

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "energy_kwh", self.training_kwh + self.network_kwh + self.evaluation_kwh)
        put(self, "level_kwh", self.level_training_kwh + self.network_kwh[:, None] + self.level_evaluation_kwh)

    @property
    def round_kwh(self) -> dict[RoundCause, NDArray[np.float64]]:
        """Return cause -> kWh of one round [client]; training always, the others if any client has them."""
        parts: dict[RoundCause, NDArray[np.float64]] = {"training": self.training_kwh}
        if self.network_kwh.any():
            parts["network"] = self.network_kwh
        if self.evaluation_kwh.any():
            parts["evaluation"] = self.evaluation_kwh
        return parts

    @property
    def clients(self) -> int:
        """Return the number of clients."""
        return len(self.row)

    @property
    def slots(self) -> int:
        """Return the length of the horizon in slots."""
        return int(self.intensity.shape[1])

    @property
    def g_max(self) -> float:
        """Return the dearest client-slot of the horizon, kg: the paper's g_max, the same for every end time."""
        peak = np.zeros(len(self.intensity))
        np.maximum.at(peak, self.row, self.energy_kwh)
        return float((peak * self.weighed.max(axis=1)).max())

    @property
    def weighed(self) -> NDArray[np.float64]:
        """Return what utilities count per kWh [row, slot], kg: the intensity, and the price times its weight."""
        if self.price is None or not self.price_weight:
            return self.intensity
        return self.intensity + self.price_weight * self.price

    def dense(
        self, clients: slice | NDArray[np.intp] = slice(None), *, kwh: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64]:
        """Return g[client, slot] of some clients, kg; with `kwh` [client], that of one part of a round."""
        return (self.energy_kwh if kwh is None else kwh)[clients, None] * self.intensity[self.row[clients]]

    def idle_kg(self) -> NDArray[np.float64]:
        """Return the idle emissions of all clients together [slot], kg."""
        per_row = np.bincount(self.row, weights=self.idle_kwh, minlength=len(self.intensity))
        return per_row @ self.intensity

    def levels(self, client: int) -> int:
        """Return the number of levels of a client; 1 is full power only."""
        return int(np.count_nonzero(self.level_work[client]))

    def can_train(self, clients: slice | NDArray[np.intp] = slice(None)) -> NDArray[np.bool_]:
        """Return the availability of some clients [client, slot]."""
        return self.available[self.mask[clients]]


Window = Literal["all", "available"]
Goal = Literal["budget", "work", "enough"]
DEFAULT_ENOUGH_SHARE = 0.005
"""Least fall of the predicted error for 10 % more budget, by default, as a share of the first model's error."""
Planner = Literal["auto", "paper"]
CHOSEN: Any = None
"""Default of the settings that the planner "auto" chooses."""
DEFAULTS: Mapping[str, Any] = {"fine_tune": 1, "recall": 0, "alpha": 0.1}
"""The paper's values of these settings, used until a plan chooses others."""
NETWORK_KWH_PER_GB = 0.01
"""Electricity of sending 1 GB over fixed networks. Aslan et al. (2018, doi:10.1111/jiec.12630) estimate 0.06 kWh/GB for
2015, halving about every two years: 0.01 kWh/GB is that trend in 2020. docs/concepts/planning.md has its limits."""
_WAYS = 2
"""The model is sent to a client and back."""
_MB_PER_GB = 1000
_MOST_MODEL_MB = 1e7
_MINUTES_PER_HOUR = 60
_SAME_KG = 1e-9
"""Relative rounding of a g_max that was computed elsewhere from the same numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The server, which runs in every slot in which anyone trains."""

    zone: str
    power_w: float
    pue: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.zone, str):
            raise ScenarioError(f"The server's zone must be text, not {self.zone!r}.")
        for key, least in (("power_w", 0), ("pue", 1)):
            value = getattr(self, key)
            if not is_finite_number(value) or value < least:
                raise ScenarioError(f"The server's {key} must be a number of at least {least}, not {value!r}.")
        object.__setattr__(self, "zone", grid_zone(self.zone))
        doubt_watts("The server", self.power_w)


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """Which client trains in which slot, under a carbon budget: maximise sum_c (sum_t (g_max - g) a)^alpha.

    The horizon is `rounds + slack` slots from `start`. The run ends after slot `rounds + s`, s in 0..slack. Its last
    `fine_tune` slots are the window F(s), in which all clients train. Slots are counted from 0 in arrays; s is the paper's.
    """

    clients: Sequence[Client] | Fleet
    traces: Traces
    rounds: int
    budget_kg: float = math.inf
    """Most that the run may emit, kg. May be left out with the goal "work": then it is the answer."""
    slack: int | None = None
    """Extra slots. Default: from the `deadline`, or 0."""
    deadline: str | datetime | None = None
    """Time by which the run must end; replaces `slack`."""
    goal: Goal = "budget"
    """"budget": the best training in the budget; "work": given rounds at the least carbon; "enough": stop when more helps little."""
    rounds_each: int | None = None
    """Rounds for every client, window included; with the goal "work"."""
    rounds_total: int | None = None
    """Client-rounds of all clients together, window included; with the goal "work", instead of `rounds_each`."""
    enough_share: float = DEFAULT_ENOUGH_SHARE
    """With the goal "enough": 10 % more budget must lower the predicted error by at least this share of the first model's."""
    fine_tune: int = CHOSEN
    """Length of the window. None: the planner chooses it; the paper's is 1."""
    recall: int = CHOSEN
    """Slots before the window in which every available client trains at least once, so that none is forgotten; 0: off.
    None: the planner chooses it; the paper's is 0."""
    alpha: Alpha = CHOSEN
    """In (0, 1], or "log" (proportional fairness), or "max-min" ("max-min:0.5" names the alpha above the level).
    None: the planner chooses it; the paper's is 0.1."""
    planner: Planner = "auto"
    """"auto" chooses s and every setting in `free` by how well the schedule should train; "paper" maximises the objective."""
    free: frozenset[str] = frozenset()
    """Which of `fine_tune`, `recall` and `alpha` the planner may choose: those that were None."""
    start: str | datetime | None = None
    """Start of the first slot. Default: the start of the traces."""
    time_zone: str = "UTC"
    """Time zone of a `start` or `deadline` without one, and of charts, such as Europe/Paris."""
    round_minutes: float | None = None
    """Length of a round if shorter than a slot. Default: the whole slot."""
    window: Window = "all"
    """With "all", a window that meets an unavailable client is rejected; with "available", the others train in it."""
    max_parallel: int | None = None
    """Most clients in a slot before the window."""
    min_parallel: int | None = None
    """Quorum: in a slot before the window nobody trains, or at least so many clients do."""
    server: Server | None = None
    server_kg: ArrayLike | None = None
    """[slot], kg charged in each slot in which anyone trains; replaces `server`."""
    model_mb: float | None = None
    """Size of the model in MB (10^6 bytes), sent to a client and back in each of its slots; None: not counted."""
    network_kwh_per_gb: float = NETWORK_KWH_PER_GB
    """Energy of the network per GB (10^9 bytes) sent, at the intensity of the client's zone, without PUE."""
    evaluation_share: float = 0.0
    """Energy of evaluating on the clients, as a share of the energy of training."""
    price: Prices | None = None
    """Price of electricity in the zones of all clients and of the server."""
    price_weight: float = 0.0
    """kg CO2e that one unit of currency counts as when slots are chosen; 0: prices are only reported."""
    budget_money: float | None = None
    """Most that the electricity of the run may cost, in the currency of the prices; None: no limit."""
    available: ArrayLike | None = None
    """[client, slot], False where a client cannot train, in addition to its `unavailable` periods."""
    earned_kg: ArrayLike | None = None
    """[client], utility from slots trained before this horizon, the sum of their (g_max - g), kg: fairness counts the past."""
    trained_ago: ArrayLike | None = None
    """[client], slots since each last trained before this horizon, for `recall`; None: long ago."""
    up_before: ArrayLike | None = None
    """[client], slots in a row that a sleeping client has been up just before this horizon, 0 if it is off; None: all off."""
    g_max_kg: float | None = None
    """Reference of utilities if this horizon is the rest of a longer one. Default: its dearest client-slot."""
    reported_by: Mapping[str, str] = field(default_factory=dict)
    """`organisation` and `preparer` for the emissions report; planning ignores them."""

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "clients", Fleet.from_clients(self.clients))
        zone = time_zone(self.time_zone)
        local = None if self.time_zone == "UTC" else zone  # by default, a bare time stays an error
        put(self, "start", self.traces.start if self.start is None else _moment("start", self.start, local))
        put(self, "rounds", _whole("rounds", self.rounds, least=1))
        if self.planner not in get_args(Planner):
            raise ScenarioError(f"planner must be 'auto' or 'paper', not {self.planner!r}.")
        unset = {name for name in DEFAULTS if getattr(self, name) is None}
        put(self, "free", frozenset(self.free) | unset)
        if unknown := self.free - DEFAULTS.keys():
            raise ScenarioError(f"A planner cannot choose {min(unknown)!r}; it chooses {', '.join(DEFAULTS)}.")
        for name in unset:
            put(self, name, DEFAULTS[name])
        put(self, "fine_tune", _whole("fine_tune", self.fine_tune, least=0))
        put(self, "recall", _whole("recall", self.recall, least=0))
        if self.deadline is not None:
            put(self, "deadline", _moment("deadline", self.deadline, local))
        put(self, "slack", self._resolved_slack())
        if self.fine_tune > self.horizon:
            raise ScenarioError(
                f"The fine-tuning window of {self.fine_tune} slots is longer than the horizon of {self.horizon} "
                f"(rounds + slack). Shorten fine_tune or add slack."
            )
        self._check_goal()
        answer = self.goal == "work" and self.budget_kg == math.inf
        if not answer and (not is_finite_number(self.budget_kg) or self.budget_kg <= 0):
            hint = ' Only goal = "work" finds it by itself.' if self.budget_kg == math.inf else ""
            raise ScenarioError(f"budget_kg must be a number above 0, in kg, not {self.budget_kg!r}.{hint}")
        put(self, "budget_kg", float(self.budget_kg))
        if self.round_minutes is not None:
            if not is_finite_number(self.round_minutes) or not 0 < self.round_minutes <= self.traces.slot_minutes:
                raise ScenarioError(
                    f"round_minutes must be above 0 and at most the slot's {self.traces.slot_minutes} minutes, "
                    f"not {self.round_minutes!r}. Raise slot_minutes for longer rounds."
                )
            put(self, "round_minutes", float(self.round_minutes))
        if self.window not in ("all", "available"):
            raise ScenarioError(f"window must be 'all' or 'available', not {self.window!r}.")
        if self.max_parallel is not None:
            put(self, "max_parallel", _whole("max_parallel", self.max_parallel, least=1))
        self._check_quorum()
        self._check_overheads()
        self._check_prices()
        if self.server is not None and self.server_kg is not None:
            raise ScenarioError("Give the server's zone and power, or its kg per slot, not both.")
        if self.server is not None and not isinstance(self.server, Server):
            raise ScenarioError(f"server must be a Server with a zone and power_w, not {self.server!r}.")
        if isinstance(self.alpha, bool):
            raise ScenarioError(f"alpha must be a number or 'log' or 'max-min', not {self.alpha!r}.")
        Utility.parse(self.alpha)
        if not isinstance(self.alpha, str):
            put(self, "alpha", float(self.alpha))
        self._check_up_before()
        _ = self.costs  # zones, availability and the reach of the traces are checked now, not when planning starts
        self._check_past()

    def __repr__(self) -> str:
        """Show size, time and budget on one line."""
        return (
            f"Problem({len(self.fleet)} clients, {self.rounds} rounds + {self.horizon - self.rounds} slack of "
            f"{self.traces.slot_minutes} min from {iso(self.first_slot)}, {self.budget_kg:g} kg, alpha={self.alpha!r})"
        )

    @classmethod
    def from_costs(
        cls,
        g_kg: ArrayLike,
        *,
        names: Sequence[str] | None = None,
        min_slots: ArrayLike = 0,
        max_slots: ArrayLike | None = None,
        **settings: Any,
    ) -> Problem:
        """Return a problem from carbon costs alone, without zones and times.

        Args:
            g_kg: [client, slot], what a client emits by training in a slot, kg.
            names: Names of the clients. Default: they are numbered.
            min_slots: Least number of slots before the window, for all clients or [client].
            max_slots: Largest number of slots before the window, for all clients or [client].
            settings: The other fields of a problem, such as `rounds`, `budget_kg`, `slack` and `alpha`.
        """
        costs = _numbers("g_kg", g_kg)
        if costs.ndim != 2 or costs.size == 0:
            raise ScenarioError(f"g_kg must be a filled array [client, slot], not of shape {costs.shape}.")
        bad = ~np.isfinite(costs) | (costs < 0)
        if bad.any():
            client, slot = np.argwhere(bad)[0]
            raise DataError(f"g_kg[{client}, {slot}] is {costs[client, slot]}; costs must be finite and not negative.")
        zones = [f"cost-{i}" for i in range(len(costs))]
        return cls(
            clients=Fleet.of(zones, names=names, energy_kwh=1.0, min_slots=min_slots, max_slots=max_slots),
            traces=Traces(
                zones=tuple(zones),
                start=datetime(1970, 1, 1, tzinfo=UTC),
                intensity=costs,
                factor="direct",
                provenance=tuple(Provenance(zone=z, source="costs given as an array") for z in zones),
            ),
            **settings,
        )

    def with_settings(self, **settings: Any) -> Problem:
        """Return the problem with some settings changed (`budget_kg`, `alpha`, `slack`, `fine_tune`, ..).

        Slack and deadline replace each other. A setting that is given is no longer free; None frees it again.
        """
        known = [field.name for field in fields(self)]
        for key in settings:
            if key not in known:
                raise ScenarioError(f"A problem has no setting {key!r}; {unknown_key(key, known)}")
        settings.setdefault("free", self.free - settings.keys())
        if settings.get("slack") is not None:
            settings.setdefault("deadline", None)
        elif settings.get("deadline", self.deadline) is not None:
            settings.setdefault("slack", None)
        return replace(self, **settings)

    def for_budget(self, **settings: Any) -> Problem:
        """Return the problem with the goal "budget", and some settings changed as by `with_settings`."""
        own = {"goal": "budget", "rounds_each": None, "rounds_total": None, "enough_share": DEFAULT_ENOUGH_SHARE}
        return self.with_settings(**own | settings)

    def need_budget(self) -> None:
        """Raise an error if there is no budget: with the goal "work" it is found, and some ways of planning need it."""
        if math.isinf(self.budget_kg):
            raise ScenarioError('This needs a budget, and goal = "work" has found none yet. Give budget_kg.')

    @property
    def fleet(self) -> Fleet:
        """Return the clients as columns."""
        assert isinstance(self.clients, Fleet)
        return self.clients

    @property
    def first_slot(self) -> datetime:
        """Return the start of the first slot, aware UTC."""
        assert isinstance(self.start, datetime)
        return self.start

    @property
    def horizon(self) -> int:
        """Return the total number of slots: rounds + slack."""
        assert self.slack is not None
        return self.rounds + self.slack

    @property
    def reach(self) -> int:
        """Return the number of slots from the start that the intensity, the prices and all arrays by slot cover."""
        step = timedelta(minutes=self.traces.slot_minutes)
        covered = [int((self.traces.end - self.first_slot) // step)]
        if self.available is not None:
            covered.append(int(np.asarray(self.available).shape[1]))
        if self.server_kg is not None:
            covered.append(len(np.asarray(self.server_kg)))
        if self.price is not None:
            covered.append(self.price.reach(self.first_slot))
        return min(covered)

    @property
    def slot_hours(self) -> float:
        """Return the length of a slot, hours."""
        return self.traces.slot_minutes / _MINUTES_PER_HOUR

    @property
    def coupled(self) -> bool:
        """Return whether clients or slots are tied together, so that a client's cheapest slots need not be its best."""
        costs = self.costs
        return (
            (self.max_parallel is not None and self.max_parallel < len(self.fleet))
            or (self.min_parallel is not None and self.min_parallel > 1)
            or costs.server_kg is not None
            or bool(costs.sleeps.any())
            or costs.level_kwh.shape[1] > 1
            or self.budget_money is not None
            or (costs.price is not None and self.price_weight != 0)
        )

    @cached_property
    def utility(self) -> Utility:
        """Return the fairness objective."""
        return Utility.parse(self.alpha)

    @cached_property
    def costs(self) -> Costs:
        """Return the carbon cost of every client and slot of the horizon."""
        fleet, hours = self.fleet, self.slot_hours
        traces = self.traces.window(self.first_slot, self.horizon)
        zones, which = np.unique(np.asarray(fleet.zone, dtype=str), return_inverse=True)
        rows = np.array([traces.index(str(zone)) for zone in zones], dtype=np.intp)
        round_hours = hours if self.round_minutes is None else self.round_minutes / _MINUTES_PER_HOUR
        # A training slot costs what it adds to the idle draw, which is charged anyway.
        added = energy_kwh(fleet.power_w - fleet.idle_w, round_hours)  # type: ignore[arg-type]
        masks, mask = self._availability()
        training = np.where(np.isnan(fleet.energy_kwh), added, fleet.energy_kwh) * fleet.pue
        sent_gb = _WAYS * (self.model_mb or 0.0) / _MB_PER_GB
        idle, sleeps = energy_kwh(fleet.idle_w, hours) * fleet.pue, fleet.sleeps  # type: ignore[arg-type]
        at_level, work = self._levels(training, round_hours)
        price, server_price = self._prices([str(zone) for zone in zones])
        return Costs(
            training_kwh=training,
            network_kwh=np.full(len(fleet), self.network_kwh_per_gb * sent_gb),
            evaluation_kwh=self.evaluation_share * training,
            idle_kwh=np.where(sleeps, 0.0, idle),
            row=which.reshape(-1).astype(np.intp),
            intensity=np.ascontiguousarray(traces.intensity[rows]),
            available=masks,
            mask=mask,
            server_kg=self._server_costs(traces),
            server_kwh=0.0 if self.server is None else energy_kwh(self.server.power_w, hours) * self.server.pue,
            sleeps=sleeps,
            up_kwh=np.where(sleeps, idle, 0.0),
            startup_kwh=fleet.startup_kwh * fleet.pue,
            lead=np.ceil(fleet.startup_minutes / self.traces.slot_minutes).astype(np.intp),
            min_block=fleet.min_block_slots.astype(np.intp),
            level_training_kwh=at_level,
            level_evaluation_kwh=self.evaluation_share * at_level,
            level_work=work,
            price=price,
            server_price=server_price,
            price_weight=self.price_weight,
        )

    def _levels(
        self, training_kwh: NDArray[np.float64], round_hours: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the training energy of a round and the work [client, level], full power first."""
        fleet = self.fleet
        most = max(map(len, fleet.levels.values()), default=1)
        kwh, work = np.full((len(fleet), most), np.nan), np.zeros((len(fleet), most))
        kwh[:, 0], work[:, 0] = training_kwh, 1.0
        for client, levels in fleet.levels.items():
            for number, level in enumerate(levels[1:], start=1):
                added = energy_kwh(level.power_w - fleet.idle_w[client], round_hours)
                kwh[client, number], work[client, number] = added * fleet.pue[client], level.work
        return kwh, work

    def _prices(self, zones: Sequence[str]) -> tuple[NDArray[np.float64] | None, NDArray[np.float64] | None]:
        """Return the price in the clients' zones [row, slot] and in the server's [slot]."""
        if self.price is None:
            return None, None
        rows = [self.price.index(zone) for zone in zones]  # names a missing zone before missing hours
        server = None if self.server is None else self.price.index(self.server.zone)
        prices = self.price.window(self.first_slot, self.horizon).per_kwh
        return np.ascontiguousarray(prices[rows]), None if server is None else prices[server]

    @cached_property
    def g_max(self) -> float:
        """Return the paper's g_max, kg, the reference of savings in a slot."""
        return self.costs.g_max if self.g_max_kg is None else self.g_max_kg

    @property
    def earned(self) -> NDArray[np.float64] | float:
        """Return the utility from before this horizon [client], kg; 0 if there is none."""
        return 0.0 if self.earned_kg is None else np.asarray(self.earned_kg, dtype=np.float64)

    def slot_start(self, slot: int) -> datetime:
        """Return the start of a slot of the horizon; for the number after the last, its end."""
        return self.first_slot + timedelta(minutes=self.traces.slot_minutes * slot)

    def _check_overheads(self) -> None:
        if self.model_mb is not None and not (is_finite_number(self.model_mb) and 0 < self.model_mb <= _MOST_MODEL_MB):
            raise ScenarioError(
                f"model_mb must be the size of the model in MB (10^6 bytes), above 0 and at most {_MOST_MODEL_MB:g}, not "
                f"{self.model_mb!r}. Leave it out to ignore the network."
            )
        for name in ("network_kwh_per_gb", "evaluation_share"):
            value = getattr(self, name)
            if not is_finite_number(value) or value < 0:
                raise ScenarioError(f"{name} must be a number of at least 0, not {value!r}.")

    def _check_goal(self) -> None:
        put = object.__setattr__
        if self.goal not in ("budget", "work", "enough"):
            raise ScenarioError(f"goal must be 'budget', 'work' or 'enough', not {self.goal!r}.")
        for name in ("rounds_each", "rounds_total"):
            if getattr(self, name) is None:
                continue
            put(self, name, _whole(name, getattr(self, name), least=1))
            if self.goal != "work":
                raise ScenarioError(f'{name} needs goal = "work". Set the goal, or leave {name} out.')
        if self.goal == "work" and (self.rounds_each is None) == (self.rounds_total is None):
            raise ScenarioError(
                'goal = "work" needs rounds_each (rounds for every client) or rounds_total (client-rounds of all). '
                + ("Give one of them." if self.rounds_each is None else "Give one of them, not both.")
            )
        if not is_finite_number(self.enough_share) or not 0 < self.enough_share < 1:
            raise ScenarioError(f"enough_share must be a number above 0 and below 1, not {self.enough_share!r}.")
        put(self, "enough_share", float(self.enough_share))
        if self.enough_share != DEFAULT_ENOUGH_SHARE and self.goal != "enough":
            raise ScenarioError('enough_share needs goal = "enough". Set the goal, or leave enough_share out.')

    def _check_quorum(self) -> None:
        if self.min_parallel is None:
            return
        least = _whole("min_parallel", self.min_parallel, least=1)
        object.__setattr__(self, "min_parallel", least)
        if least > len(self.fleet):
            raise ScenarioError(
                f"min_parallel asks for {least} clients in a slot, but there are {len(self.fleet)}. Lower it, or add clients."
            )
        if self.max_parallel is not None and least > self.max_parallel:
            raise ScenarioError(
                f"min_parallel is {least}, more than max_parallel ({self.max_parallel}). Lower it, or raise max_parallel."
            )

    def _check_prices(self) -> None:
        if self.price is not None and not isinstance(self.price, Prices):
            raise ScenarioError(f"price must be Prices, not {self.price!r:.80}.")
        if self.price is not None and self.price.slot_minutes != self.traces.slot_minutes:
            raise ScenarioError(
                f"The prices have slots of {self.price.slot_minutes} minutes, the intensity of {self.traces.slot_minutes}. "
                "Give both for the same slots."
            )
        if not is_finite_number(self.price_weight) or self.price_weight < 0:
            raise ScenarioError(
                f"price_weight must be a number of at least 0, in kg per unit of currency, not {self.price_weight!r}."
            )
        object.__setattr__(self, "price_weight", float(self.price_weight))
        if self.budget_money is not None:
            if not is_finite_number(self.budget_money):
                raise ScenarioError(f"budget_money must be a number, in the currency, not {self.budget_money!r}.")
            object.__setattr__(self, "budget_money", float(self.budget_money))
        if self.price is None and (self.price_weight or self.budget_money is not None):
            needs = "price_weight" if self.price_weight else "budget_money"
            raise ScenarioError(f"{needs} needs prices. Name a file in [price], or leave {needs} out.")

    def _check_up_before(self) -> None:
        if self.up_before is None:
            return
        before = _numbers("up_before", self.up_before)
        if before.shape != (len(self.fleet),) or not np.all((before >= 0) & (before == np.floor(before))):
            raise ScenarioError(
                f"up_before must hold a whole number of slots, at least 0, for each of the {len(self.fleet)} clients."
            )
        object.__setattr__(self, "up_before", np.minimum(before, NO_LIMIT).astype(np.int64))

    def _check_past(self) -> None:
        if self.earned_kg is not None:
            earned = _numbers("earned_kg", self.earned_kg)
            if earned.shape != (len(self.fleet),) or not np.all(np.isfinite(earned)) or np.any(earned < 0):
                raise ScenarioError(
                    f"earned_kg must hold a finite number, not below 0, for each of the {len(self.fleet)} clients."
                )
            object.__setattr__(self, "earned_kg", earned)
        if self.trained_ago is not None:
            ago = _numbers("trained_ago", self.trained_ago)
            if ago.shape != (len(self.fleet),) or not np.all(ago >= 1):
                raise ScenarioError(
                    f"trained_ago must hold a number of slots, at least 1, for each of the {len(self.fleet)} clients."
                )
            object.__setattr__(self, "trained_ago", ago)
        if self.g_max_kg is None:
            return
        dearest = self.costs.g_max
        if not is_finite_number(self.g_max_kg) or self.g_max_kg < dearest * (1 - _SAME_KG):
            raise ScenarioError(
                f"g_max_kg must be at least the {dearest:.6g} kg of the dearest client-slot, not {self.g_max_kg!r}."
            )

    def _resolved_slack(self) -> int:
        if self.deadline is None:
            slack = 0 if self.slack is None else self.slack
            return _whole("slack", slack, least=0)
        assert isinstance(self.deadline, datetime)
        if self.slack is not None:
            raise ScenarioError(
                f"There is a slack of {self.slack} and a deadline of {iso(self.deadline)}. Give one of them, not both."
            )
        slots = (self.deadline - self.first_slot) // timedelta(minutes=self.traces.slot_minutes)
        if slots < self.rounds:
            raise ScenarioError(
                f"The deadline {iso(self.deadline)} leaves {max(slots, 0)} slots after the start "
                f"{iso(self.first_slot)}, fewer than the {self.rounds} rounds. Move it, or ask for fewer rounds."
            )
        return slots - self.rounds

    def _availability(self) -> tuple[NDArray[np.bool_], NDArray[np.intp]]:
        """Return the distinct availabilities [mask, slot] over the horizon, and the mask of each client."""
        count, slots = len(self.fleet), self.horizon
        if self.available is not None:
            free = np.asarray(self.available, dtype=bool)
            if free.ndim != 2 or free.shape[0] != count or free.shape[1] < slots:
                raise ScenarioError(f"available has shape {free.shape}; it needs {count} clients x {slots} slots.")
            free = free[:, :slots].copy()
            for client in self.fleet.unavailable:
                free[client] &= self._free(client)
            masks, index = np.unique(free, axis=0, return_inverse=True)
            return masks, index.reshape(-1).astype(np.intp)
        mask = np.zeros(count, dtype=np.intp)
        rows = [np.ones(slots, dtype=bool)]
        known: dict[tuple[str, ...], int] = {}
        for client, periods in self.fleet.unavailable.items():
            if periods not in known:
                known[periods] = len(rows)
                rows.append(self._free(client))
            mask[client] = known[periods]
        return np.array(rows), mask

    def _free(self, client: int) -> NDArray[np.bool_]:
        """Return when a client's own periods allow it to train [slot]."""
        periods = self.fleet.unavailable[client]
        try:
            return available_slots(periods, self.first_slot, self.horizon, self.traces.slot_minutes)
        except ScenarioError as error:
            raise ScenarioError(f"Client {self.fleet.names[client]!r}: {error}") from None

    def _server_costs(self, traces: Traces) -> NDArray[np.float64] | None:
        if self.server is not None:
            per_slot = energy_kwh(self.server.power_w, self.slot_hours) * self.server.pue
            return np.asarray(per_slot * traces.intensity[traces.index(self.server.zone)])
        if self.server_kg is None:
            return None
        fixed = _numbers("server_kg", self.server_kg)
        if fixed.ndim != 1 or len(fixed) < self.horizon or not np.all(np.isfinite(fixed)) or np.any(fixed < 0):
            raise ScenarioError(
                f"server_kg must hold a finite cost, not below 0, for each of the {self.horizon} slots."
            )
        return fixed[: self.horizon]


_NOT_SETTINGS = {
    "clients", "traces", "budget_kg", "server", "server_kg", "available", "earned_kg", "trained_ago", "up_before", "g_max_kg",
    "reported_by", "price", "free",
}  # fmt: skip
SETTINGS = tuple(one.name for one in fields(Problem) if one.name not in _NOT_SETTINGS)
"""Fields that are keys of the scenario file with the same name, in plain types; the plan file stores them unchanged."""


def _whole(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ScenarioError(f"{name} must be a whole number of at least {least}, not {value!r}.")
    return int(value)


def _numbers(name: str, values: ArrayLike) -> NDArray[np.float64]:
    try:
        return np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ScenarioError(f"{name} must be an array of numbers ({error}).") from None


def _moment(name: str, value: object, local: tzinfo | None) -> datetime:
    if not isinstance(value, (str, datetime)):
        raise ScenarioError(f"{name} must be a time with a zone, like 2022-01-01T00:00Z, not {value!r}.")
    return utc(value, name, local)
