"""FLARE's own processes: the same model as in process, and what dies comes back. One federation for all tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from flare_jobs import Direct, light_job, task_of
from flare_processes import FlareFederation
from plans import START, final_model
from processes import BIN, slot_seconds, until
from recount import check

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE (pip install 'slackwater[nvflare]')")

from slackwater import Client, Plan, Problem, load_traces, plan
from slackwater.engines.nvflare.job import new_job
from slackwater.errors import SlackwaterError
from slackwater.ledger.run import Run
from slackwater.live.folder import LiveSettings, prepare
from slackwater.live.runner import carry_out
from slackwater.nvflare import submitted

pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("default"),  # FLARE connects with a deprecated argument of aiohttp
    pytest.mark.skipif(os.name != "posix", reason="FLARE's startup kits are shell scripts"),
]
SITES = {"lyon": "FR", "dublin": "IE", "helsinki": "FI", "oslo": "NO"}
SLOT_S = 6.0
"""As long as a round and the start of a job need on two quiet cores."""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlareFederation]:
    with FlareFederation(tmp_path_factory.mktemp("flare"), SITES) as running:
        yield running


def four_sites(rounds: int, slack: int) -> Plan:
    clients = [Client(name=name, zone=zone, power_w=300.0, required=True) for name, zone in SITES.items()]
    traces = load_traces("typical", zones=sorted(SITES.values()), start=START, hours=rounds + slack)
    return plan(
        Problem(clients=clients, traces=traces, start=START, rounds=rounds, slack=slack, fine_tune=2, budget_kg=1.5)
    )


def sent_by(folder: Path) -> int:
    """The last slot in which work was sent; -1 before the first."""
    try:
        with Run.open(folder, read_only=True) as run:
            return max((one.slot for one in run.journal.attempts() if one.sent_at is not None), default=-1)
    except SlackwaterError:  # not begun yet, or in this moment
        return -1


def trains_in(folder: Path, client: str) -> int | None:
    """The slot in which a client trains now; None if it does not."""
    try:
        with Run.open(folder, read_only=True) as run:
            return next((one.slot for one in run.journal.attempts(outcome="running") if one.client == client), None)
    except SlackwaterError:
        return None


def test_the_model_has_the_bits_of_the_run_in_process(federation: FlareFederation, tmp_path: Path) -> None:
    job, schedule = light_job(tmp_path / "job"), four_sites(rounds=4, slack=1)
    task, settings = task_of(job), LiveSettings(slot_seconds=0.0)
    prepare(tmp_path / "here", schedule, settings)
    direct = Direct(list(SITES), lambda arrays, site, meter: task.train(arrays, site, meter.seed, lambda: False))
    carry_out(tmp_path / "here", direct, task.initial_model())
    prepare(tmp_path / "there", schedule, settings)
    submitted(job, federation.admin, tmp_path / "there", patience_s=60.0)
    check(tmp_path / "there")
    with Run.open(tmp_path / "there", read_only=True) as run:
        outcomes = [(one.slot, one.client, one.outcome, one.error) for one in run.journal.attempts()]
    assert {outcome for _, _, outcome, _ in outcomes} == {"done"}, f"{outcomes}\n{federation.tail()}"
    assert final_model(tmp_path / "there")["w"].tobytes() == final_model(tmp_path / "here")["w"].tobytes()


@pytest.mark.skipif(not os.environ.get("SLACKWATER_LONG"), reason="takes minutes: run it with SLACKWATER_LONG=1")
def test_a_killed_site_and_a_killed_server_are_survived(federation: FlareFederation, tmp_path: Path) -> None:
    job, folder, slot_s = light_job(tmp_path / "job", seconds=2.0), tmp_path / "run", slot_seconds(SLOT_S)
    prepare(folder, four_sites(rounds=9, slack=3), LiveSettings(slot_seconds=slot_s))
    supervisor = threading.Thread(
        target=submitted, args=(job, federation.admin, folder), kwargs={"poll_s": 1.0, "patience_s": 300.0}
    )
    supervisor.start()
    try:
        until(lambda: (trains_in(folder, "oslo") or 0) >= 1, "oslo trains in slot 1", 60 + 3 * slot_s, every=0.1)
        federation.kill("oslo")
        site_killed = sent_by(folder)
        federation.start("oslo")
        until(lambda: sent_by(folder) >= site_killed + 4, "a later slot", 12 * slot_s, every=0.1)
        federation.kill("server")
        server_killed = sent_by(folder)
        federation.start("server")
    finally:
        supervisor.join(60 + 12 * slot_s)
    assert not supervisor.is_alive(), federation.tail()
    with Run.open(folder, read_only=True) as run:
        assert run.status == "done"
        slots = len(
            {one.slot for one in run.journal.attempts()} | {slot for _, _, slot, _ in run.events() if slot is not None}
        )
        outcomes = {(one.slot, one.client): one.outcome for one in run.journal.attempts()}
    assert slots == 12, outcomes
    assert outcomes[site_killed, "oslo"] in ("late", "lost")
    assert {outcomes[site_killed, name] for name in SITES if (site_killed, name) in outcomes} >= {"done"}
    assert "lost" in {outcome for (slot, _), outcome in outcomes.items() if slot == server_killed}
    later = {slot for (slot, _), outcome in outcomes.items() if outcome == "done" and slot > server_killed}
    assert later, f"{outcomes}\n{federation.tail()}"
    assert [
        slot for (slot, name), outcome in outcomes.items() if (name, outcome) == ("oslo", "done") and slot > site_killed
    ]
    check(folder)


def test_in_flares_simulator_with_the_commands_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new_job(tmp_path / "my-app")
    monkeypatch.chdir(tmp_path / "my-app")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PATH", f"{BIN}{os.pathsep}{os.environ['PATH']}")
    section = Path("README.md").read_text().partition("## In FLARE's simulator\n")[2].partition("\n## ")[0]
    for command in re.findall(r"^    (\S.*)$", section, flags=re.MULTILINE):
        done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=300)
        log = Path("rehearsal/nvflare.log")
        assert done.returncode == 0, (
            f"{command}\n{done.stdout}\n{done.stderr}\n{log.read_text() if log.exists() else ''}"
        )
    assert "done" in done.stdout
    check(Path("rehearsal"))
    task = task_of(tmp_path / "my-app")

    def train(arrays: object, site: str, meter: object) -> object:
        data, model = task.load_data(site), task.Model()
        task.load_arrays(model, arrays)
        loss = task.train(model, data, steps=20, batch_size=32, lr=0.1, out_of_time=lambda: False)
        return model.state_dict(), loss

    Path("again").mkdir()
    for name in ("plan.json", "live.json", "actuals.json"):
        shutil.copy(f"rehearsal/{name}", f"again/{name}")
    initial = {name: value.numpy() for name, value in task.initial_model().items()}
    names = [str(name) for name in Plan.load("again/plan.json").problem.fleet.names]
    carry_out("again", Direct(names, train), initial)
    there, here = final_model(Path("rehearsal")), final_model(Path("again"))
    assert {name: value.tobytes() for name, value in there.items()} == {
        name: value.tobytes() for name, value in here.items()
    }
