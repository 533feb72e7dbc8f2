"""Flower's own loop with our strategy: the same run as the runner's, booked the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict
from plans import ZONES, small_plan
from small_apps import TroubledGrid, adding_app

from slackwater.engines.flower.records import from_arrays, to_arrays
from slackwater.errors import SlackwaterError
from slackwater.flower import CarbonAware, run
from slackwater.ledger.run import Run
from slackwater.live.folder import LiveSettings, load_settings, prepare
from slackwater.planning.plan import Recommendation
from slackwater.planning.planner import plan as make_plan

FEDSTALE = Recommendation(aggregator="fedstale", settings={}, error=0.1, why=())
INITIAL = {"w": np.zeros((2, 3), dtype=np.float32)}
SITES = {name: {"zone": zone} for name, zone in ZONES.items()}


def charged(folder: Path) -> float:
    with Run.open(folder, read_only=True) as held:
        return held.ledger.spent_kg()


def test_it_does_what_the_runner_does(tmp_path: Path) -> None:
    plan = small_plan()
    plan.save(tmp_path / "plan.json")
    strategy = CarbonAware(plan=tmp_path / "plan.json", ledger=tmp_path / "run", aggregator="ufedavg", wait=False)
    seen: list[int] = []

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        seen.append(server_round)
        return MetricRecord({"w": float(arrays["w"].numpy().mean())})

    grid = TroubledGrid(adding_app(), SITES)
    result = strategy.start(grid, to_arrays(INITIAL), train_config=ConfigRecord({"lr": 0.1}), evaluate_fn=evaluate)

    prepare(tmp_path / "ours", plan, LiveSettings(aggregator="ufedavg", slot_seconds=0.0))
    context = Context(1, 1, {}, RecordDict(), {"slackwater-run": str(tmp_path / "ours")})
    ours = run(TroubledGrid(adding_app(), SITES), context, INITIAL)

    np.testing.assert_array_equal(result.arrays["w"].numpy(), ours.arrays["w"])
    assert ours.arrays["w"].mean() > 0
    assert charged(tmp_path / "run") == charged(tmp_path / "ours") == pytest.approx(ours.emissions_kg)
    assert strategy.num_rounds == len(ours.history) == len(result.train_metrics_clientapp)
    assert seen == list(range(strategy.num_rounds + 1))
    assert strategy.live_result is not None
    trained = [message for message in grid.pushed if message.metadata.message_type == "train"]
    assert all(message.content["config"]["lr"] == 0.1 for message in trained)
    with Run.open(tmp_path / "run", read_only=True) as held:
        assert held.status == "done"


def test_without_an_aggregator_it_takes_the_plans(tmp_path: Path) -> None:
    plan = small_plan()
    for name, made in {"usual": plan, "auto": replace(plan, recommended=FEDSTALE)}.items():
        CarbonAware(plan=made, ledger=tmp_path / name, wait=False)
        assert load_settings(tmp_path / name).aggregator == made.aggregator
    assert load_settings(tmp_path / "auto").aggregator == "fedstale"


def test_it_stops_with_flowers_loop_and_goes_on(tmp_path: Path) -> None:
    plan = small_plan()
    for rounds in (2, None):
        strategy = CarbonAware(plan=plan, ledger=tmp_path / "run", aggregator="ufedavg", wait=False)
        result = strategy.start(TroubledGrid(adding_app(), SITES), to_arrays(INITIAL), num_rounds=rounds)
        with Run.open(tmp_path / "run", read_only=True) as held:
            assert held.status == ("stopped" if rounds else "done")
    whole = CarbonAware(plan=plan, ledger=tmp_path / "whole", aggregator="ufedavg", wait=False)
    at_once = whole.start(TroubledGrid(adding_app(), SITES), to_arrays(INITIAL))
    np.testing.assert_array_equal(from_arrays(result.arrays)["w"], from_arrays(at_once.arrays)["w"])
    assert charged(tmp_path / "run") == pytest.approx(charged(tmp_path / "whole"))


def test_failures_are_charged_and_the_loop_goes_on(tmp_path: Path) -> None:
    plan = small_plan()
    strategy = CarbonAware(plan=plan, ledger=tmp_path / "run", wait=False)
    grid = TroubledGrid(adding_app(), SITES)
    result = strategy.start(grid, to_arrays(INITIAL), train_config=ConfigRecord({"fail": "dublin"}))
    with Run.open(tmp_path / "run", read_only=True) as held:
        lines = [line for line in held.ledger.charges() if line.client == "dublin" and line.kind == "charge"]
        outcomes = {one.outcome for one in held.journal.attempts() if one.client == "dublin"}
    assert len(lines) == plan.matrix[list(ZONES).index("dublin")].sum()
    assert outcomes == {"failed"}
    assert len(result.arrays) == 1


def test_errors_of_the_runner_reach_flowers_loop(tmp_path: Path) -> None:
    strategy = CarbonAware(plan=small_plan(), ledger=tmp_path / "run", wait=False)
    prepared = (tmp_path / "run" / "live.json").read_text()
    assert '"echo"' in prepared
    (tmp_path / "run" / "live.json").write_text(prepared.replace('"echo"', '"ecko"'))
    with pytest.raises(SlackwaterError, match="Did you mean 'echo'"):
        strategy.start(TroubledGrid(adding_app(), SITES), to_arrays(INITIAL))


def test_evaluation_on_clients_is_off_unless_asked_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    off = CarbonAware(plan=small_plan(), ledger=tmp_path / "a", wait=False)
    assert off.fraction_evaluate == 0
    off.start(TroubledGrid(adding_app(), SITES), to_arrays(INITIAL))
    assert "Clients do not evaluate" not in caplog.text
    asked = CarbonAware(plan=small_plan(), ledger=tmp_path / "b", wait=False, fraction_evaluate=0.5)
    asked.start(TroubledGrid(adding_app(), SITES), to_arrays(INITIAL))
    assert "Clients do not evaluate, since the plan does not count its energy" in caplog.text


def test_evaluation_on_clients_is_charged_as_planned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plan = small_plan()
    plan = make_plan(plan.problem.with_settings(evaluation_share=0.1))
    strategy = CarbonAware(plan=plan, ledger=tmp_path / "run", wait=False, fraction_evaluate=0.5)
    assert "Clients do not evaluate" not in caplog.text
    strategy.fraction_evaluate = 0.0  # the app has no function for it
    strategy.start(TroubledGrid(adding_app(), SITES), to_arrays(INITIAL))
    assert charged(tmp_path / "run") == pytest.approx(plan.emissions_kg)
    with Run.open(tmp_path / "run", read_only=True) as held:
        evaluation = sum(line.kg for line in held.ledger.charges() if line.cause == "evaluation")
    assert evaluation == pytest.approx(0.1 * plan.emissions.training_kg.sum())
