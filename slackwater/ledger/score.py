"""How a run measures its model: the metric's name, direction and unit, which every output shows with the score."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from slackwater.errors import ScenarioError

PERCENT = "%"
_LONGEST = 40
_LARGE = 1e9
_NOT_METRICS = ("loss", "samples")
"""Keys of an evaluation that are stored on their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricLabel:
    """Name, direction and unit of a metric."""

    name: str
    higher_is_better: bool = True
    unit: str = ""
    """Shown after the score. "%": the score is a share, and is shown times 100."""

    def __post_init__(self) -> None:
        for key, value in (("name", self.name), ("unit", self.unit)):
            if (
                not isinstance(value, str)
                or len(value) > _LONGEST
                or not (value.isprintable() and (value or key == "unit"))
            ):
                raise ScenarioError(
                    f"The {key} of a metric must be text of at most {_LONGEST} characters, not {value!r:.60}."
                )

    @property
    def title(self) -> str:
        """Return the name for a heading: "Accuracy", "AUROC"."""
        return self.name[:1].upper() + self.name[1:]

    @property
    def heading(self) -> str:
        """Return the name, and that lower is better if it is."""
        return self.name + self.direction

    @property
    def axis(self) -> str:
        """Return the name with the unit and the direction, for a chart."""
        return f"test {self.name}{', ' + self.unit if self.unit else ''}{self.direction}"

    @property
    def column(self) -> str:
        """Return the name with the unit, for a column of `number`s."""
        return self.name if self.unit in ("", PERCENT) else f"{self.name}, {self.unit}"

    @property
    def direction(self) -> str:
        """Return that lower is better, if it is, to stand after the name or the score."""
        return "" if self.higher_is_better else " (lower is better)"

    def shown(self, value: float) -> float:
        """Return the number to show: a share in percent, any other score unchanged."""
        return 100 * value if self.unit == PERCENT else value

    def text(self, value: float | None, digits: int = 2) -> str:
        """Return a score with its unit."""
        number = self.number(value, digits)
        return f"{number} {self.unit}" if self.unit not in ("", PERCENT) and number != "-" else number

    def number(self, value: float | None, digits: int = 2) -> str:
        """Return a score; shares have `digits` decimals and %, other scores four significant digits and no unit."""
        if value is None or math.isnan(value):
            return "-"
        return f"{value:.{digits}%}" if self.unit == PERCENT else _figure(value)

    def difference(self, value: float) -> str:
        """Return the difference of two scores, with its sign; of shares in percentage points."""
        if math.isnan(value):
            return "-"
        if self.unit == PERCENT:
            return f"{100 * value:+.2f} points"
        return f"{'-' if value < 0 else '+'}{self.text(abs(value))}"

    def worst(self, values: Iterable[float]) -> float | None:
        """Return the worst of some scores; None if none is a number."""
        known = [value for value in values if not math.isnan(value)]
        return (min if self.higher_is_better else max)(known, default=None)

    def rank(self, value: float) -> float:
        """Return a key that sorts the best score first, and NaN last."""
        return math.inf if math.isnan(value) else -value if self.higher_is_better else value

    def to_dict(self) -> dict[str, Any]:
        """Return the label as JSON holds it."""
        return asdict(self)

    def scored(self, value: float | None) -> dict[str, float | None]:
        """Return a score as JSON holds it: under `score`, and under `accuracy` only if it is one."""
        return {"accuracy": value if self == ACCURACY else None, "score": value}


def _figure(value: float) -> str:
    """Return four significant digits, of a large number all digits before the point."""
    return f"{value:,.0f}" if 10_000 <= abs(value) < _LARGE else f"{value:.4g}"


ACCURACY = MetricLabel(name="accuracy", unit=PERCENT)
LABELS = {
    "accuracy": ACCURACY,
    "auroc": MetricLabel(name="AUROC"),
    "f1": MetricLabel(name="F1"),
    "mae": MetricLabel(name="MAE", higher_is_better=False),
    "rmse": MetricLabel(name="RMSE", higher_is_better=False),
    "perplexity": MetricLabel(name="perplexity", higher_is_better=False),
}
"""The metrics that Slackwater knows by name."""


def label_of(data: object) -> MetricLabel:
    """Return the label that a run's file holds; accuracy for older runs and for a damaged label."""
    if isinstance(data, Mapping):
        try:
            return MetricLabel(
                name=data["name"], higher_is_better=bool(data["higher_is_better"]), unit=data.get("unit", "")
            )
        except (KeyError, ScenarioError):
            pass
    return ACCURACY


def measured_by(metrics: Mapping[str, float]) -> MetricLabel:
    """Return the metric of an evaluation: accuracy if it has one, else its first value besides loss and samples."""
    named = [key for key in metrics if key not in _NOT_METRICS]
    if not named or "accuracy" in named:
        return ACCURACY
    name = named[0]
    known = LABELS.get(name.lower())
    return known or MetricLabel(name="".join(c for c in name if c.isprintable())[:_LONGEST] or "score")


def score_in(metrics: Mapping[str, float], label: MetricLabel) -> float | None:
    """Return the value of a metric in an evaluation; upper and lower case are the same."""
    return next((value for key, value in metrics.items() if key.lower() == label.name.lower()), None)
