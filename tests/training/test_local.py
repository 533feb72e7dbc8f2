import threading
from dataclasses import replace

import pytest
import torch
from small_tasks import classes
from torch import nn

from slackwater.errors import ScenarioError
from slackwater.training import local as workers_module
from slackwater.training.local import (
    Job,
    LocalWork,
    StopRequested,
    Workers,
    batches,
    steps_of,
    stream,
    train_locally,
)
from slackwater.training.task import FlatModel, ModelMaker, Samples, Task, average_buffers

CPU = torch.device("cpu")
WORK = LocalWork(steps=7, epochs=None, batch_size=16, lr=0.1, weight_decay=5e-4)


def images(model: nn.Module | None = None) -> Task:
    rng = torch.Generator().manual_seed(0)
    held = [
        Samples(x=torch.randn(50, 2, 6, 6, generator=rng), y=torch.randint(0, 4, (50,), generator=rng))
        for _ in range(5)
    ]

    def usual() -> nn.Module:
        return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4))

    return Task(name="images", clients=held, test=held[0], model=usual if model is None else lambda: model)


@pytest.mark.parametrize("task", [classes(), images()], ids=["linear", "convolutions"])
def test_the_same_as_a_loop_of_pytorchs_own_sgd(task: Task) -> None:
    maker = ModelMaker(task, seed=3, device=CPU)
    flat = maker()
    start = flat.vector.clone()
    sent = train_locally(flat, start, flat.copy_buffers(), task.clients[1], task, WORK, seed=9)
    torch.manual_seed(3)
    module = task.model()
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1, weight_decay=5e-4)
    losses = []
    for chosen in batches(len(task.clients[1]), WORK, stream(9, 0)):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(module(task.clients[1].x[chosen]), task.clients[1].y[chosen])
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        losses.append(loss.item())
    assert sent.loss == pytest.approx(sum(losses) / 7, rel=1e-5)
    for name, value in flat.state_dict().items():
        torch.testing.assert_close(value, module.state_dict()[name], rtol=1e-4, atol=1e-6)
    flat.load(start - sent.update, {})
    torch.testing.assert_close(flat.state_dict(), dict(module.state_dict()), rtol=1e-4, atol=1e-6)


def test_batches_go_through_shuffled_epochs() -> None:
    stepwise = batches(40, WORK, seed=1)
    assert [len(part) for part in stepwise if part is not None] == [16] * 7
    seen = torch.cat([part for part in stepwise if part is not None])
    assert sorted(seen[:40].tolist()) == list(range(40))
    epochs = batches(40, LocalWork(steps=1, epochs=2, batch_size=16, lr=1, weight_decay=0), seed=1)
    assert [len(part) for part in epochs if part is not None] == [16, 16, 8] * 2
    assert batches(16, WORK, seed=1) == [None] * 7
    assert torch.equal(torch.cat(batches(40, WORK, seed=1)), seen)  # type: ignore[arg-type]
    assert not torch.equal(torch.cat(batches(40, WORK, seed=2)), seen)  # type: ignore[arg-type]


def test_streams_differ_by_seed_client_and_slot() -> None:
    seeds = {stream(seed, client, slot) for seed in range(4) for client in range(8) for slot in range(30)}
    assert len(seeds) == 4 * 8 * 30
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize("task", [classes(5), classes(5, dropout=0.5), images()], ids=["plain", "dropout", "images"])
def test_the_bits_do_not_depend_on_who_trains_beside_whom(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_module, "SIDE_BY_SIDE", 0.0)
    jobs = [Job(client=c, samples=task.clients[c], seed=stream(0, c, 4)) for c in range(5)]
    outcomes = []
    for threads, chosen in ((1, jobs), (2, jobs), (2, jobs[::-1]), (3, jobs[2:3])):
        maker = ModelMaker(task, seed=0, device=CPU)
        workers = Workers(task, maker, WORK, threads=threads, device=CPU)
        start = maker()
        sent = workers.train(chosen, start.vector, start.copy_buffers(), threading.Event())
        workers.close()
        outcomes.append({job.client: update.update for job, update in zip(chosen, sent, strict=True)})
    for other in outcomes[1:]:
        assert all(torch.equal(outcomes[0][client], update) for client, update in other.items())


def test_the_users_random_numbers_are_left_alone() -> None:
    task = classes(dropout=0.5)
    torch.manual_seed(5)
    untouched = torch.rand(3)
    torch.manual_seed(5)
    maker = ModelMaker(task, seed=0, device=CPU)
    assert maker.random
    workers, start = Workers(task, maker, WORK, threads=1, device=CPU), maker()
    workers.train(
        [Job(client=0, samples=task.clients[0], seed=1)], start.vector, start.copy_buffers(), threading.Event()
    )
    assert torch.equal(torch.rand(3), untouched)


def test_a_stop_is_heeded_between_clients() -> None:
    task, stop = classes(), threading.Event()
    maker = ModelMaker(task, seed=0, device=CPU)
    workers, start = Workers(task, maker, WORK, threads=1, device=CPU), maker()
    stop.set()
    with pytest.raises(StopRequested):
        workers.train([Job(client=0, samples=task.clients[0], seed=1)], start.vector, start.copy_buffers(), stop)


class Viewing(nn.Module):
    """Calls .view() after a convolution, which refuses the channels-last order."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(2, 4, 3, padding=1), nn.Linear(144, 4)
        self.unused = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.conv(x))
        return self.head(y.view(len(x), -1))


def test_models_with_views_and_unused_parameters_train_too() -> None:
    task = images(Viewing())
    maker = ModelMaker(task, seed=0, device=CPU)
    assert not maker.channels_last
    assert ModelMaker(images(), seed=0, device=CPU).channels_last
    flat = maker()
    sent = train_locally(flat, flat.vector.clone(), {}, task.clients[0], task, WORK, seed=0)
    assert sent.finite
    assert bool(sent.update.any())


def test_buffers_are_averaged_and_frozen_parameters_stay() -> None:
    task = classes(norm=True)
    module = task.model()
    module[0].weight.requires_grad_(False)  # type: ignore[index, union-attr, operator]
    flat = FlatModel(module, device=CPU, channels_last=False)
    before = {name: value.clone() for name, value in flat.state_dict().items()}
    start, buffers = flat.vector.clone(), flat.copy_buffers()
    sent = [train_locally(flat, start, buffers, task.clients[c], task, WORK, seed=c) for c in range(2)]
    assert torch.equal(flat.state_dict()["0.weight"], before["0.weight"])
    mean = average_buffers([each.buffers for each in sent])
    torch.testing.assert_close(
        mean["1.running_mean"], (sent[0].buffers["1.running_mean"] + sent[1].buffers["1.running_mean"]) / 2
    )
    assert mean["1.num_batches_tracked"].dtype == torch.int64
    assert int(mean["1.num_batches_tracked"]) == 7


def test_models_that_cannot_be_trained_are_refused() -> None:
    frozen = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(ScenarioError, match="no trainable parameters"):
        FlatModel(frozen, device=CPU, channels_last=False)
    mixed = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    with pytest.raises(ScenarioError, match="one type"):
        FlatModel(mixed, device=CPU, channels_last=False)


@pytest.mark.parametrize(("epochs", "samples"), [(None, 40), (None, 9), (2, 40), (3, 9)])
def test_a_client_below_full_power_takes_the_first_of_its_steps(epochs: int | None, samples: int) -> None:
    full = replace(WORK, epochs=epochs)
    whole = batches(samples, full, seed=1)
    assert len(whole) == steps_of(samples, full)
    for share in (0.85, 0.5, 0.01):
        fewer = batches(samples, replace(full, share=share), seed=1)
        assert len(fewer) == max(1, round(share * len(whole)))
        assert all(a is b or torch.equal(a, b) for a, b in zip(fewer, whole, strict=False))


def test_a_job_has_its_own_share_of_the_steps() -> None:
    task = images()
    maker = ModelMaker(task, seed=3, device=CPU)
    workers = Workers(task, maker, WORK, threads=1, device=CPU)
    model = maker()
    start, buffers = model.vector.clone(), model.copy_buffers()
    jobs = [Job(client=0, samples=task.clients[0], seed=9, share=share) for share in (1.0, 3 / 7)]
    whole, fewer = workers.train(jobs, start, buffers, threading.Event())
    three = train_locally(model, start, buffers, task.clients[0], task, replace(WORK, steps=3), 9)
    assert torch.equal(fewer.update, three.update)
    assert not torch.equal(whole.update, three.update)
