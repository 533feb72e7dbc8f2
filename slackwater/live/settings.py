"""Settings of a live run: `live.json` in its folder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from slackwater.errors import ScenarioError
from slackwater.ledger.run import RunKind
from slackwater.planning.plan import DEFAULT_AGGREGATOR, MEMORY_DTYPES
from slackwater.registry import unknown_key
from slackwater.replanning.settings import Settings as Replanning

Source = Literal["plan", "playback", "providers"]
"""Where actual intensity comes from. `plan`: the plan's own traces are the actuals, and its matrix is followed.
`playback`: `actuals.json` in the folder, of which no more is looked at than was known at the time. `providers`: asked as
the run goes on. With the last two what is left is planned anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSettings:
    """How a plan is carried out."""

    aggregator: str = DEFAULT_AGGREGATOR
    """How updates are combined before the window; in it they are averaged."""
    server: str = "plain"
    """Server optimiser: plain, momentum or adam."""
    server_lr: float | None = None
    memory_dtype: str = "float32"
    """Type of the updates that the aggregator stores: float32 as they are, float16 or bfloat16 halves memory and disk."""
    seed: int = 0
    eval_every: int = 1
    """Rounds between calls of `evaluate`; the last model is always evaluated."""
    config: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    """The user's own settings of local training, passed on to the clients as they are."""
    engine: Mapping[str, Any] = field(default_factory=dict)
    """What carries out the run: the app's folder, the SuperLink's name."""

    source: Source = "plan"
    replan_slots: int | None = None
    """Re-plan after so many slots; None plans once. With the source `plan` it is never re-planned."""
    forecast: str | None = None
    """Forecaster by name; None is the providers' own forecast, and persistence for a playback."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """For `providers`: the scenario's [data], that is source, factor and fill_hours; and the folder its paths start at."""
    lag_slots: int = 1
    """For `playback`: slots after its end until a slot's actual is known."""
    reserve: float = Replanning().reserve
    """Probability with which a plan is meant to keep the budget; 0 keeps nothing back."""
    bound: float = Replanning().margin
    """How far the upper bound of intensity lies beyond the largest rise and level seen."""

    slot_seconds: float | None = None
    """Wall time of a slot: None is its real time, 0 does not wait at all (a slot lasts as long as its round)."""
    margin_seconds: float | None = None
    """How long before the end of its time a client must have answered; None is a twentieth of it, at most a minute."""
    latest_start: float = 0.5
    """Share of a slot after which no round begins in it any more."""

    max_norm_ratio: float | None = 10.0
    """An update longer than this many times the median of the recent ones is rejected; None rejects none for length."""
    max_rejections: int = 3
    """A client is set aside when so many of its updates were rejected."""
    gone_after: int = 3
    """A client that was offline in so many slots in a row is planned without, until it is back."""
    makeup: float = 3.0
    """How many times its planned weight an update may have to make up for lost ones."""
    buffers: tuple[str, ...] = ()
    """Further endings of names in the model that are averaged plainly, as BatchNorm's statistics are."""

    def __post_init__(self) -> None:
        self._check_types()
        object.__setattr__(self, "buffers", tuple(self.buffers))
        for name, least in (("seed", 0), ("eval_every", 0), ("lag_slots", 0), ("max_rejections", 1), ("gone_after", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ScenarioError(f"{name} must be a whole number of at least {least}, not {value!r}.")
        for name, least in (
            ("server_lr", 0),
            ("slot_seconds", 0),
            ("margin_seconds", 0),
            ("max_norm_ratio", 1),
            ("makeup", 1),
        ):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and math.isfinite(value) and value >= least
            if not is_number and (value is not None or name == "makeup"):
                raise ScenarioError(f"{name} must be a number of at least {least:g}, not {value!r}.")
        if not 0 < self.latest_start <= 1:
            raise ScenarioError(f"latest_start must be above 0 and at most 1, not {self.latest_start!r}.")
        if self.source not in ("plan", "playback", "providers"):
            raise ScenarioError(f"source must be plan, playback or providers, not {self.source!r}.")
        if self.source == "plan" and self.replan_slots is not None:
            raise ScenarioError("A run that re-plans needs a source of actuals: playback or providers, not its plan.")
        if self.source == "providers" and self.slot_seconds is not None:
            raise ScenarioError(
                "A compressed clock plays back the past: fetch it first, and take source='playback' (or leave "
                "slot_seconds out)."
            )
        _ = self.replanning

    @property
    def kind(self) -> RunKind:
        """Return what a run with these settings is: live in real time, rehearsed on a past period, else simulated."""
        if self.slot_seconds is None:
            return "live"
        return "rehearsed" if self.source == "playback" else "simulated"

    @property
    def replanning(self) -> Replanning:
        """Return the controller's settings."""
        return Replanning(replan_slots=self.replan_slots, reserve=self.reserve, margin=self.bound)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON holds them."""
        return asdict(self) | {"buffers": list(self.buffers)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LiveSettings:
        """Return settings from JSON; raise for an unknown key."""
        known = [one.name for one in fields(cls)]
        for key in data:
            if key not in known:
                raise ScenarioError(f"A live run has no setting {key!r}; {unknown_key(key, known)}")
        try:
            return cls(**data)
        except ScenarioError:
            raise
        except (TypeError, ValueError, AttributeError) as error:
            raise ScenarioError(f"The settings of a live run are not as they were written: {error}.") from None

    def _check_types(self) -> None:
        """Refuse what a damaged live.json may hold in the place of names and tables."""
        for name in ("aggregator", "server", "memory_dtype", "source", "forecast"):
            value = getattr(self, name)
            if not isinstance(value, str) and not (name == "forecast" and value is None):
                raise ScenarioError(f"{name} must be a name, not {value!r}.")
        if self.memory_dtype not in MEMORY_DTYPES:
            raise ScenarioError(f"memory_dtype must be one of {', '.join(MEMORY_DTYPES)}, not {self.memory_dtype!r}.")
        for name in ("config", "engine", "data"):
            if not isinstance(getattr(self, name), Mapping):
                raise ScenarioError(f"{name} must be a table of settings by name, not {getattr(self, name)!r}.")
        if isinstance(self.buffers, str) or not all(isinstance(ending, str) for ending in self.buffers):
            raise ScenarioError(f"buffers must be a list of endings of names, not {self.buffers!r}.")
