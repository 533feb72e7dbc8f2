import json
import re
import sys
from importlib.metadata import EntryPoint

import numpy as np
import pytest
import torch

from slackwater.errors import MissingExtraError, ScenarioError
from slackwater.training import tasks
from slackwater.training import tasks as models
from slackwater.training.scoring import predicted
from slackwater.training.task import Samples, Task

pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def digits() -> Task:
    return tasks.digits()


@pytest.fixture(scope="module")
def mnist(shared_data) -> Task:
    return tasks.mnist(data=shared_data / "mnist")


def histogram(samples: Samples) -> np.ndarray:
    return np.bincount(samples.y.numpy(), minlength=10)


def test_digits(digits):
    assert (len(digits.clients), len(digits.client_tests), digits.devices) == (7, 7, ())
    assert sum(map(len, digits.clients)) + len(digits.test) == 1797
    assert [len(samples) for samples in digits.clients] == [186, 158, 135, 346, 265, 124, 228]
    assert digits.test.x.shape == (355, 1, 8, 8)
    assert digits.test.x.dtype == torch.float32
    assert digits.test.y.dtype == torch.int64
    assert histogram(digits.test).min() >= 34
    everything = torch.cat([samples.x for samples in digits.clients])
    assert everything.mean().abs() < 0.01
    assert (everything.std() - 1).abs() < 0.01
    assert models.parameters(digits.model()) == 15_010
    assert json.loads(json.dumps(digits.record)) == digits.record
    assert digits.record["samples"] == [len(samples) for samples in digits.clients]
    assert digits.record["label_counts"] == [histogram(samples).tolist() for samples in digits.clients]


def test_the_test_set_does_not_depend_on_the_seed(digits):
    other = tasks.digits(clients=3, seed=9, partition="iid")
    assert torch.equal(other.test.x, digits.test.x)
    assert [len(samples) for samples in other.clients] == [481, 481, 480]
    assert other.record["beta"] is None


def test_the_same_seed_gives_the_same_task(digits):
    again = tasks.digits()
    for ours, theirs in zip(
        (*digits.clients, *digits.client_tests), (*again.clients, *again.client_tests), strict=True
    ):
        assert torch.equal(ours.x, theirs.x)
        assert torch.equal(ours.y, theirs.y)


@pytest.mark.parametrize("partition", ["dirichlet", "iid", "shards", "quantity"])
def test_client_tests_have_the_clients_mix_of_labels(partition):
    task = tasks.digits(partition=partition, beta=0.3, clients=6, seed=2)
    for held, tested in zip(task.clients, task.client_tests, strict=True):
        shares = histogram(held) / len(held)
        assert len(tested) >= 30
        assert np.all(np.abs(histogram(tested) - shares * len(tested)) < 1)
        assert len(torch.unique(tested.x.flatten(1), dim=0)) == len(tested)


def test_digits_are_learnt_in_seconds(digits):
    torch.manual_seed(0)
    model = digits.model()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.cat([c.x for c in digits.clients]), torch.cat([c.y for c in digits.clients])
    for _ in range(200):
        batch = torch.randint(len(x), (64,))
        optimiser.zero_grad()
        digits.loss(model(x[batch]), y[batch]).backward()
        optimiser.step()
    with torch.no_grad():
        right = torch.count_nonzero(predicted(model(digits.test.x), digits.test.y) == digits.test.y)
        assert int(right) > 0.9 * len(digits.test)


def test_devices_part_the_clients_data():
    task = tasks.digits(clients=4, devices_per_client=20, seed=1)
    assert [len(devices) for devices in task.devices] == [20] * 4
    for client, devices in zip(task.clients, task.devices, strict=True):
        sizes = [len(device) for device in devices]
        assert 1 <= min(sizes) <= max(sizes) <= min(sizes) + 1
        assert torch.equal(torch.cat([device.x for device in devices]), client.x)
        assert torch.equal(torch.cat([device.y for device in devices]), client.y)
        # No second copy of the data: devices are parts of the client's own memory.
        assert devices[0].x.data_ptr() == client.x.data_ptr()
    # The devices are another order of the same clients.
    plain = tasks.digits(clients=4, seed=1)
    assert [histogram(a).tolist() for a in plain.clients] == [histogram(b).tolist() for b in task.clients]


def test_mnist_from_the_shared_folder(mnist):
    assert [len(samples) for samples in mnist.clients] == [16337, 3797, 13597, 5744, 9855, 3236, 7434]
    assert mnist.test.x.shape == (10_000, 1, 28, 28)
    assert [len(samples) for samples in mnist.client_tests] == [1000] * 7
    assert models.parameters(mnist.model()) == 421_642
    assert abs(float(sum(c.x.sum() for c in mnist.clients)) / (60_000 * 784)) < 1e-3


def test_seven_regions_of_a_hundred_devices(shared_data):
    task = tasks.make("mnist", data=str(shared_data / "mnist"), devices_per_client=100, model="paper-large")
    assert [len(devices) for devices in task.devices] == [100] * 7
    assert min(len(device) for devices in task.devices for device in devices) >= 30
    assert models.parameters(task.model()) == 1_199_882


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tasks.make("minst"), "There is no task 'minst'. Did you mean 'mnist'?"),
        (lambda: tasks.make("Fashion-MNIST"), "Did you mean 'fashion_mnist'?"),
        (lambda: tasks.make("digits", betta=1.0), "has no option 'betta'. Did you mean 'beta'?"),
        (lambda: tasks.make("digits", model="cnn"), "model 'cnn' is unknown"),
        (lambda: tasks.digits(data="/tmp"), "are part of scikit-learn"),
        (lambda: tasks.digits(clients=0), "clients is 0"),
        (lambda: tasks.digits(partition="diric"), "Did you mean 'dirichlet'?"),
        (lambda: tasks.digits(devices_per_client=-1), "devices_per_client is -1"),
        (lambda: tasks.digits(devices_per_client=1000), "more devices than there are samples (1442"),
        (lambda: tasks.digits(devices_per_client=200), "always had fewer than 200 samples"),
        (lambda: tasks.digits(partition="shards", clients=1442), "need 2884 samples"),
        (lambda: tasks.register_task("mnist", tasks.digits), "There is already a task 'mnist'"),
    ],
)
def test_mistakes_are_explained(call, message):
    with pytest.raises(ScenarioError, match=re.escape(message)):
        call()


def own_task(*, clients: int = 2) -> Task:
    samples = Samples(x=torch.zeros(4, 2), y=torch.zeros(4, dtype=torch.int64))
    return Task(name="own", clients=[samples] * clients, test=samples, model=lambda: torch.nn.Linear(2, 2))


def test_third_parties_can_register(monkeypatch):
    monkeypatch.setattr(tasks, "_registered", dict(tasks._registered))
    tasks.register_task("own", own_task)
    tasks.register_task("own", own_task)  # a module that is imported again
    assert "own" in tasks.names()
    assert len(tasks.make("own", clients=3).clients) == 3


def test_entry_points_are_found_and_loaded_late(monkeypatch):
    points = [
        EntryPoint(name="theirs", value=f"{__name__}:own_task", group=tasks.ENTRY_POINTS),
        EntryPoint(name="broken", value="no_such_module_anywhere:task", group=tasks.ENTRY_POINTS),
        EntryPoint(name="number", value="math:pi", group=tasks.ENTRY_POINTS),
    ]
    monkeypatch.setattr(tasks, "_registered", dict(tasks._registered))
    monkeypatch.setattr(tasks, "entry_points", lambda group, name=None: [p for p in points if name in (None, p.name)])
    monkeypatch.setitem(sys.modules, __name__, sys.modules[own_task.__module__])
    assert tasks.names()[-3:] == ("theirs", "broken", "number")
    assert "theirs" not in tasks._registered
    assert tasks.make("theirs").name == "own"
    with pytest.raises(ScenarioError, match=r"'broken'.*cannot be loaded.*no_such_module_anywhere"):
        tasks.make("broken")
    with pytest.raises(ScenarioError, match="not a function"):
        tasks.make("number")


def test_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingExtraError, match=re.escape("slackwater[torch]")):
        tasks.digits()
