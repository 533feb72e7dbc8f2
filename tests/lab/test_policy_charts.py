"""The picture of accuracy against kg: nobody is left out of it."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest
from matplotlib.lines import Line2D

from slackwater.lab.policies.charts import chart
from slackwater.lab.policies.comparison import Line


def line(method: str, budget_kg: float, accuracy: float) -> Line:
    """One method at one budget; what the picture does not show is not a number."""
    given = {
        "method": method,
        "budget_kg": budget_kg,
        "accuracy": accuracy,
        "accuracy_sd": 0.01,
        "seeds": 2,
        "kg": budget_kg,
    }
    return Line(**{field.name: given.get(field.name, math.nan) for field in fields(Line)})


def drawn(figure: object) -> dict[str, Line2D]:
    """Lines of the methods."""
    (axes,) = figure.axes  # type: ignore[attr-defined]
    handles, labels = axes.get_legend_handles_labels()
    return {
        label: handle if isinstance(handle, Line2D) else handle[0]
        for handle, label in zip(handles, labels, strict=True)
    }


def test_with_one_budget_a_method_of_a_single_round_is_a_point() -> None:
    table = [line("ours-auto", 0.5, 0.98), line("no-slack", 0.5, 0.85)]
    lines = drawn(chart(table, {"ours-auto": [[1, 0.1, 0.9], [9, 0.5, 0.98]], "no-slack": [[3, 0.5, 0.85]]}))
    assert lines["no-slack"].get_markevery() is None, "a share of a line without length would show no marker"
    assert list(lines["no-slack"].get_ydata()) == [pytest.approx(85)]


def test_a_collapsed_method_is_on_it_and_good_ones_are_apart() -> None:
    table = [line(method, kg, 0.1 if method == "ours" else good) for kg, good in ((0.5, 0.97), (2.0, 0.985))
             for method in ("ours", "ours-auto")]  # fmt: skip
    (axes,) = chart(table, {}).axes
    low, high = axes.get_ylim()
    assert low < 10
    assert 98.5 < high <= 100.1
    heights = axes.transAxes.inverted().transform(axes.transData.transform([(1, 10), (1, 97), (1, 98.5)]))[:, 1]
    assert heights[2] - heights[1] > 0.1
    assert {"10", "90", "97", "98"} <= {label.get_text() for label in axes.get_yticklabels()}


def test_a_method_without_the_largest_budget_is_drawn_as_far_as_it_goes() -> None:
    lines = drawn(chart([line("a", 0.5, 0.9), line("a", 2.0, 0.95), line("b", 0.5, 0.8)], {}))
    assert set(lines) == {"a", "b"}
    assert list(lines["b"].get_xdata()) == [0.5]
