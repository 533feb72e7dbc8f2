from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from rich.console import Console, RenderableType

from slackwater.charts.terminal import (
    compare_table,
    plan_answer,
    plan_heatmap,
    plan_summary,
    savings_table,
    zones_table,
)
from slackwater.intensity.load import ZoneInfo
from slackwater.intensity.traces import Provenance, Traces
from slackwater.planning.fleet import Client, Fleet
from slackwater.planning.plan import Plan
from slackwater.planning.planner import compare, plan
from slackwater.planning.problem import Problem, Server
from slackwater.planning.savings import study
from slackwater.planning.schedule import plan_from_matrix

START = datetime(2022, 1, 1, tzinfo=UTC)


def shown(renderable: RenderableType, width: int = 100, *, colour: bool = False) -> str:
    console = Console(
        width=width, color_system="truecolor" if colour else None, force_terminal=colour, legacy_windows=False
    )
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def fact(text: str, name: str) -> str:
    (line,) = [line for line in text.splitlines() if line.startswith(f"{name}  ")]
    return line.removeprefix(name).strip()


def hand_made(matrix: list[list[int]], *, end: int, fine_tune: int = 1, rounds: int = 2, **fields: Any) -> Plan:
    """A plan that no solver made: costs 1, 2, 3 kg, the same in every slot."""
    chosen = np.array(matrix, dtype=bool)
    count, horizon = chosen.shape
    names = fields.pop("names", [f"client {i}" for i in range(count)])
    traces = Traces(
        zones=tuple(f"Z{i}" for i in range(count)),
        start=START,
        intensity=np.repeat(np.arange(1.0, count + 1)[:, None], horizon, axis=1),
        factor="direct",
        provenance=tuple(
            Provenance(zone=f"Z{i}", source="by hand", synthetic=fields.get("synthetic", False)) for i in range(count)
        ),
    )
    problem = Problem(
        clients=[Client(name=n, zone=f"Z{i}", energy_kwh=1.0) for i, n in enumerate(names)],
        traces=traces,
        rounds=rounds,
        slack=horizon - rounds,
        fine_tune=fine_tune,
        budget_kg=100.0,
        available=fields.get("available"),
    )
    return Plan(
        problem=problem,
        end=end,
        packed=np.packbits(chosen, axis=1),
        objective=1.5,
        upper_bound=1.5,
        gap=fields.get("gap", 0.0),
        seconds=0.25,
        solver="exact",
    )


SMALL = [[1, 0, 0, 1, 1, 0], [0, 0, 0, 0, 1, 0], [1, 1, 1, 1, 1, 0]]
"""End s = 3: five slots, of which the last is the window; the sixth is after the end."""


def test_heatmap_without_colour_has_the_right_marks() -> None:
    lines = shown(plan_heatmap(hand_made(SMALL, end=3), 80)).splitlines()
    assert lines[:3] == ["client 0 █··█│█│ 3", "client 1 ····│█│ 1", "client 2 ████│█│ 5"]
    assert lines[3].strip() == "╵"
    assert lines[4].strip().startswith("1 Jan")
    assert "UTC, 2022" in lines[4]
    assert "█ trains  · does not" in lines[5]
    assert "1 character = 1 slot," in lines[5]
    assert "cannot" not in lines[5]


def test_heatmap_in_colour_is_green_and_red() -> None:
    line = shown(plan_heatmap(hand_made(SMALL, end=3), 80), colour=True).splitlines()[0]
    assert "\x1b[32m█" in line
    assert "\x1b[31m·" in line


def test_heatmap_shows_who_cannot_train() -> None:
    available = np.ones((3, 6), dtype=bool)
    available[0, 1:3] = False
    text = shown(plan_heatmap(hand_made(SMALL, end=3, available=available), 80))
    assert text.splitlines()[0] == "client 0 █××█│█│ 3"
    assert "× cannot" in text


def test_heatmap_without_a_window_has_no_edges() -> None:
    lines = shown(plan_heatmap(hand_made(SMALL, end=3, fine_tune=0), 80)).splitlines()
    assert lines[0] == "client 0 █··██ 3"
    assert "│" not in "".join(lines)


@pytest.mark.parametrize("width", [30, 40, 80, 120])
def test_heatmap_bundles_to_the_width_and_keeps_the_window_apart(width: int) -> None:
    matrix = np.zeros((2, 200), dtype=int)
    matrix[0, :100] = 1
    matrix[1, ::2] = 1
    matrix[:, 190:] = 1
    made = hand_made(matrix.tolist(), end=198, fine_tune=10)
    lines = shown(plan_heatmap(made, width), width).splitlines()
    for line in lines[:2]:
        assert len(line) <= width
        _, window, total = line.removeprefix("client 0").split("│")
        assert set(window) == {"█"}
        assert total.strip() in ("110", "105")
    first, second = (line[9:].split("│")[0] for line in lines[:2])
    assert set(first) <= set("█▓▒░·")
    assert first.startswith("███")
    assert first.endswith("···")
    assert set(second[:-1]) <= set("▒░▓")  # half of every bundle
    assert all(len(line) <= width for line in lines)


def test_heatmap_of_many_clients_goes_by_zone() -> None:
    zones = tuple("ABC")
    traces = Traces(
        zones=zones, start=START, intensity=np.random.default_rng(0).uniform(0.1, 1, (3, 30)), factor="direct"
    )
    fleet = Fleet.of([zones[i % 3] for i in range(60)], power_w=100.0)
    made = plan(Problem(clients=fleet, traces=traces, rounds=5, slack=20, budget_kg=30.0))
    text = shown(plan_heatmap(made, 80))
    lines = text.splitlines()
    assert [line[0] for line in lines[:3]] == list("ABC")
    assert [line.split()[-1] for line in lines[:3]] == [str(made.slots_per_client[i::3].sum()) for i in range(3)]
    assert "60 clients, a line for each zone" in text
    summary = shown(plan_summary(made))
    assert "... and 40 more clients. By zone:" in summary
    assert "client-20 " in summary
    assert "client-21 " not in summary
    assert [line.split()[1] for line in summary.splitlines() if line[:2] in ("A ", "B ", "C ")] == ["20"] * 3


HOSTILE = ["[red]bold[/red]", "[/]", "東京大学病院のとても長い名前の計算機", "bell\a\x1b[2Jtwo\nlines"]


def test_names_are_shown_literally_and_cannot_steer_the_terminal() -> None:
    made = hand_made([[1, 0, 1]] * 4, end=1, names=HOSTILE)
    for text in (shown(plan_summary(made)), shown(plan_heatmap(made, 60), 60)):
        assert "[red]bold[/red]" in text
        assert "[/]" in text
        assert "東京" in text
        assert "\x1b" not in text
        assert "\a" not in text
        assert "two\nlines" not in text


def test_wide_names_keep_the_columns_aligned() -> None:
    from rich.cells import cell_len

    lines = shown(plan_heatmap(hand_made([[1, 0, 1]] * 4, end=1, names=HOSTILE), 60), 60).splitlines()[:4]
    assert len({cell_len(line.split("█")[0]) for line in lines}) == 1


def test_summary_of_an_optimal_plan() -> None:
    text = shown(plan_summary(hand_made(SMALL, end=3)))
    assert text.startswith("Optimal: no schedule within the budget")
    # Three slots at 1 kg, one at 2 kg, five at 3 kg, of 100 kg.
    assert fact(text, "emissions") == "20 of 100 kg CO2e (20.0 %)"
    assert fact(text, "objective") == "1.5 (alpha 0.1)"
    assert fact(text, "upper bound") == "1.5, gap 0"
    assert fact(text, "end") == "s = 3 of 4, 2022-01-01T05:00Z"
    assert fact(text, "fine-tuning window") == "1 slot after 4, from 2022-01-01T04:00Z"
    assert fact(text, "solver") == "exact, 0.25 s"
    assert fact(text, "heterogeneity rho_H") == "infinite: client 1 never trains before the window"
    assert fact(text, "between clients rho_S") == "not defined"
    assert fact(text, "intensity") == "direct, by hand"
    answer = shown(plan_answer(hand_made(SMALL, end=3)))
    answer = " ".join(answer.split())
    assert "Warning: client 1 trains only in the fine-tuning window; the model learns little from it." in answer
    assert "synthetic" not in text + answer
    assert "of which" not in text
    rows = [line.split() for line in text.splitlines() if line.startswith("client ") and line[7].isdigit()]
    assert rows[0] == ["client", "0", "Z0", "2", "1", "0.500", "3.000", "15.0", "%", "2"]
    assert rows[1] == ["client", "1", "Z1", "0", "1", "0.000", "2.000", "10.0", "%", "4"]
    assert rows[2] == ["client", "2", "Z2", "4", "1", "1.000", "15.000", "75.0", "%", "0"]


def line_of(made: Plan, name: str) -> str:
    """Return one line of the answer, without line breaks."""
    words = [" ".join(line.split()) for line in shown(plan_answer(made), width=400).splitlines()]
    (found,) = [line for line in words if line.startswith(f"{name} ")]
    return found


def test_what_the_plan_saves_and_what_the_budget_pays_without_slack() -> None:
    late = Problem.from_costs([[3.0, 1.0, 1.0], [2.0, 2.0, 1.0]], rounds=1, slack=2, budget_kg=5.0)
    made = plan_from_matrix(late, [[0, 1, 1], [0, 0, 1]], end=2)  # 3 kg; at once 3 + 1 and 2 kg
    assert line_of(made, "Saves") == (
        "Saves 3 kg (50.0 %): the run emits 3 of 5 kg CO2e; the same work at once emits 6 kg. Without slack the budget pays 2 "
        "client-rounds, here 3."
    )
    poor = replace(made, problem=late.with_settings(budget_kg=3.0))
    assert line_of(poor, "Saves").endswith("Without slack the budget pays no round.")
    early = plan_from_matrix(late.with_settings(budget_kg=9.0), [[1, 0, 1], [1, 0, 1]], end=2)
    assert line_of(early, "Saves").startswith("Saves 1 kg (12.5 %): ")
    worse = Problem.from_costs([[1.0, 3.0]], rounds=1, slack=1, budget_kg=5.0)
    assert "Saves nothing: " in line_of(plan_from_matrix(worse, [[0, 1]], end=1), "Saves")
    assert "Waiting costs 2 kg here." in line_of(plan_from_matrix(worse, [[0, 1]], end=1), "Saves")


def test_up_to_eight_clients_are_named_and_of_more_the_extremes() -> None:
    def trains(count: int) -> str:
        costs = np.ones((count, count + 1))
        rows = Problem.from_costs(costs, names=[f"c{i}" for i in range(count)], rounds=1, slack=count, budget_kg=999.0)
        matrix = np.tri(count, count + 1, dtype=int)  # client i trains in i + 1 slots, and in the window
        matrix[:, -1] = 1
        return line_of(plan_from_matrix(rows, matrix, end=count), "Trains")

    assert trains(8).endswith(": " + ", ".join(f"c{i} {i + 2}" for i in range(7, -1, -1)) + ".")
    assert trains(9).endswith(": c8 10, c7 9, c6 8, .., c2 4, c1 3, c0 2.")


def test_the_end_is_told_in_the_scenarios_time_zone() -> None:
    made = hand_made(SMALL, end=3)
    assert line_of(made, "Ends") == "Ends Sat 01 Jan 2022, 05:00 UTC, 1 h before the latest end."
    there = replace(made, problem=made.problem.with_settings(time_zone="Asia/Tokyo"))
    assert line_of(there, "Ends") == "Ends Sat 01 Jan 2022, 14:00 Asia/Tokyo, 1 h before the latest end."


@pytest.mark.parametrize(
    ("minutes", "early"), [(1, "2 min"), (15, "30 min"), (30, "1 h"), (120, "4 h"), (1440, "2.0 days")]
)
def test_how_long_before_the_latest_end_is_told_in_minutes_hours_or_days(minutes: int, early: str) -> None:
    traces = Traces(zones=("FR",), start=START, intensity=np.full((1, 4), 0.1), factor="direct", slot_minutes=minutes)
    client = Client(name="a", zone="FR", power_w=300)
    made = plan(Problem(clients=[client], traces=traces, rounds=2, slack=2, budget_kg=9.0), end=0)
    assert line_of(made, "Ends").endswith(f", {early} before the latest end.")


@pytest.mark.parametrize("slots", range(20, 60))
def test_the_title_of_the_time_axis_is_never_cut(slots: int) -> None:
    made = hand_made([[1] * slots, [1] * slots], end=slots - 2)
    lines = shown(plan_heatmap(made, 48), 48).splitlines()
    assert any("(UTC, 2022)" in line for line in lines)


def test_summary_says_what_is_not_proved_and_what_is_synthetic() -> None:
    made = hand_made([[1, 1, 0], [1, 1, 0]], end=0, gap=0.01, synthetic=True)
    text = shown(plan_summary(made))
    assert "proved to be within 0.01" in text
    answer = shown(plan_answer(made))
    assert "synthetic intensity (all zones)" in answer
    assert "synthetic intensity" in shown(plan_heatmap(made, 80))
    assert fact(text, "heterogeneity rho_H") == "0.000"
    assert "Warning" not in answer


def test_summary_splits_idle_and_server_and_names_filled_hours() -> None:
    made = hand_made(SMALL, end=3)
    traces = replace(
        made.problem.traces,
        provenance=(
            Provenance(zone="Z0", source="a.csv", filled_hours=("2022-01-01T01:00Z",)),
            *(Provenance(zone=f"Z{i}", source=f"{i}.csv", synthetic=i == 2) for i in range(1, 5)),
        ),
    )
    problem = replace(made.problem, traces=traces, server=Server(zone="Z1", power_w=500.0))
    made = replace(made, problem=problem)
    text = shown(plan_summary(made))
    assert fact(text, "of which") == "training 20 kg, idle 0 kg, server 5 kg"  # 5 slots of half a kWh at 2 kg
    assert fact(text, "filled gaps") == "Z0 1 h"
    assert fact(text, "intensity") == "direct, a.csv, 1.csv, 2.csv and 2 more"
    assert "synthetic intensity (Z2)" in shown(plan_answer(made))


def test_bare_costs_have_no_times() -> None:
    made = plan(Problem.from_costs([[3.0, 1.0, 2.0, 1.0]], rounds=2, slack=2, budget_kg=4.0))
    text = shown(plan_summary(made)) + shown(plan_heatmap(made, 80))
    assert "1970" not in text
    assert "(slot)" in text


def wave(zones: tuple[str, ...], *, synthetic: bool = False) -> Traces:
    hours = np.arange(60)
    rows = [0.1 * (i + 1) * (2 + (i + 1) / 3 * np.sin(hours / 4)) for i in range(len(zones))]
    return Traces(
        zones=zones,
        start=START,
        intensity=np.array(rows),
        factor="lifecycle",
        provenance=tuple(Provenance(zone=z, source="x", synthetic=synthetic) for z in zones),
    )


def test_savings_table_is_sorted_and_knows_undefined() -> None:
    traces = wave(("still", "zero", "[b]wild"))
    intensity = traces.intensity.copy()
    intensity[1] = 0.0
    found = study(replace(traces, intensity=intensity), hours=10, slack=20, starts=5)
    text = shown(savings_table(found))
    rows = [line for line in text.splitlines() if line.startswith(("still", "zero", "[b]wild"))]
    assert [row.split()[0] for row in rows] == ["[b]wild", "still", "zero"]
    assert f"{100 * found.client.mean[2]:.1f} %" in rows[0]
    assert f"{found.saved_kg.mean[0]:.3f}" in rows[1]
    assert rows[2].count("not defined") == 4
    assert "Savings are not defined where nothing is emitted" in text
    assert "5 starts, seed 0. lifecycle intensity, 300 W a client." in text
    assert "synthetic" not in text
    assert "synthetic intensity (all zones)" in shown(
        savings_table(study(wave(("A",), synthetic=True), hours=9, slack=9))
    )


def test_compare_table_gives_the_reason_once_for_each_slack() -> None:
    traces = wave(("A", "B"), synthetic=True)
    problem = Problem(
        clients=[Client(name=z, zone=z, power_w=300.0) for z in "AB"], traces=traces, rounds=4, budget_kg=1.0
    )
    points = compare(problem, alphas=[0.1, "log"], slacks=[0, 30], budgets=[0.001, 0.002, 0.5])
    text = shown(compare_table(points))
    lines = text.splitlines()
    assert [line.split()[3] for line in lines[1:13]] == ["infeasible", "infeasible", "optimal"] * 4
    feasible = points[2]
    assert feasible.remaining_error is not None
    found = lines[3].split()
    assert (found[4], found[8]) == (str(feasible.end), f"{100 * feasible.remaining_error:.1f}")
    assert found[9] == f"{feasible.objective:.6g}"
    assert "a ranking score and not an accuracy" in text
    assert text.count("Infeasible with a slack of 0: No schedule fits 0.002 kg") == 1
    assert text.count("Infeasible with a slack of 30: ") == 1
    assert "Compare objectives only between lines of the same alpha and slack." in text
    assert "synthetic intensity" in text
    alone = shown(compare_table(points[2:3]))
    assert "Compare" not in alone
    assert "Infeasible" not in alone


def test_zones_table() -> None:
    def info(zone: str, **changes: Any) -> ZoneInfo:
        fields: dict[str, Any] = {
            "zone": zone,
            "source": "ci/[x].csv",
            "first": START,
            "last": datetime(2022, 12, 31, 23, tzinfo=UTC),
            "factors": ("direct", "lifecycle"),
            "missing_hours": {"direct": 3, "lifecycle": 3},
            "mean_kg_per_kwh": {"direct": 0.1194, "lifecycle": 0.1662},
        }
        return ZoneInfo(**(fields | changes))

    one_factor = {"factors": ("lifecycle",), "missing_hours": {"lifecycle": 0}, "mean_kg_per_kwh": {"lifecycle": 0.5}}
    text = shown(
        zones_table(
            [
                info("BE", source="ci/BE.csv"),
                info("X", **one_factor),
                info("Y", missing_hours={"direct": 1, "lifecycle": 2}),
            ]
        )
    )
    rows = [line.split() for line in text.splitlines()[1:4]]
    assert rows[0] == ["BE", "2022-01-01T00:00Z", "2022-12-31T23:00Z", "119", "166", "3", "ci/BE.csv"]
    assert rows[1][3:6] == ["-", "500", "0"]
    assert rows[2][5:8] == ["1", "/", "2"]
    assert "synthetic" not in text
    assert "synthetic intensity" in shown(zones_table([info("Z", synthetic=True)]))
