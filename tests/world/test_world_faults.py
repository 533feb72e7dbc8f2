"""A run of 24 slots on three sites lives through each fault of its world, and is exact in the end."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from grids import HOUR, Fault, FaultKind
from sandbox import START, Event, World, emitted_kg, outcome, rows, said

SLOTS = 24
IN_A_ROUND = timedelta(minutes=2)


@dataclass(frozen=True, kw_only=True)
class Case:
    faults: tuple[Fault, ...] = ()
    script: tuple[Event, ...] = ()
    words: tuple[str, ...] = ()
    """What the run says of it."""
    lost: bool = False
    """Whether trainings are lost."""
    least_rounds: int = 15
    free: bool = False


def fault(kind: FaultKind, first: int, hours: int, **more: int) -> tuple[Fault, ...]:
    return (Fault(kind=kind, start=START + first * HOUR, end=START + (first + hours) * HOUR, **more),)


CASES = {
    "down": Case(
        faults=fault("down", 4, 12),
        words=("is down (503: Service Unavailable)", "old values from the cache"),
        # What is charged at the bounds of twelve hours without data leaves room for the window only, which is then held early.
        least_rounds=12,
    ),
    "refused": Case(
        script=(
            Event(at=START + 4 * HOUR + IN_A_ROUND, what="close"),
            Event(at=START + 16 * HOUR + IN_A_ROUND, what="open"),
        ),
        words=("cannot be reached (Connection refused)",),
    ),
    "throttled": Case(
        faults=fault("throttled", 6, 4, retry_after_s=60), words=("throttles us (429: Too Many Requests)",)
    ),
    "nulls": Case(faults=fault("nulls", 5, 8), words=("values are null; ignored",)),
    "late": Case(faults=fault("late", 3, 12)),
    "revised": Case(faults=fault("revised", 0, 24)),
    "no-forecast": Case(faults=fault("no-forecast", 4, 12), words=("has no usable forecast values of FR",)),
    "double-forecast": Case(faults=fault("double-forecast", 4, 12)),
    "killed while down": Case(
        faults=fault("down", 4, 12),
        script=tuple(Event(at=START + slot * HOUR + IN_A_ROUND, what="kill") for slot in (5, 6, 15)),
        words=("Slot 5 is lost, and stays charged", "Slot 6 is lost, and stays charged"),
        lost=True,
    ),
    "cold restart": Case(  # nothing is known until the providers are back
        script=(
            Event(at=START + 5 * HOUR + IN_A_ROUND, what="close"),
            Event(at=START + 6 * HOUR + IN_A_ROUND, what="kill", forget=True),
            Event(at=START + 8 * HOUR + 20 * IN_A_ROUND, what="open"),
        ),
        words=("No round starts until the intensity is known", "Slot 7 was missed", "Slot 8 was missed"),
        lost=True,
    ),
    "missed": Case(
        script=(Event(at=START + 7 * HOUR + IN_A_ROUND, what="kill", away=5 * HOUR),),
        words=("Slot 8 was missed", "Slot 11 was missed"),
        lost=True,
        least_rounds=12,
    ),
    "free": Case(free=True, words=("the key's plan has only the last 24 hours",)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_run_lives_through(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    with World(tmp_path, faults=case.faults, free=case.free) as world:
        app = world.app()
        world.scenario(app / "scenario.toml", "electricitymaps", budget_kg=1.6)
        world.live(app, script=case.script)
        run = app / "run"
        done = outcome(run)
        assert done.status == "done"
        assert done.rounds >= case.least_rounds
        assert done.window_rounds == 2
        assert bool(done.lost) == case.lost
        told = said(run)
        for words in case.words:
            assert words in told
            assert told.count(words) <= 3 * 2 * (1 + len(case.script)), "told for each zone and kind, not in every slot"

        world.clock.set(START + (SLOTS + 12) * HOUR)
        world.command("resume", "run", cwd=app)
        settled = outcome(run)
        assert settled.unsettled == 0
        assert settled.spent_kg == pytest.approx(emitted_kg(world, run, "electricitymaps"), rel=1e-9)
        assert settled.spent_kg <= settled.budget_kg
        sources = {row["intensity_source"] for row in rows(run, "SELECT * FROM charges WHERE kind = 'settlement'")}
        assert sources == {"electricitymaps"}, "every actual came within a day, so none is interpolated"
