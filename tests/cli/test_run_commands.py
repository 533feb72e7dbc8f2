from __future__ import annotations

import json
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import live_world as world
import pytest
from click.testing import CliRunner, Result
from live_world import Sites

from slackwater.cli.main import cli
from slackwater.ledger.run import Run
from slackwater.live.folder import RunStopped, load_settings
from slackwater.live.runner import carry_out
from slackwater.live.sites import Site
from slackwater.planning.plan import DEFAULT_AGGREGATOR, Plan

pytest.importorskip("flwr")
from slackwater.engines.flower import launch

SCENARIO = """
start = {start}
rounds = 3
slack = 3
fine_tune = 1
budget_kg = 5.0

[data]
source = "typical"

[[client]]
name = "lyon"
zone = "FR"
power_w = 300

[[client]]
name = "rome"
zone = "IE"
power_w = 300
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app").mkdir()
    (tmp_path / "scenario.toml").write_text(SCENARIO.format(start="2022-03-01T00:00:00Z"))
    return tmp_path


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Takes Flower's place; what it was asked."""
    asked: list[Any] = []

    def in_process(app: str, folder: Path) -> None:
        asked.append((app, folder))
        names = {name: Site(name=name) for name in ("lyon", "rome")}
        carry_out(folder, Sites(sites=names), world.initial())

    monkeypatch.setattr(launch, "in_process", in_process)
    monkeypatch.setattr(launch, "deployed", lambda *given, **more: asked.append((*given, more)))
    return asked


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def test_a_rehearsal_is_the_whole_live_path_on_the_past(here: Path, engine: list[Any]) -> None:
    done = call("rehearse", "scenario.toml", "--app", "app", "--aggregator", "ufedavg", "--seed", "5")
    assert done.exit_code == 0, done.output
    assert engine == [(str(here / "app"), Path("rehearsal"))]
    settings = load_settings(here / "rehearsal")
    assert (settings.source, settings.slot_seconds, settings.seed) == ("playback", 0.0, 5)
    assert (settings.replan_slots, settings.forecast) == (1, "blend")
    assert "rehearsing 2022-03-01T00:00Z to 2022-03-01T06:00Z" in done.stderr
    assert "it would have emitted" in " ".join(done.stdout.split())
    assert "perfect foresight" in done.stdout
    shown = json.loads(call("status", "rehearsal", "--json").stdout)
    assert (shown["stands"], shown["replans"] > 0) == ("done", True)
    found = shown["rehearsal"]
    assert found["emissions_kg"] == shown["spent_kg"] <= found["budget_kg"]
    assert 0 < found["share"] <= 1 + 1e-9
    assert found["foresight"]["client_slots"] >= found["client_slots"] > 0
    again = call("resume", "rehearsal", "--json")
    assert json.loads(again.stdout)["rounds"] == shown["rounds"]
    with Run.open(here / "rehearsal", read_only=True) as run:
        assert run.kind == "rehearsed"
        kinds = {line.intensity_kind for line in run.ledger.charges() if line.kind == "settlement"}
    assert kinds == {"synthetic"}
    first = Plan.load(here / "rehearsal" / "plan.json")
    assert first.problem.traces.forecast_zones() == ["FR", "IE"], "it was made on forecasts, not on what came"


def test_a_rehearsal_looks_at_nothing_that_came_later(here: Path, engine: list[Any]) -> None:
    from slackwater.intensity.load import load_traces

    for folder, after in (("one", 1.0), ("two", 3.0)):
        (here / folder).mkdir()
        whole = load_traces("typical", zones=["FR", "IE"], start="2022-01-01T00:00Z", hours=24 * 70)
        for zone, row in zip(whole.zones, whole.intensity, strict=True):
            lines = ["datetime_utc,ci_direct_g_per_kwh,ci_lca_g_per_kwh"]
            for at, value in zip(whole.slot_starts(), row, strict=True):
                later = after if at >= datetime(2022, 3, 1, 2, tzinfo=UTC) else 1.0
                lines.append(f"{at:%Y-%m-%dT%H:%M}Z,,{1000 * value * later:.9f}")
            (here / folder / f"{zone}_2022.csv").write_text("\n".join(lines) + "\n")
        done = call("rehearse", "scenario.toml", "--app", "app", "--data", folder, "--out", f"of-{folder}")
        assert done.exit_code == 0, done.output
    one, two = (Plan.load(here / f"of-{folder}" / "plan.json") for folder in ("one", "two"))
    assert (one.matrix == two.matrix).all()
    with Run.open(here / "of-one", read_only=True) as first, Run.open(here / "of-two", read_only=True) as second:
        assert first.journal.planned()[0] == second.journal.planned()[0]
        assert first.journal.planned()[2] == second.journal.planned()[2], "slot 2 is decided when slot 0 is known"
        assert first.ledger.spent_kg() < second.ledger.spent_kg()


def test_a_rehearsal_trains_a_built_in_task(here: Path) -> None:
    done = call("rehearse", "scenario.toml", "--json", "--replan", "6h", "--forecast", "error-model")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["rehearsal"]["accuracy"] == found["accuracy"] > 0.3
    assert found["rehearsal"]["forecast"] == "error-model"
    assert (here / "rehearsal" / "model.pt").exists()
    again = json.loads(call("resume", "rehearsal", "--json").stdout)
    assert again["rehearsal"] == found["rehearsal"]


def test_a_rehearsal_takes_the_plans_aggregator_and_auto_chooses_the_plan(here: Path, engine: list[Any]) -> None:
    assert call("rehearse", "scenario.toml", "--app", "app", "--out", "usual").exit_code == 0
    assert load_settings(here / "usual").aggregator == DEFAULT_AGGREGATOR
    assert call("rehearse", "scenario.toml", "--app", "app", "--planner", "auto", "--out", "auto").exit_code == 0
    chosen = Plan.load(here / "auto" / "plan.json")
    assert chosen.recommended is not None
    assert load_settings(here / "auto").aggregator == chosen.recommended.aggregator
    told = ("rehearse", "scenario.toml", "--app", "app", "--planner", "auto", "--aggregator", "fedavg", "--out", "told")
    assert call(*told).exit_code == 0
    assert load_settings(here / "told").aggregator == "fedavg"


def test_a_rehearsal_starts_where_it_is_told_or_at_the_last_time_that_is_over(here: Path, engine: list[Any]) -> None:
    moved = call("rehearse", "scenario.toml", "--app", "app", "--start", "2023-05-02T06:00Z", "--out", "moved")
    assert moved.exit_code == 0, moved.output
    assert Plan.load(here / "moved" / "plan.json").problem.first_slot == datetime(2023, 5, 2, 6, tzinfo=UTC)
    from slackwater.intensity.load import load_traces

    whole = load_traces("typical", zones=["FR", "IE"], start="2022-01-01T00:00Z", hours=24 * 70)
    (here / "data").mkdir()
    for zone, row in zip(whole.zones, whole.intensity, strict=True):
        pairs = zip(whole.slot_starts(), row, strict=True)
        lines = [f"{at:%Y-%m-%dT%H:%M}Z,,{1000 * value:.6f}" for at, value in pairs]
        text = "\n".join(["datetime_utc,ci_direct_g_per_kwh,ci_lca_g_per_kwh", *lines])
        (here / "data" / f"{zone}_2022.csv").write_text(text + "\n")
    Path("scenario.toml").write_text(SCENARIO.format(start="2099-03-01T09:00:00Z"))
    last = call("rehearse", "scenario.toml", "--app", "app", "--data", "data", "--out", "last")
    assert last.exit_code == 0, last.output
    assert last.stderr.startswith(
        "the scenario is in the future: rehearsing the latest past period, from 2022-03-11T09:00Z (--start changes it)\n"
    )
    assert Plan.load(here / "last" / "plan.json").problem.first_slot == datetime(2022, 3, 11, 9, tzinfo=UTC)


def test_on_a_superlink(here: Path, engine: list[Any]) -> None:
    refused = call("run", "scenario.toml", "--app", "app", "--superlink", "mine")
    assert refused.exit_code == 2
    assert refused.stderr == (
        "error: The scenario ended 2022-03-01T06:00Z. Rehearse it with: slackwater rehearse scenario.toml --app app. Or set a "
        "later start.\n"
    )
    done = call(
        "rehearse", "scenario.toml", "--app", "app", "--superlink", "mine", "--slot-seconds", "10", "--allow-insecure"
    )
    assert done.exit_code == 0, done.output
    assert engine == [(str(here / "app"), "mine", Path("rehearsal"), {"allow_insecure": True})]
    assert load_settings(here / "rehearsal").slot_seconds == 10
    assert json.loads(call("status", "rehearsal", "--json").stdout)["stands"] == "prepared"
    assert call("resume", "rehearsal").exit_code == 0
    assert len(engine) == 2


def test_a_scenario_in_the_future_runs_in_real_time(here: Path, engine: list[Any]) -> None:
    soon = (datetime.now(UTC) + timedelta(days=2)).replace(minute=0, second=0, microsecond=0)
    Path("scenario.toml").write_text(SCENARIO.format(start=soon.isoformat().replace("+00:00", "Z")))
    assert call("run", "scenario.toml", "--app", "app", "--superlink", "mine").exit_code == 0
    assert load_settings(here / "run").slot_seconds is None


def test_mistakes_are_named(here: Path, engine: list[Any]) -> None:
    period = call("rehearse", "scenario.toml", "--app", "app", "--replan", "soon")
    assert period.stderr == "error: --replan 'soon' is neither a period like 1h or 6h, nor never.\n"
    both = call("rehearse", "scenario.toml", "--app", "app", "--task", "digits")
    assert both.stderr == "error: Give --app or --task, not both.\n"
    no_app = call("rehearse", "scenario.toml", "--superlink", "mine")
    assert no_app.stderr == "error: A SuperLink runs an app: name it with --app DIR.\n"
    early = call("rehearse", "scenario.toml", "--app", "app", "--forecast", "nope")
    assert early.stderr.startswith("error: There is no forecast 'nope'. Choose one of blend, ")
    nowhere = call("run", "scenario.toml", "--app", "nowhere")
    assert nowhere.stderr.startswith("error: Invalid value for '--app': Directory 'nowhere' does not exist.\n")
    assert call("status", "nowhere").stderr == (
        "error: There is no live run in nowhere. Start one with: slackwater run scenario.toml --app DIR --out nowhere\n"
    )
    world.made(here / "own", slot_seconds=0.0)
    stopped = call("resume", "own")
    assert stopped.exit_code == 2
    assert stopped.stderr == (
        "error: The run in own was not started by `slackwater run`. To continue it, start its own app again.\n"
    )


def test_a_stopped_run_says_how_to_go_on(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()
    stop.set()
    monkeypatch.setattr(
        launch, "in_process", lambda app, folder: carry_out(folder, Sites(), world.initial(), stop=stop)
    )
    done = call("rehearse", "scenario.toml", "--app", "app", "--out", "run")
    assert done.exit_code == RunStopped.exit_code
    assert done.stderr.endswith(
        "error: Stopped before slot 0 (2022-03-01T00:00Z) with 0 rounds done and 0 kg charged. Resume with: slackwater resume "
        "run\n"
    )
    assert "stopped; continue with `slackwater resume`" in call("status", "run").stdout
