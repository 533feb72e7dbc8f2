from __future__ import annotations

import base64
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from made import HOSTILE, SCENARIO, hostile_plan, scenario

import slackwater as sw
from slackwater.cli.output_commands import open_library
from slackwater.dashboard.plan_json import quick_answer, savings_answer
from slackwater.dashboard.planner_process import PlannerProcess
from slackwater.dashboard.plans import COUNTRIES, PLACES, Outdated, PlanRequest, Plans, map_answer, most_slack
from slackwater.errors import InfeasibleError, ScenarioError, SlackwaterError
from slackwater.planning.auto import expected, quality
from slackwater.planning.planner import optimise
from slackwater.planning.problem import Problem
from slackwater.planning.schedule import plan_from_matrix


@pytest.fixture
def plans(tmp_path: Path) -> Iterator[tuple[Plans, str, Problem]]:
    library = open_library(scenario(tmp_path))
    source = library.entries()[0].id
    made = Plans(library)
    yield made, source, library.problem(source).problem
    made.close()


def _matrix(answer: dict[str, object], slots: int) -> np.ndarray:
    packed = answer["schedule"]
    rows = np.frombuffer(base64.b64decode(packed["data"]), dtype=np.uint8).reshape(packed["rows"], packed["row_bytes"])  # type: ignore[index]
    return np.unpackbits(rows, axis=1, count=slots).astype(bool)


def test_what_a_plan_emits_is_told_by_cause(plans: tuple[Plans, str, Problem]) -> None:
    problem = plans[2]
    plain = quick_answer(problem, 10)
    assert (plain["network_counted"], plain["network_kg"], plain["evaluation_kg"]) == (False, 0.0, 0.0)
    told = quick_answer(problem.with_settings(model_mb=2000.0, evaluation_share=0.05), 10)
    assert told["network_counted"] is True
    causes = ("training", "idle", "server", "network", "evaluation")
    assert sum(told[f"{cause}_kg"] for cause in causes) == pytest.approx(told["emissions_kg"], rel=1e-12)
    assert told["evaluation_kg"] == pytest.approx(0.05 * told["training_kg"])
    assert told["network_kg"] > 0
    assert sum(told["client_kg"]) + told["server_kg"] == pytest.approx(told["emissions_kg"], abs=1e-5)


def test_the_slider_may_go_beyond_the_scenario(plans: tuple[Plans, str, Problem]) -> None:
    made, source, problem = plans
    assert problem.horizon - problem.rounds == 20
    assert most_slack(problem) >= 20 + 168
    shown = made.problem(source)
    assert shown["most_slack"] == most_slack(problem)
    assert len(shown["intensity_g_per_kwh"][0]) == problem.rounds + shown["most_slack"]
    with pytest.raises(ScenarioError, match="allows at most"):
        made.quick(PlanRequest(source=source, slack=shown["most_slack"] + 1))


def test_quick_and_best_are_the_plans_of_the_command_line(plans: tuple[Plans, str, Problem]) -> None:
    made, source, problem = plans
    quick = made.quick(PlanRequest(source=source, budget_kg=1.5, alpha=0.5, fine_tune=2, slack=30, near=7))
    variant = problem.with_settings(budget_kg=1.5, alpha=0.5, fine_tune=2, slack=30)
    fixed, joint = optimise(variant, end=7), sw.plan(variant)
    assert quick["end"] == 7
    assert not quick["all_ends"]
    assert np.array_equal(_matrix(quick, variant.horizon), fixed.matrix)
    best = made.best(PlanRequest(source=source, budget_kg=1.5, alpha=0.5, fine_tune=2, slack=30))
    assert best["end"] == joint.end
    assert best["all_ends"]
    assert best["objective"] == joint.objective
    assert best["emissions_kg"] == joint.emissions_kg
    assert np.array_equal(_matrix(best, variant.horizon), joint.matrix)
    assert best["metrics"]["rho_h"] in (joint.metrics.rho_h, "inf")
    front = made.front(PlanRequest(source=source, budget_kg=1.5, alpha=0.5, fine_tune=2, slack=30, end=joint.end))
    objectives = [point["objective"] for point in front["points"]]
    assert objectives == sorted(objectives)
    assert min(p["budget_kg"] for p in front["points"]) < 1.5 < max(p["budget_kg"] for p in front["points"])


def test_sliders_vary_what_the_planner_chose_and_leave_the_rest_to_it(tmp_path: Path) -> None:
    library = open_library(scenario(tmp_path, head=SCENARIO.replace("alpha = 0.1\n", "")))
    made, source = Plans(library), library.entries()[0].id
    problem = library.problem(source).problem
    assert made.problem(source)["settings"]["free"] == ["alpha", "recall"]
    first = made.best(PlanRequest.of({"source": source}))
    chosen, settings = sw.plan(problem), first["recommended"]
    assert np.array_equal(_matrix(first, problem.horizon), chosen.matrix)
    assert settings == {
        "end": chosen.end,
        "fine_tune": 1,
        "recall": chosen.problem.recall,
        "alpha": chosen.problem.alpha,
    }
    shown = {
        "source": source,
        "free": "alpha,recall",
        "alpha": str(settings["alpha"]),
        "recall": str(settings["recall"]),
    }
    assert made.best(PlanRequest.of(shown)) is first, "what the planner chooses does not depend on what is on show"
    variant = problem.with_settings(alpha=settings["alpha"], recall=settings["recall"], budget_kg=1.7)
    quick = made.quick(PlanRequest.of(shown | {"budget_kg": "1.7", "near": str(chosen.end)}))
    assert quick["objective"] == optimise(variant, end=chosen.end).objective
    joint = made.joint(PlanRequest.of(shown | {"budget_kg": "1.7"}))
    assert (joint["all_ends"], joint["objective"]) == (True, optimise(variant).objective)
    assert "metrics" not in joint
    made.close()


@pytest.mark.parametrize("goal", ['goal = "enough"\nbudget_kg = 2.0', 'goal = "work"\nrounds_each = 3'])
def test_a_scenario_with_a_goal_is_shown_at_the_budget_that_the_goal_buys(tmp_path: Path, goal: str) -> None:
    head = SCENARIO.replace("budget_kg = 2.0", goal).replace("alpha = 0.1\n", "")
    library = open_library(scenario(tmp_path, head=head))
    source = library.entries()[0].id
    asked, expected = Plans(library), sw.plan(library.problem(source).problem)
    settings = asked.problem(source)["settings"]
    assert settings["budget_kg"] == pytest.approx(expected.emissions_kg)
    shown = asked.best(PlanRequest(source=source, budget_kg=settings["budget_kg"], slack=settings["slack"]))
    assert np.array_equal(_matrix(shown, expected.problem.horizon), expected.matrix)
    assert shown["tiles"]["people"]["rounds"] == int(expected.matrix.any(axis=0).sum())
    assert asked.quick(PlanRequest(source=source, budget_kg=1.3 * settings["budget_kg"], near=5))["schedule"]
    asked.close()


def test_a_budget_that_does_not_do_is_answered_with_the_least_that_does(plans: tuple[Plans, str, Problem]) -> None:
    made, source, _ = plans
    for answer in (
        made.best(PlanRequest(source=source, budget_kg=1e-6)),
        made.quick(PlanRequest(source=source, budget_kg=1e-6, end=3)),
    ):
        assert answer["status"] == "infeasible"
        assert answer["least_budget_kg"] > 1e-6
        assert "Raise budget_kg" in answer["message"]
    assert made.quick(PlanRequest(source=source, budget_kg=2e-6))["status"] == "searching"


@pytest.mark.parametrize(
    "query",
    [{"budget_kg": "x"}, {"slack": "1.5"}, {"alpha": "7"}, {"budget_kg": "nan"}, {"budget_kg": "-1"}, {"fine_tune": "-1"}, {"end": "99"}],
)  # fmt: skip
def test_nonsense_is_a_sentence(plans: tuple[Plans, str, Problem], query: dict[str, str]) -> None:
    made, source, _ = plans
    with pytest.raises(ScenarioError):
        made.quick(PlanRequest.of({"source": source} | query))


def test_an_older_request_of_the_same_page_is_dropped(plans: tuple[Plans, str, Problem]) -> None:
    made, source, _ = plans
    made.quick(PlanRequest(source=source, page="a", number=5))
    with pytest.raises(Outdated):
        made.quick(PlanRequest(source=source, page="a", number=4))
    made.quick(PlanRequest(source=source, page="b", number=1))
    with pytest.raises(Outdated):
        made.best(PlanRequest(source=source, page="a", number=4))


def test_a_job_that_nobody_wants_any_more_is_given_up_at_once(tmp_path: Path) -> None:
    head = SCENARIO.replace("slack = 20", "slack = 150").replace("rounds = 4", "rounds = 60") + "max_parallel = 2\n"
    problem = open_library(scenario(tmp_path, head=head)).problem(open_library(tmp_path).entries()[0].id).problem
    # The search for the best level takes its 20 seconds: nobody waits for it any more after 1.5.
    problem = problem.with_settings(alpha="max-min", server_kg=np.linspace(0.01, 0.02, problem.horizon))
    worker, wanted = PlannerProcess(), threading.Event()
    wanted.set()
    threading.Timer(1.5, wanted.clear).start()
    began = time.perf_counter()
    answer = worker.ask("best", problem, None, wanted.is_set)
    assert answer is None or wanted.is_set(), "an answer that nobody waits for is not given"
    assert time.perf_counter() - began < 15
    assert worker.ask("best", problem.with_settings(max_parallel=None, slack=3), None, lambda: True)
    worker.close()
    assert worker.ask("best", problem, None, lambda: True) is None


def test_the_process_ends_with_the_dashboard_even_in_the_middle_of_a_job(tmp_path: Path) -> None:
    head = SCENARIO.replace("slack = 20", "slack = 150").replace("rounds = 4", "rounds = 60") + "max_parallel = 2\n"
    library = open_library(scenario(tmp_path, head=head))
    problem = library.problem(library.entries()[0].id).problem
    with subprocess.Popen(
        [sys.executable, "-m", "slackwater.dashboard.planner_process"], stdin=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        pickle.dump(("best", problem, None), process.stdin)
        process.stdin.flush()
        time.sleep(1.0)
        process.stdin.close()
        began = time.perf_counter()
        assert process.wait(30) == 0
        assert time.perf_counter() - began < 15  # the job would have taken its 20 seconds


def test_errors_come_through_the_process(plans: tuple[Plans, str, Problem]) -> None:
    _, _, problem = plans
    worker = PlannerProcess()
    with pytest.raises(InfeasibleError) as caught:
        worker.ask("best", problem.with_settings(budget_kg=1e-9), None, lambda: True)
    assert caught.value.least_budget_kg
    with pytest.raises(SlackwaterError, match="end time s"):
        worker.ask("best", problem, 999, lambda: True)
    worker.close()


def test_savings_count_the_same_training_from_the_first_hour_on() -> None:
    costs = np.array([[4.0, 4.0, 1.0, 1.0], [3.0, 2.0, 2.0, 1.0]])
    problem = Problem.from_costs(costs, rounds=2, slack=2, fine_tune=0, budget_kg=5.0, alpha=1.0)
    plan = sw.plan(problem)
    saved = savings_answer(plan)
    counts = plan.slots_per_client
    without = costs[0, : counts[0]].sum() + costs[1, : counts[1]].sum()
    assert saved["without_kg"] == pytest.approx(without)
    assert saved["saved_kg"] == pytest.approx(without - plan.emissions_kg)


def test_tied_clients_are_planned_to_a_gap_while_a_slider_moves() -> None:
    problem = Problem.from_costs(
        np.random.default_rng(0).uniform(0.1, 1.0, (4, 12)),
        rounds=6,
        slack=6,
        budget_kg=5.0,
        max_parallel=2,
        min_parallel=2,
    )
    quick = quick_answer(problem, 1)
    assert (quick["solver"], quick["end"], quick["all_ends"]) == ("exact", 1, False)
    assert quick["gap"] <= 0.01 or quick["seconds"] > 0.9, "it ends at the gap, or after a second on a busy machine"


def test_the_map_knows_every_typical_zone_and_lists_the_others(tmp_path: Path) -> None:
    assert {zone.zone for zone in sw.available_zones()} <= set(PLACES)
    assert all(-180 <= x <= 180 and -60 <= y <= 80 for x, y in PLACES.values())
    hostile_plan().save(tmp_path / "plan.json")
    library = open_library(tmp_path)
    answer = map_answer(library, library.entries()[0].id)
    assert sorted(zone["zone"] for zone in answer["zones"]) == sorted(f"{name} zone" for name in HOSTILE)
    assert all(zone["longitude"] is None for zone in answer["zones"])


def test_prices_and_starts_are_told(plans: tuple[Plans, str, Problem]) -> None:
    problem = plans[2]
    assert "money" not in quick_answer(problem, 10)
    zones = tuple(sorted(set(problem.fleet.zone)))
    price = sw.Prices(zones=zones, start=problem.traces.start, per_kwh=np.full((len(zones), problem.traces.slots), 0.2))
    told = quick_answer(problem.with_settings(price=price), 10)
    kwh = told["slots"] * 0.3
    assert (told["money"], told["currency"], told["budget_money"]) == (pytest.approx(0.2 * kwh), "EUR", None)
    short = replace(price, per_kwh=price.per_kwh[:, : problem.horizon + 3])
    assert most_slack(problem.with_settings(price=short)) == problem.slack + 3


def test_savings_count_from_the_first_slot_after_a_start(plans: tuple[Plans, str, Problem]) -> None:
    problem = plans[2]
    clients = [
        sw.Client(name=c.name, zone=c.zone, power_w=300, startup_minutes=120, startup_kwh=0.1) for c in problem.fleet
    ]
    asked = problem.with_settings(clients=clients, rounds=4, slack=20, fine_tune=0)
    late = np.zeros((len(clients), asked.horizon), dtype=bool)
    late[:, 9:12] = True
    found = savings_answer(plan_from_matrix(asked.with_settings(budget_kg=99.0), late, end=20))
    first = np.zeros_like(late)
    first[:, 2:5] = True
    without = plan_from_matrix(asked.with_settings(budget_kg=99.0), first, end=1)
    assert found["without_kg"] == pytest.approx(without.emissions_kg)


def test_the_tiles_say_what_the_plan_says(plans: tuple[Plans, str, Problem]) -> None:
    asked, source, problem = plans
    shown = asked.best(PlanRequest(source=source))
    found = sw.plan(problem)
    tiles = shown["tiles"]
    assert tiles["saved"]["kg"] == shown["savings"]["saved_kg"]
    assert tiles["ends"]["at"] == shown["ends_at"]
    assert tiles["ends"]["early_hours"] == problem.horizon - problem.rounds - found.end
    assert tiles["quality"]["remaining_error"] == pytest.approx(quality(found).error)
    assert tiles["quality"]["below_full"] == asdict(expected(quality(found).error, len(found.problem.fleet)))
    slots = found.slots_per_client
    assert (tiles["people"]["min_slots"], tiles["people"]["max_slots"]) == (slots.min(), slots.max())
    assert tiles["people"]["rarest"] == problem.fleet.names[int(np.argmin(slots))]
    for early in (asked.quick(PlanRequest(source=source, near=found.end)), asked.joint(PlanRequest(source=source))):
        assert early["tiles"]["quality"]["remaining_error"] > 0, "the first answers say it too"


def test_curves_and_zones_add_up_to_the_plan(plans: tuple[Plans, str, Problem]) -> None:
    asked, source, problem = plans
    shown = asked.best(PlanRequest(source=source))
    assert sum(shown["kg_by_slot"]) == pytest.approx(shown["emissions_kg"], abs=1e-4)
    assert sum(shown["by_zone"]["slots"]) == shown["slots"]
    assert sum(shown["by_zone"]["kg"]) == pytest.approx(sum(shown["client_kg"]), abs=1e-4)
    assert sum(shown["power_w_by_slot"]) == pytest.approx(300 * shown["slots"], rel=1e-6)
    found = sw.plan(problem)
    trained = problem.costs.intensity[problem.costs.row[0]][: problem.horizon][found.matrix[0]]
    assert shown["client_g_per_kwh"][0] == pytest.approx(1000 * trained.mean(), abs=0.1)


def test_zones_of_the_map_name_their_country(plans: tuple[Plans, str, Problem]) -> None:
    assert {zone.partition("-")[0] for zone in PLACES} == set(COUNTRIES)
    assert all(len(number) == 3 and number.isdigit() for number in COUNTRIES.values())
    library = plans[0]._library
    told = {zone["zone"]: zone for zone in map_answer(library, plans[1])["zones"]}
    assert (told["FR"]["country"], told["FR"]["whole_country"]) == ("250", True)
    assert (told["SE-SE3"]["country"], told["SE-SE3"]["whole_country"]) == ("752", False)


def test_a_client_that_never_trains_does_not_train_in_a_window_that_is_not_there(tmp_path: Path) -> None:
    for fine_tune, alone in ((1, True), (0, False)):
        head = SCENARIO.replace("fine_tune = 1", f"fine_tune = {fine_tune}\nrecall = 0") + "max_parallel = 1\n"
        library = open_library(scenario(tmp_path / str(fine_tune), head=head.replace("alpha = 0.1", "alpha = 1.0")))
        planner = Plans(library)
        try:
            (entry,) = library.entries()
            shown = planner.best(PlanRequest.of({"source": entry.id, "end": "0", "budget_kg": "0.9"}))
        finally:
            planner.close()
        people, trains = shown["tiles"]["people"], [slots > 0 for slots in shown["client_slots"]]
        assert all(trains) == alone
        assert (people["window_only"] > 0) == alone
