"""Real processes on loopback, over TLS with node authentication: the same model as in process, and what dies comes back.

One federation for all tests of this file, since starting it takes most of the time.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from light_app import light_app
from plans import ZONES, final_model, small_plan
from processes import LINK, Deployment, flower_home, has_flower, slot_seconds, until
from recount import check

from slackwater.engines.flower.launch import Connection, _is_locked, check_secure, read_connection
from slackwater.errors import ScenarioError, SlackwaterError
from slackwater.flower import deployed, in_process
from slackwater.ledger.run import Run
from slackwater.live.folder import LiveSettings, prepare

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not has_flower() or os.name != "posix", reason="needs Flower's commands"),
]
SLOT_S = 12.0
"""As long as a round of three clients needs on two quiet cores, and half as much."""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    sites = {name: {"zone": zone, "power-w": 300, "partition-id": i} for i, (name, zone) in enumerate(ZONES.items())}
    with Deployment(tmp_path_factory.mktemp("net"), sites) as running, flower_home(running):
        yield running


def attempts(folder: Path) -> int:
    try:
        with Run.open(folder, read_only=True) as run:
            return len([one for one in run.journal.attempts() if one.sent_at is not None])
    except SlackwaterError:  # not begun yet, or in this moment
        return 0


def test_the_model_is_that_of_the_run_in_process(federation: Deployment, tmp_path: Path) -> None:
    app, plan = light_app(tmp_path / "app"), small_plan(rounds=2, slack=0, fine_tune=1)
    prepare(tmp_path / "here", plan, LiveSettings(slot_seconds=0.0))
    in_process(app, tmp_path / "here")
    for longer in (1, 2):  # a machine that became busy meanwhile has another chance
        there = tmp_path / f"there-{longer}"
        prepare(there, plan, LiveSettings(slot_seconds=longer * slot_seconds(SLOT_S)))
        deployed(app, LINK, there)
        check(there)
        with Run.open(there, read_only=True) as run:
            outcomes = [(one.slot, one.client, one.outcome, one.error) for one in run.journal.attempts()]
        if {outcome for _, _, outcome, _ in outcomes} == {"done"}:
            break
    else:
        pytest.fail(f"{outcomes}\n{federation.tail()}")
    np.testing.assert_allclose(final_model(there)["w"], final_model(tmp_path / "here")["w"], rtol=0, atol=1e-6)


def test_a_killed_node_and_a_killed_server_app_are_survived(federation: Deployment, tmp_path: Path) -> None:
    app, folder = light_app(tmp_path / "app", seconds=1.0), tmp_path / "run"
    slot_s = slot_seconds(SLOT_S)
    prepare(folder, small_plan(rounds=4, slack=0, fine_tune=1), LiveSettings(slot_seconds=slot_s))
    supervisor = threading.Thread(target=deployed, args=(app, LINK, folder), kwargs={"poll_s": 1.0})
    supervisor.start()
    try:
        until(lambda: bool(federation.client_apps("lyon")) and attempts(folder) > 0, "lyon trains", 120, every=0.1)
        federation.kill_node("lyon")
        federation.start_node("lyon")
        time.sleep(slot_s)
        until(lambda: bool(federation.server_apps()) and _is_locked(folder), "the ServerApp runs")
        for pid in federation.server_apps():
            os.kill(pid, signal.SIGKILL)
        until(lambda: not _is_locked(folder), "it is gone", 30)
        until(lambda: _is_locked(folder), "it is back", 120)
    finally:
        supervisor.join(slot_s * 12)
    assert not supervisor.is_alive(), federation.tail()
    with Run.open(folder, read_only=True) as run:
        assert run.status == "done"
        assert [
            one for one in run.journal.attempts() if one.client == "lyon" and one.outcome in ("late", "lost", "offline")
        ]
        assert sum(1 for _ in run.rounds()) >= 1
    check(folder)


def test_plain_text_is_for_loopback(federation: Deployment) -> None:
    assert not read_connection(LINK).insecure
    check_secure(Connection(name="x", address="127.0.0.1:1", insecure=True), allow_insecure=False)
    check_secure(Connection(name="x", address="[::1]:1", insecure=True), allow_insecure=False)
    far = Connection(name="x", address="fl.example.org:8000", insecure=True)
    check_secure(far, allow_insecure=True)
    with pytest.raises(ScenarioError, match="plain text"):
        check_secure(far, allow_insecure=False)
    with pytest.raises(ScenarioError, match=r"Known: test-link\. Add one"):
        read_connection("elsewhere")


def test_keys_are_in_no_log_and_in_no_run_folder(federation: Deployment) -> None:
    secrets = [line for key in federation.folder.glob("*.key") for line in key.read_text().splitlines()[1:-1]]
    logs = "".join(path.read_text(errors="replace") for path in federation.folder.glob("*.log"))
    assert secrets
    assert not any(secret in logs for secret in secrets)
