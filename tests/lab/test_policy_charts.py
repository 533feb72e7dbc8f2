"""The picture that ranks the methods by accuracy: nobody is left out of it."""

from __future__ import annotations

import math
from dataclasses import fields
from itertools import pairwise

import pytest

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


def dots(figure: object) -> dict[str, dict[str, float]]:
    """Budget -> method -> accuracy in %, as drawn."""
    (axes,) = figure.axes  # type: ignore[attr-defined]
    methods = [label.get_text() for label in axes.get_yticklabels()]
    handles, labels = axes.get_legend_handles_labels()
    return {
        label: {methods[round(y)]: x for x, y in handle[0].get_xydata()}
        for handle, label in zip(handles, labels, strict=True)
    }


def test_methods_are_ranked_by_their_mean_and_ours_are_bold() -> None:
    table = [
        line("no-slack", 0.5, 0.85),
        line("ours-auto", 0.5, 0.98),
        line("ours-auto", 2.0, 0.97),
        line("no-slack", 2.0, 0.99),
    ]
    figure = chart(table)
    labels = figure.axes[0].get_yticklabels()
    assert [(label.get_text(), label.get_fontweight()) for label in labels] == [
        ("ours-auto", "bold"),
        ("no-slack", "normal"),
    ]
    low, high = figure.axes[0].get_ylim()
    assert low > high, "the best is at the top"
    assert dots(figure)["0.5 kg"] == pytest.approx({"ours-auto": 98, "no-slack": 85})
    title = figure.get_suptitle().replace("\n", " ")
    assert title == "Most accurate: ours-auto at 0.5 kg (98.0 %), no-slack at 2 kg (99.0 %)"
    assert figure.axes[0].get_title(loc="left") == "Simulated runs"


def test_a_collapsed_method_is_on_it_and_good_ones_are_apart() -> None:
    table = [line(method, kg, 0.1 if method == "ours" else good) for kg, good in ((0.5, 0.97), (2.0, 0.985))
             for method in ("ours", "ours-auto")]  # fmt: skip
    (axes,) = chart(table).axes
    low, high = axes.get_xlim()
    assert low < 10
    assert 98.5 < high <= 100.1
    places = axes.transAxes.inverted().transform(axes.transData.transform([(10, 1), (97, 1), (98.5, 1)]))[:, 0]
    assert places[2] - places[1] > 0.1
    assert {"10", "90", "97", "98"} <= {label.get_text() for label in axes.get_xticklabels()}


def test_methods_that_are_close_have_enough_ticks_that_do_not_touch() -> None:
    figure = chart([line("ours", 3.0, 0.969), line("ca-fed", 3.0, 0.9211)])
    (axes,) = figure.axes
    figure.draw_without_rendering()
    assert {"93", "95", "96", "97"} <= {label.get_text() for label in axes.get_xticklabels()}
    boxes = sorted((label.get_window_extent() for label in axes.get_xticklabels()), key=lambda box: box.x0)
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))
    assert "scale of the error" in axes.get_xlabel()


def test_a_method_without_the_largest_budget_is_drawn_as_far_as_it_goes() -> None:
    drawn = dots(chart([line("a", 0.5, 0.9), line("a", 2.0, 0.95), line("b", 0.5, 0.99)]))
    assert set(drawn["0.5 kg"]) == {"a", "b"}
    assert set(drawn["2 kg"]) == {"a"}
    assert next(iter(drawn["0.5 kg"])) == "a", "a missing budget counts as 0"
