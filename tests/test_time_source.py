from __future__ import annotations

import ast
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from slackwater import time_source
from slackwater.errors import SlackwaterError
from slackwater.intensity.providers.base import Context
from slackwater.intensity.providers.http import Client
from slackwater.ledger.run import Run
from slackwater.time_source import VARIABLE, TimeSource, VirtualTime

START = datetime(2031, 3, 1, tzinfo=UTC)
SOON = timedelta(minutes=5)
"""Real seconds that a test may take; none takes that long."""


@pytest.fixture
def virtual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VirtualTime:
    path = tmp_path / "clock"
    source = VirtualTime.begin(path, START)
    monkeypatch.setenv(VARIABLE, str(path))
    return source


def test_time_is_real_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert abs(time_source.now() - datetime.now(UTC)) < SOON
    assert time_source.now().tzinfo is UTC
    before = time.monotonic()
    time_source.sleep(0.02)
    assert not TimeSource().wait(threading.Event(), 0.02)
    assert not TimeSource().wait_until(threading.Event(), time_source.now() + timedelta(seconds=0.02))
    assert time_source.monotonic() - before >= 0.05


def test_a_wait_in_real_time_ends_when_its_event_is_set() -> None:
    event = threading.Event()
    threading.Timer(0.05, event.set).start()
    assert TimeSource().wait_until(event, datetime.now(UTC) + timedelta(hours=1))
    assert TimeSource().wait(event, 3600)


def test_virtual_time_jumps_by_what_is_waited(virtual: VirtualTime) -> None:
    assert START <= time_source.now() < START + SOON
    began = time_source.monotonic()
    time_source.sleep(3600)
    assert not time_source.current().wait(threading.Event(), 1800)
    assert START + timedelta(minutes=90) <= time_source.now() < START + timedelta(minutes=90) + SOON
    assert 5400 <= time_source.monotonic() - began < 5700
    later = START + timedelta(days=7)
    assert not time_source.current().wait_until(threading.Event(), later)
    assert later <= time_source.now() < later + SOON
    time_source.current().wait_until(threading.Event(), START)  # it is past
    time_source.sleep(-5)
    assert later <= time_source.now() < later + SOON


def test_virtual_time_stays_where_it_is_if_the_event_is_set(virtual: VirtualTime) -> None:
    event = threading.Event()
    event.set()
    assert virtual.wait(event, 3600)
    assert virtual.wait_until(event, START + timedelta(days=1))
    assert time_source.now() < START + SOON


def test_no_wait_passes_a_moment_at_which_time_is_held(virtual: VirtualTime) -> None:
    noon = START + timedelta(hours=12)
    virtual.hold(noon)
    time_source.sleep(3600)  # that is before it
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(time_source.sleep, 86400)
        while time_source.now() < noon:
            time.sleep(0.005)
        assert not waiting.done()
        assert time_source.now() < noon + SOON
        stop = threading.Event()
        stopped = pool.submit(time_source.current().wait, stop, 3600)
        stop.set()
        assert stopped.result(timeout=60)
        virtual.hold(None)
        waiting.result(timeout=60)
    assert START + timedelta(hours=25) <= time_source.now() < START + timedelta(hours=25) + SOON


def test_processes_share_virtual_time_and_lose_no_jump(virtual: VirtualTime) -> None:
    code = "from slackwater import time_source; [time_source.sleep(60) for _ in range(50)]"
    with ThreadPoolExecutor() as pool:
        for _ in range(50):
            pool.submit(time_source.sleep, 60)
        others = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [other.wait(timeout=60) for other in others] == [0, 0]
    assert START + timedelta(minutes=150) <= time_source.now() < START + timedelta(minutes=150) + SOON


@pytest.mark.parametrize("content", [None, "", "noon", "12.5"])
def test_a_clock_file_that_cannot_be_used_is_told(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "clock"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv(VARIABLE, str(path))
    with pytest.raises(SlackwaterError, match=r"SLACKWATER_CLOCK names .*clock, which .*unset it for real time"):
        time_source.now()


def test_providers_and_the_ledger_ask_the_same_clock(virtual: VirtualTime, tmp_path: Path) -> None:
    for client in (Client(), Context.usual().client):
        assert START <= client.now() < START + SOON
    with Run.create(tmp_path / "run", plan={}, budget_kg=1.0, settings={}, task={}) as run:
        run.log("something")
        ((at, *_),) = run.events()
        assert START <= datetime.fromisoformat(at) < START + SOON


def test_a_retry_waits_in_virtual_time(virtual: VirtualTime) -> None:
    client = Client(attempts=4, loopback_http=True, jitter=lambda: 1.0)
    ahead = time_source.now() - datetime.now(UTC)
    with pytest.raises(SlackwaterError, match="cannot be reached"):
        client.get("nobody", "http://127.0.0.1:9")
    jumped = time_source.now() - datetime.now(UTC) - ahead
    assert abs(jumped - timedelta(seconds=1 + 2 + 4)) < timedelta(seconds=1)


ELSEWHERE = {
    "dashboard/runs.py": {"time.time"},  # the age of a file, whose time is the machine's
    "engines/flower/calibrate.py": {"time.sleep"},  # measures a machine that rests
    "engines/nvflare/submit.py": {"time.sleep"},  # waits for FLARE's own processes
}
"""Modules that ask the machine's own clocks, and for what."""


def test_nothing_else_asks_the_wall_clock_or_sleeps() -> None:
    package = Path(time_source.__file__).parent
    found: dict[str, set[str]] = {}
    for path in (path for path in package.rglob("*.py") if "lab" not in path.parts):  # studies measure the machine
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                name = f"{node.value.id}.{node.attr}"
                if name in (
                    "datetime.now",
                    "datetime.utcnow",
                    "datetime.today",
                    "date.today",
                    "time.time",
                    "time.sleep",
                ):
                    found.setdefault(path.relative_to(package).as_posix(), set()).add(name)
    del found["time_source.py"]
    assert found == ELSEWHERE
