import pytest
import torch
from small_tasks import SCHEDULE, classes, plan_of

from slackwater.errors import ScenarioError
from slackwater.training.global_model import IterateAverage, make_server
from slackwater.training.loop import train

UPDATES = [torch.tensor([1.0, -2.0]), torch.tensor([0.5, 0.0]), torch.tensor([-1.0, 1.0])]


def test_plain_and_momentum_by_hand() -> None:
    start = torch.tensor([10.0, 10.0])
    assert torch.equal(make_server("plain", 0.5).step(start, UPDATES[0]), torch.tensor([9.5, 11.0]))
    momentum = make_server("momentum")
    model = momentum.step(start, UPDATES[0])
    assert torch.equal(model, torch.tensor([9.0, 12.0]))
    torch.testing.assert_close(momentum.step(model, UPDATES[1]), torch.tensor([9.0 - 1.4, 12.0 + 1.8]))
    assert torch.equal(start, torch.tensor([10.0, 10.0]))


def test_adam_by_hand() -> None:
    adam, model = make_server("adam", 0.1), torch.zeros(1)
    first, second, expected = 0.0, 1e-6, 0.0
    for value in (2.0, -1.0, 0.5):
        model = adam.step(model, torch.tensor([value]))
        first, second = 0.9 * first + 0.1 * value, 0.99 * second + 0.01 * value**2
        expected -= 0.1 * first / (second**0.5 + 1e-3)
    torch.testing.assert_close(model, torch.tensor([expected]))


@pytest.mark.parametrize("name", ["plain", "momentum", "adam"])
def test_a_restored_optimiser_goes_on_the_same(name: str) -> None:
    whole, model = make_server(name), torch.zeros(2)
    first = make_server(name)
    first.step(model, UPDATES[0])
    model = whole.step(model, UPDATES[0])
    second = make_server(name)
    second.restore({key: tensor.clone() for key, tensor in first.state().items()})
    assert torch.equal(second.step(model, UPDATES[1]), whole.step(model, UPDATES[1]))


@pytest.mark.parametrize(("last", "taken"), [(2, [3, 4]), (0.4, [3, 4]), (0.41, [2, 3, 4]), (9, [0, 1, 2, 3, 4])])
def test_averaging_takes_the_last_rounds(last: float, taken: list[int]) -> None:
    average, models = IterateAverage(last, 5), [torch.tensor([float(i**2)]) for i in range(5)]
    for number, model in enumerate(models):
        average.add(number, model)
    torch.testing.assert_close(average.mean(models[-1]), torch.stack([models[i] for i in taken]).mean(dim=0))


def test_averaging_one_round_is_the_last_model() -> None:
    plan, task = plan_of(SCHEDULE, window=1), classes()
    settings = {"local_steps": 3, "batch_size": 16, "threads": 1}
    last, averaged = train(plan, task, **settings), train(plan, task, averaging=1, **settings)
    assert all(torch.equal(last.model[key], averaged.model[key]) for key in last.model)
    several = train(plan, task, averaging=0.5, server="momentum", **settings)
    assert several.last_accuracy != several.accuracy or several.loss != last.loss


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ScenarioError, match="Did you mean 'adam'"):
        make_server("adan")
    with pytest.raises(ScenarioError, match="server_lr"):
        make_server("plain", -1)
    for bad in (0, -1, 1.5):
        with pytest.raises(ScenarioError, match="averaging"):
            IterateAverage(bad, 10)
