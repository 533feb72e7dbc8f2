"""Tensors to the files of a run and back, and the size that is printed before the first round."""

from __future__ import annotations

import sqlite3
import weakref
from pathlib import Path

import pytest
import torch
from small_tasks import SCHEDULE, classes, plan_of

from slackwater.errors import SlackwaterError
from slackwater.ledger.run import Run
from slackwater.training import global_model as checkpoint_module
from slackwater.training.aggregators import make_aggregator
from slackwater.training.global_model import Checkpoint, expected_size, make_server
from slackwater.training.loop import train


def test_a_part_comes_back_bit_for_bit(tmp_path: Path) -> None:
    odd = {
        "half": torch.randn(3, 5).bfloat16(), "empty": torch.empty(0, 2, dtype=torch.int64), "one": torch.tensor(3),
        "a/b.c": torch.randn(7), "a.b/c": torch.randn(7), "A.B/C": torch.randn(7).t(), "turned": torch.randn(4, 6).t(),
    }  # fmt: skip
    with Run.create(tmp_path, plan={}, budget_kg=None, settings={}, task={}) as run:
        Checkpoint(run).save(None, {"x": odd})
    with Run.open(tmp_path) as run:
        back = Checkpoint(run).load(torch.device("cpu"))["x"]
    assert set(back) == set(odd)
    assert all(torch.equal(back[name], odd[name]) and back[name].dtype == odd[name].dtype for name in odd)


def test_a_part_that_is_gone_from_the_state_does_not_come_back(tmp_path: Path) -> None:
    kept = torch.ones(2)
    with Run.create(tmp_path, plan={}, budget_kg=None, settings={}, task={}) as run:
        checkpoint = Checkpoint(run)
        checkpoint.save(None, {"x": {"kept": kept, "gone": torch.zeros(2)}})
        checkpoint.save(None, {"x": {"kept": kept}})
        assert Checkpoint(run).load(torch.device("cpu")) == {"x": {"kept": pytest.approx(kept)}}
        kept += 1  # changed in place
        checkpoint.save(None, {"x": {"kept": kept}})
        assert Checkpoint(run).load(torch.device("cpu"))["x"]["kept"].tolist() == [2.0, 2.0]


def test_what_was_replaced_does_not_stay_in_memory(tmp_path: Path) -> None:
    with Run.create(tmp_path, plan={}, budget_kg=None, settings={}, task={}) as run:
        checkpoint, held = Checkpoint(run), {"x": torch.ones(2)}
        checkpoint.save(None, {"group": held})
        gone = weakref.ref(held["x"])
        held["x"] = torch.zeros(2)
        assert gone() is None


def test_a_run_without_a_folder_keeps_no_files() -> None:
    with Run.create(None, plan={}, budget_kg=None, settings={}, task={}) as run:
        Checkpoint(run).save(None, {"group": {"x": torch.ones(2)}})
        assert Checkpoint(run).load(torch.device("cpu")) == {}


@pytest.mark.parametrize(
    ("aggregator", "dtype", "server", "averages", "models", "changing"),
    [
        ("fedavg", "float32", "plain", False, 1, 1),
        ("echo", "float32", "plain", False, 1001, 11),
        ("echo", "float16", "plain", False, 501, 6),
        ("fedavg", "bfloat16", "momentum", False, 2, 2),
        ("memory", "bfloat16", "adam", True, 505, 10),
    ],
)
def test_the_room_that_a_run_takes(
    aggregator: str, dtype: str, server: str, averages: bool, models: int, changing: int
) -> None:
    rule, optimiser = make_aggregator(aggregator, dtype), make_server(server)
    size = expected_size(
        torch.empty(350_000), clients=1000, participants=10, aggregator=rule, server=optimiser, averages=averages
    )
    assert (size.models, size.changing, size.model_bytes) == (models, changing, 1_400_000)
    assert size.disk_bytes == 1_400_000 * (models + 2 * changing)
    assert size.memory_bytes < 2.5 * 1_400_000 * models + 10_000_000


def test_the_room_is_told_by_train_if_it_is_notable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plan, task = plan_of(SCHEDULE, window=1), classes()
    train(plan, task, out=tmp_path / "small", local_steps=1, threads=1)
    assert not [record for record in caplog.records if record.getMessage().startswith("State")]
    monkeypatch.setattr(checkpoint_module, "NOTABLE_BYTES", 100)
    train(plan, task, out=tmp_path / "large", local_steps=1, threads=1)
    train(plan, task, local_steps=1, threads=1)
    told = [record.getMessage() for record in caplog.records if record.getMessage().startswith("State")]
    assert told == [
        "State: up to 3.0 kB on disk and 3.6 kB of memory (4 models of 0.3 kB).",
        "State: up to 3.6 kB of memory (4 models of 0.3 kB).",
    ]
    with Run.open(tmp_path / "large", read_only=True) as run:
        assert told[0] in [message for *_, message in run.events()]


def test_no_part_is_too_large_for_the_run_file(tmp_path: Path) -> None:
    large = torch.arange(10**6)
    with Run.create(tmp_path, plan={}, budget_kg=None, settings={}, task={}) as run:
        run._db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 10_000)  # a blob of SQLite ends at 10^9 bytes; here much earlier
        Checkpoint(run).save(None, {"group": {"x": large}})
        assert torch.equal(Checkpoint(run).load(torch.device("cpu"))["group"]["x"], large)
        with pytest.raises(
            SlackwaterError, match=r"run\.db cannot be written: string or blob too big.*slackwater resume"
        ):
            run.log("x" * 20_000)
