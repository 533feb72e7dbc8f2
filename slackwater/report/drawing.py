"""Charts as simple shapes, which the page and the PDF draw alike without a plotting library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from slackwater.charts import style

Role = Literal["realised", "planned", "other", "budget", "rule", "ink", "muted"]
Anchor = Literal["start", "middle", "end"]
WIDTH = 480.0
_LEFT, _RIGHT, _FONT = 46.0, 10.0, 12.0
_MOST_POINTS = 400
_LONGEST_NAME = 19


@dataclass(frozen=True, slots=True, kw_only=True)
class Rectangle:
    """A filled rectangle."""

    x: float
    y: float
    width: float
    height: float
    role: Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Polyline:
    """A line through points."""

    points: tuple[tuple[float, float], ...]
    role: Role
    width: float = 1.0
    dashed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A line of text; y is its baseline."""

    x: float
    y: float
    text: str
    role: Role = "ink"
    anchor: Anchor = "start"
    size: float = _FONT


Shape = Rectangle | Polyline | Label


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """Shapes on a sheet `WIDTH` wide, the origin at the top left."""

    title: str
    description: str
    """Text alternative for readers who cannot see the chart."""
    height: float
    shapes: tuple[Shape, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar; `mark` draws a line across it at another value."""

    name: str
    value: float
    text: str
    role: Role = "realised"
    mark: float | None = None


def bars(title: str, description: str, items: Sequence[Bar], *, legend: Sequence[tuple[Role, str]] = ()) -> Drawing:
    """Draw horizontal bars from 0 with the value at the end of each."""
    longest = max((len(style.shortened(bar.name, _LONGEST_NAME)) for bar in items), default=0)
    left = 7.6 * longest + 14
    room = WIDTH - left - 84
    top = max([*(abs(bar.value) for bar in items), *(bar.mark or 0.0 for bar in items)], default=0.0) or 1.0
    shapes: list[Shape] = _legend(legend)
    first = 24.0 if legend else 4.0
    for number, bar in enumerate(items):
        y = first + 24.0 * number
        length = room * max(0.0, bar.value) / top
        shapes.append(Label(x=left - 8, y=y + 15, text=style.shortened(bar.name, _LONGEST_NAME), anchor="end"))
        shapes.append(Rectangle(x=left, y=y + 3, width=max(length, 0.5), height=16, role=bar.role))
        reach = length
        if bar.mark is not None:
            at = left + room * bar.mark / top
            shapes.append(Polyline(points=((at, y), (at, y + 22)), role="ink", width=1.6))
            reach = max(length, at - left)
        shapes.append(Label(x=left + reach + 6, y=y + 15, text=bar.text))
    return Drawing(title=title, description=description, height=first + 24.0 * len(items) + 4, shapes=tuple(shapes))


def progress(
    title: str,
    description: str,
    *,
    planned: Sequence[float],
    first_plan: Sequence[float] = (),
    realised: Sequence[float],
    budget: float | None,
    ticks: Sequence[tuple[float, str]],
    slots: int,
) -> Drawing:
    """Draw cumulative emissions over time: planned dashed, realised solid, with the first plan and the budget."""
    height, top, foot = 252.0, 30.0, 216.0
    most = max([*planned, *first_plan, *realised, budget or 0.0], default=0.0) or 1.0
    step = _round_step(most)
    most = step * math.ceil(most / step - 1e-9)
    width = WIDTH - _LEFT - _RIGHT

    def at(slot: float, kg: float) -> tuple[float, float]:
        return _LEFT + width * slot / max(slots, 1), foot - (foot - top) * kg / most

    names: list[tuple[Role, str]] = [("realised", "realised")]
    names += [("planned", "planned")] if planned else []
    names += [("other", "first plan")] if first_plan else []
    shapes: list[Shape] = _legend([*names, ("budget", "budget")])
    for number in range(round(most / step) + 1):
        y = at(0, number * step)[1]
        shapes.append(Polyline(points=((_LEFT, y), (WIDTH - _RIGHT, y)), role="rule", width=0.7))
        shapes.append(Label(x=_LEFT - 6, y=y + 4, text=f"{number * step:g}", role="muted", anchor="end"))
    for slot, text in ticks:
        x = at(slot, 0)[0]
        shapes.append(Polyline(points=((x, foot), (x, foot + 4)), role="muted", width=0.7))
        shapes.append(Label(x=x, y=foot + 17, text=text, role="muted", anchor="middle"))
    shapes.append(Label(x=WIDTH - _RIGHT, y=height - 3, text="time, UTC", role="muted", anchor="end"))
    shapes.append(Label(x=0, y=height - 3, text="kg CO2e", role="muted"))
    if budget is not None:
        shapes.append(Polyline(points=(at(0, budget), at(slots, budget)), role="budget", width=1.4, dashed=True))
    shapes.append(Polyline(points=_thinned([at(t, kg) for t, kg in _since(realised)]), role="realised", width=2.6))
    if first_plan:
        line = _thinned([at(t, kg) for t, kg in _since(first_plan)])
        shapes.append(Polyline(points=line, role="other", width=1.4, dashed=True))
    # Thin and on top, so that both lines show where they coincide.
    if planned:
        line = _thinned([at(t, kg) for t, kg in _since(planned)])
        shapes.append(Polyline(points=line, role="planned", width=1.4, dashed=True))
    return Drawing(title=title, description=description, height=height, shapes=tuple(shapes))


def _legend(entries: Sequence[tuple[Role, str]]) -> list[Shape]:
    shapes: list[Shape] = []
    x = 0.0
    for role, text in entries:
        y = 9.0
        if role in ("planned", "other", "budget"):
            shapes.append(Polyline(points=((x, y), (x + 20, y)), role=role, width=1.6, dashed=True))
        elif role == "ink":
            shapes.append(Polyline(points=((x + 10, y - 7), (x + 10, y + 7)), role=role, width=1.6))
        else:
            shapes.append(Rectangle(x=x, y=y - 4, width=20, height=8, role=role))
        shapes.append(Label(x=x + 26, y=y + 4, text=text))
        x += 26 + 7.0 * len(text) + 18
    return shapes


def _since(sums: Sequence[float]) -> list[tuple[float, float]]:
    """Return points (slot, kg): 0 kg at the start, then each sum at the end of its slot."""
    return [(0.0, 0.0), *((slot + 1.0, kg) for slot, kg in enumerate(sums))]


def _thinned(points: list[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    every = -(-len(points) // _MOST_POINTS)
    return tuple(points[::every]) + ((points[-1],) if (len(points) - 1) % every else ())


def _round_step(most: float) -> float:
    """Return a step of 1, 2 or 5 times a power of ten, for about five lines."""
    rough = most / 5
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
