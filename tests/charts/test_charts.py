import builtins
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slackwater.charts import schedule_chart as view
from slackwater.charts import style
from slackwater.charts.figures import (
    advice_chart,
    compare_chart,
    save,
    savings_by_clients,
    savings_heatmap,
    schedule_chart,
)
from slackwater.charts.schedule_chart import ALL, CANNOT, NONE, OVER, schedule_rows, time_marks, time_title
from slackwater.errors import MissingExtraError, ScenarioError, SlackwaterError
from slackwater.intensity.traces import Provenance, Traces
from slackwater.planning.advice import Advice, advise, same_work_kg
from slackwater.planning.fleet import Client
from slackwater.planning.plan import Plan
from slackwater.planning.planner import WhatIf, compare, plan
from slackwater.planning.problem import Problem
from slackwater.planning.savings import SavingsStudy, study

START = datetime(2022, 1, 1, tzinfo=UTC)


def traces(zones: tuple[str, ...] = ("DE", "FR", "SE"), slots: int = 60, *, synthetic: bool = False) -> Traces:
    hours = np.arange(slots)
    waves = [0.1 * (1 + i % 12) * (2 + np.sin(2 * np.pi * (hours + 5 * i) / 24)) for i in range(len(zones))]
    return Traces(
        zones=zones,
        start=START,
        intensity=np.array(waves),
        factor="direct",
        provenance=tuple(Provenance(zone=z, source=f"{z}.csv", synthetic=synthetic) for z in zones),
    )


def make(names: tuple[str, ...] = ("a", "b", "c"), *, synthetic: bool = False, **settings: Any) -> Plan:
    fields: dict[str, Any] = {"rounds": 5, "slack": 40, "budget_kg": 1.5, "fine_tune": 3} | settings
    data = traces(synthetic=synthetic)
    clients = [Client(name=n, zone=data.zones[i % 3], power_w=300.0) for i, n in enumerate(names)]
    return plan(Problem(clients=fields.pop("clients", clients), traces=data, **fields), end=20)


def texts(figure: Any) -> list[str]:
    from matplotlib.text import Text

    return [t.get_text() for t in figure.findobj(Text) if t.get_text()]


def cells(figure: Any) -> np.ndarray:
    (mesh,) = [c for c in figure.axes[0].collections if c.get_gid() == "cells"]
    return np.ma.filled(mesh.get_array(), np.nan)[::2]


def test_schedule_cells_are_the_matrix() -> None:
    made = make()
    shown = cells(schedule_chart(made))
    until = made.window.stop
    assert np.array_equal(shown == ALL, made.matrix)
    assert np.count_nonzero(shown == ALL) == made.matrix.sum() > 9
    assert np.all(shown[:, until:] == OVER)
    assert np.array_equal(shown[:, :until] == NONE, ~made.matrix[:, :until])


def test_schedule_words() -> None:
    made = make()
    figure = schedule_chart(made)
    words, title = texts(figure), figure.get_suptitle()
    assert figure.axes[0].get_xlabel() == "UTC, 2022"
    assert {"1 Jan", "2 Jan", "fine-tuning, 3 slots\n▾", "slots", "kg", "after the end"} <= set(words)
    without = same_work_kg(made)
    saved = 100 * (without - made.emissions_kg) / without
    assert title.startswith(f"Slack saves {saved:.1f} % of the {style.kilograms(without)} kg CO$_2$e that")
    for part in ("of 1.5 kg", f"objective {made.objective:.6g}", "(optimal)", "s = 20"):
        assert part in title
    for client in range(3):
        assert str(made.slots_per_client[client]) in words
        assert f"{made.emissions.training_kg[client]:.3f}" in words
    assert not any(style.SYNTHETIC in word for word in words)
    assert "cannot train" not in words


def test_a_schedule_without_slack_saves_nothing() -> None:
    flat = replace(traces(), intensity=np.full((3, 60), 0.2))
    clients = [Client(name=zone, zone=zone, power_w=300.0) for zone in flat.zones]
    made = plan(Problem(clients=clients, traces=flat, rounds=5, slack=40, budget_kg=1.5), end=20)
    assert schedule_chart(made).get_suptitle().startswith("Slack saves nothing: the same work at once emits as little")


def test_schedule_window_is_marked_where_it_is() -> None:
    from matplotlib.patches import Rectangle

    made = make()
    (frame,) = [p for p in schedule_chart(made).axes[0].patches if isinstance(p, Rectangle)]
    assert (frame.get_x(), frame.get_width()) == (made.before, 3)


def test_synthetic_is_said_on_every_chart() -> None:
    made = make(synthetic=True)
    data = study(traces(synthetic=True), hours=10, slack=20, starts=5)
    for figure in (
        schedule_chart(made),
        savings_heatmap(data),
        savings_by_clients(data),
        compare_chart(compare(made.problem)),
        advice_chart(advise(made.problem, budgets=[1.5], slacks=[40])),
    ):
        assert any(style.SYNTHETIC in word for word in texts(figure))


def test_unavailable_slots_are_hatched() -> None:
    clients = [
        Client(name="night", zone="DE", power_w=300.0, unavailable=("2022-01-01T02:00Z/2022-01-01T06:00Z",)),
        Client(name="always", zone="FR", power_w=300.0),
    ]
    figure = schedule_chart(make(clients=clients))
    shown = cells(figure)
    assert np.flatnonzero(shown[0] == CANNOT).tolist() == [2, 3, 4, 5]
    assert not np.any(shown[1] == CANNOT)
    assert [c.get_hatch() for c in figure.axes[0].collections if c.get_hatch()] == ["//////"]
    assert "cannot train" in texts(figure)


def test_names_are_not_read_as_formulae_and_long_ones_keep_their_ends(tmp_path: Path) -> None:
    names = (r"$\frac{1}{$", "Hospital of the very long name, radiology, node 17", "two\nlines")
    figure = schedule_chart(make(names))
    save(figure, tmp_path / "chart.png")  # drawing is what would fail
    shown = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert shown[0] == names[0]
    assert shown[1].startswith("Hospital of")
    assert shown[1].endswith("node 17")
    assert len(shown[1]) <= 26
    assert "\n" not in shown[2]


def test_one_client_without_window_from_bare_costs() -> None:
    problem = Problem.from_costs([[3.0, 1.0, 2.0, 1.0]], rounds=2, slack=2, fine_tune=0, budget_kg=2.0)
    figure = schedule_chart(plan(problem, end=2))
    assert cells(figure).tolist() == [[NONE, ALL, NONE, ALL]]
    assert figure.axes[0].get_xlabel() == "slot"
    assert "end, s = 2 ▾" in texts(figure)
    assert not any("1970" in word or "Jan" in word for word in texts(figure))


def test_many_clients_are_shown_by_zone() -> None:
    names = tuple(f"c{i}" for i in range(90))
    made = make(names, budget_kg=60.0)
    figure, matrix = schedule_chart(made), made.matrix
    shown = cells(figure)
    assert shown.shape == (3, made.problem.horizon)
    for zone in range(3):
        share = matrix[zone::3].mean(axis=0)  # clients go round the zones
        assert np.array_equal(shown[zone, : made.window.stop], np.ceil(4 * share)[: made.window.stop])
    assert "90 clients," in figure.get_suptitle()
    assert figure.get_suptitle().endswith("A row is a zone, the cleanest first")
    assert f"{made.slots_per_client[::3].sum():,}" in texts(figure)


@pytest.mark.parametrize("chunk", [7, 20_000])
def test_groups_hold_every_client_slot_and_gram(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(view, "_CHUNK", chunk)
    rng = np.random.default_rng(5)
    made = plan(Problem.from_costs(rng.random((130, 12)), rounds=4, slack=8, budget_kg=150.0))
    rows = schedule_rows(made, most=60)
    assert (rows.by, len(rows.labels), rows.labels[-1]) == ("zone", 60, "71 other zones")
    assert rows.clients.sum() == 130
    assert rows.slots.sum() == made.matrix.sum() == pytest.approx((rows.share * rows.clients[:, None]).sum())
    assert rows.kg.sum() == pytest.approx(made.emissions_kg)
    assert np.all(np.diff(rows.intensity[:-1].mean(axis=1)) > 0)
    assert np.all(rows.able == 1)


def test_many_zones_are_shown_by_country() -> None:
    zones = (*(f"US-{i}" for i in range(40)), *(f"IT-{i}" for i in range(30)), "FR", "SE-SE3")
    data = traces(zones)
    clients = [Client(name=f"{zone}/{i}", zone=zone, power_w=300.0) for zone in zones for i in range(2)]
    made = plan(Problem(clients=clients, traces=data, rounds=5, slack=20, budget_kg=90.0), end=10)
    rows = schedule_rows(made, most=60)
    assert rows.by == "country"
    assert set(rows.labels) == {"US, 40 zones", "IT, 30 zones", "FR", "SE-SE3"}
    assert list(rows.intensity.mean(axis=1)) == sorted(rows.intensity.mean(axis=1))
    american = rows.labels.index("US, 40 zones")
    assert rows.clients[american] == 80
    assert rows.slots[american] == made.slots_per_client[:80].sum()
    few = schedule_rows(made, most=3)  # FR and SE-SE3 have the fewest clients
    assert few.labels[-1] == "2 other zones"
    assert few.clients.tolist()[-1] == 4
    words = texts(schedule_chart(made))
    assert "US, 40 zones" in words
    assert not any("rank" in word for word in words)


@pytest.mark.parametrize(
    ("hours", "most", "expected"),
    [
        (48, 10, [(0, "1 Jan"), (6, "06:00"), (12, "12:00")]),
        (160, 10, [(0, "1 Jan"), (24, "2 Jan"), (48, "3 Jan")]),
        (336, 7, [(0, "1 Jan"), (48, "3 Jan"), (96, "5 Jan")]),
        (8000, 10, [(0, "1 Jan"), (2016, "26 Mar"), (4032, "18 Jun")]),
    ],
)
def test_time_marks_are_round(hours: int, most: int, expected: list[tuple[float, str]]) -> None:
    problem = Problem(
        clients=[Client(name="a", zone="DE", power_w=1.0)], traces=traces(slots=hours), rounds=hours, budget_kg=1e9
    )
    marks = time_marks(problem, hours, most)
    assert marks[:3] == expected
    assert len(marks) <= most + 1


def test_time_title_names_both_years() -> None:
    data = replace(traces(), start=datetime(2022, 12, 31, 18, tzinfo=UTC))
    problem = Problem(clients=[Client(name="a", zone="DE", power_w=1.0)], traces=data, rounds=20, budget_kg=1e9)
    assert time_title(problem, 20) == "UTC, 2022 to 2023"
    assert time_marks(problem, 20, 4)[0] == (0.0, "18:00")
    assert (6.0, "1 Jan") in time_marks(problem, 20, 4)


@pytest.fixture
def results() -> SavingsStudy:
    data = traces(("mild", "wild", "hydro"), 120)
    intensity = data.intensity.copy()
    intensity[1, 30:] *= 0.1
    intensity[2, :10] = 0.0
    return study(replace(data, intensity=intensity), hours=10, slack=40, starts=7)


def test_savings_heatmap_is_sorted_and_says_what_is_undefined(results: SavingsStudy) -> None:
    figure = savings_heatmap(results)
    axes = figure.axes[0]
    (image,) = [i for i in axes.images if i.get_gid() == "savings"]
    shown = image.get_array()
    assert [label.get_text() for label in axes.get_yticklabels()] == ["wild", "mild", "hydro"]
    assert np.asarray(shown[0]) == pytest.approx(100 * results.heat_map[1])
    assert np.all(np.ma.getmaskarray(shown)[2])
    assert image.get_extent()[:2] == [0.5, 40.5]
    assert "slack, h" in axes.get_xlabel()
    assert any("%" in word for word in texts(figure))
    assert figure.get_suptitle().replace("\n", " ").startswith("From the first hour on, 40 h of slack save ")
    best = 100 * results.heat_map[1, -1]
    assert f"{best:.0f} % in wild" in figure.get_suptitle().replace("\n", " ")
    assert "undefined in 1 zone, which" in figure.get_suptitle().replace("\n", " ")


def test_savings_heatmap_of_many_zones_has_panels() -> None:
    many = study(traces(tuple(f"z{i}" for i in range(70)), 40), hours=5, slack=10, starts=2)
    images = [image for axes in savings_heatmap(many).axes for image in axes.images if image.get_gid() == "savings"]
    assert [image.get_array().shape for image in images] == [(35, 10), (35, 10)]
    assert images[0].norm is images[1].norm


def test_savings_heatmap_needs_slack() -> None:
    with pytest.raises(ScenarioError, match="no slack"):
        savings_heatmap(study(traces(), hours=5, slack=0, starts=2))


def test_savings_by_clients_is_the_mean_with_its_band(results: SavingsStudy) -> None:
    axes = savings_by_clients(results).axes[0]
    (line,) = axes.lines
    assert line.get_xdata().tolist() == [1, 2, 3]
    assert line.get_ydata() == pytest.approx(100 * results.group.mean, nan_ok=True)
    (band,) = axes.collections
    corners = band.get_paths()[0].vertices[:, 1]
    assert corners.max() == pytest.approx(100 * np.nanmax(results.group.q90))
    assert axes.figure.get_suptitle().startswith(f"Slack saves {100 * results.group.mean[-1]:.0f} % for all 3 clients")
    assert "number of clients" in axes.get_xlabel()
    assert "%" in axes.get_ylabel()
    assert [t.get_text() for t in axes.get_legend().get_texts()] == ["10 to 90 %", "mean of 7 starts"]


def test_savings_of_a_single_start_have_no_band() -> None:
    axes = savings_by_clients(study(traces(), hours=5, slack=10, starts=1)).axes[0]
    assert not axes.collections
    assert axes.get_legend().get_texts()[0].get_text() == "from 2022-01-01T00:00Z"


@pytest.fixture
def points() -> list[WhatIf]:
    return compare(make().problem, alphas=[0.1, 1.0], slacks=[0, 40], budgets=[0.01, 1.6, 2.0])


def test_compare_draws_saved_kg_by_budget_with_a_line_for_each_slack_and_alpha(points: list[WhatIf]) -> None:
    figure = compare_chart(points)
    (axes,) = figure.axes
    looks = set()
    for alpha in (0.1, 1.0):
        for slack in (0, 40):
            (line,) = [one for one in axes.lines if one.get_gid() == f"{slack}, {alpha}"]
            expected = [(p.budget_kg, p.saved_kg) for p in points if (p.alpha, p.slack) == (alpha, slack) and p.slots]
            assert list(zip(line.get_xdata(), line.get_ydata(), strict=True)) == expected
            looks.add((line.get_color(), line.get_marker()))
    assert len(looks) == 4
    assert axes.get_xscale() == "log"
    crosses = [one for one in axes.lines if one.get_gid() == "infeasible"]
    assert [list(one.get_xdata()) for one in crosses] == [[0.01], [0.01]]
    assert crosses[0].get_ydata() != crosses[1].get_ydata()
    assert {"infeasible", "slack 0", "slack 40", "α = 0.1", "α = 1.0"} <= set(texts(figure))
    assert "saved" in axes.get_ylabel()


def test_compare_names_the_pair_that_saves_most(points: list[WhatIf]) -> None:
    best = max((p for p in points if p.saved_kg is not None), key=lambda p: p.saved_kg or 0.0)
    title = compare_chart(points).get_suptitle().replace("\n", " ")
    assert best.saved_share is not None
    assert best.emissions_kg is not None
    assert best.saved_kg == pytest.approx(best.saved_share * (best.saved_kg + best.emissions_kg))
    assert title.startswith(
        f"A slack of {best.slack} with {style.kilograms(best.budget_kg)} kg and α = {best.alpha} saves"
    )
    assert f"({100 * best.saved_share:.0f} %)" in title
    none = [replace(p, saved_kg=0.0, saved_share=0.0) for p in points if p.saved_kg is not None]
    assert compare_chart(none).get_suptitle().startswith("None of these saves anything")


def test_compare_without_a_feasible_budget(tmp_path: Path) -> None:
    figure = compare_chart(compare(make().problem, budgets=[0.01, 0.02]))
    save(figure, tmp_path / "none.svg")
    assert "every budget is infeasible" in texts(figure)
    assert figure.get_suptitle().startswith("No budget of these is feasible")
    with pytest.raises(ScenarioError, match="nothing to compare"):
        compare_chart([])


@pytest.fixture(scope="module")
def advice() -> Advice:
    return advise(make().problem, budgets=[0.8, 1.6, 3.2], slacks=[0, 20, 40])


def test_advice_draws_a_line_for_each_slack_and_marks_knees_and_the_recommended_pair(advice: Advice) -> None:
    figure = advice_chart(advice)
    (axes,) = figure.axes
    slacks = sorted({row.slack for row in advice.rows})
    for slack in slacks:
        (line,) = [one for one in axes.lines if str(one.get_label()).startswith(f"slack {slack}, by ")]
        expected = sorted((row.emissions_kg, 100 * row.remaining_error) for row in advice.rows if row.slack == slack)
        assert list(zip(line.get_xdata(), line.get_ydata(), strict=True)) == expected
    knees = {(x, y) for one in axes.lines if one.get_gid() == "knees" for x, y in one.get_xydata()}
    assert knees == {(row.emissions_kg, 100 * row.remaining_error) for row in advice.rows if row.knee}
    assert len(knees) == len(slacks)
    (ring,) = [one for one in axes.lines if one.get_gid() == "recommended"]
    best = advice.recommended
    assert list(ring.get_xydata()[0]) == [best.emissions_kg, 100 * best.remaining_error]
    assert figure.get_suptitle().startswith(
        f"{style.kilograms(best.budget_kg)} kg with a slack of {best.slack} are enough"
    )
    assert "not an accuracy" in figure.get_suptitle()


MAGIC = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf", ".PNG"])
def test_save_by_suffix_into_a_new_folder(tmp_path: Path, suffix: str, results: SavingsStudy) -> None:
    target = tmp_path / "new" / f"chart{suffix}"
    assert save(savings_by_clients(results), str(target)) == target
    assert target.read_bytes().startswith(MAGIC[suffix.lower()])
    assert [path.name for path in target.parent.iterdir()] == [target.name]


def test_png_has_200_dpi(tmp_path: Path, results: SavingsStudy) -> None:
    data = save(savings_by_clients(results), tmp_path / "chart.png").read_bytes()
    assert int.from_bytes(data[16:20], "big") == round(200 * style.COLUMN_IN)


@pytest.mark.parametrize("name", ["chart.jpg", "chart"])
def test_save_refuses_other_suffixes_in_words(tmp_path: Path, name: str, results: SavingsStudy) -> None:
    with pytest.raises(ScenarioError, match=r"\.png, \.svg or \.pdf"):
        save(savings_by_clients(results), tmp_path / name)


def test_a_failed_save_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, results: SavingsStudy
) -> None:
    target = tmp_path / "chart.png"
    target.write_text("before")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(SlackwaterError, match="No space left"):
        save(savings_by_clients(results), target)
    assert target.read_text() == "before"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("chart", [schedule_chart, savings_heatmap, savings_by_clients, compare_chart, advice_chart])
def test_without_matplotlib_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch,
    chart: Callable[[Any], Any],
    results: SavingsStudy,
    points: list[WhatIf],
    advice: Advice,
) -> None:
    made = make()
    real = builtins.__import__

    def blocked(name: str, *rest: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == "matplotlib":
            raise ImportError("No module named 'matplotlib'")
        return real(name, *rest, **kwargs)

    monkeypatch.setattr(builtins, "__import__", blocked)
    given: Any = {schedule_chart: made, compare_chart: points, advice_chart: advice}.get(chart, results)
    with pytest.raises(MissingExtraError, match=r"matplotlib.*slackwater\[charts\]"):
        chart(given)


def test_text_is_at_least_8_points_and_nothing_reaches_outside(
    results: SavingsStudy, points: list[WhatIf], advice: Advice
) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    charts = [schedule_chart(make()), savings_heatmap(results), savings_by_clients(results), compare_chart(points)]
    for figure in (*charts, advice_chart(advice)):
        FigureCanvasAgg(figure).draw()
        whole = figure.bbox
        for text in figure.findobj(Text):
            if text.get_text() and text.get_visible():
                assert text.get_fontsize() >= 8
        for axes in figure.axes:
            box = axes.get_tightbbox()
            assert box is None or (box.x0 >= whole.x0 - 1 and box.x1 <= whole.x1 + 1 and box.y1 <= whole.y1 + 1)
