import pickle

import pytest
import torch

from slackwater.errors import ScenarioError
from slackwater.training import tasks as models


@pytest.mark.parametrize(
    ("variant", "channels", "size", "count"),
    [
        ("paper", 1, 28, 421_642),
        ("paper-large", 1, 28, 1_199_882),
        ("mlp", 1, 28, 159_010),
        ("mlp", 1, 8, 15_010),
        ("small-cnn", 1, 8, 6_090),
        ("cifar-cnn", 3, 32, 114_186),
        ("resnet", 3, 32, 272_282),
        ("paper", 3, 32, 545_098),
        ("paper", 1, 8, 53_002),
    ],
)
def test_parameter_counts(variant, channels, size, count):
    model = models.maker(variant, channels=channels, size=size)()
    assert models.parameters(model) == count
    assert model(torch.zeros(3, channels, size, size)).shape == (3, 10)


def test_the_papers_layers():
    kinds = [type(layer).__name__ for layer in models.paper_cnn().children()]
    assert kinds == ["Conv2d", "MaxPool2d", "ReLU"] * 2 + ["Flatten", "Linear", "ReLU", "Linear"]


def test_pooling_before_relu_is_the_papers_network_bit_for_bit():
    torch.manual_seed(0)
    ours = models.paper_cnn()
    layers = list(ours.children())
    papers = torch.nn.Sequential(*(layers[i] for i in (0, 2, 1, 3, 5, 4, 6, 7, 8, 9)))
    x, y = torch.rand(16, 1, 28, 28).round(decimals=1), torch.arange(16) % 10  # rounded: many ties between pixels
    results = []
    for model in (ours, papers):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        results.append([loss, *torch.autograd.grad(loss, list(model.parameters()))])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_the_seed_decides_and_makers_can_be_pickled():
    maker = models.maker("small-cnn", channels=1, size=8)
    first = [
        p for _ in range(2) if torch.manual_seed(3) for p in [torch.cat([w.flatten() for w in maker().parameters()])]
    ]
    assert torch.equal(first[0], first[1])
    torch.manual_seed(3)
    again = pickle.loads(pickle.dumps(maker))()
    assert torch.equal(first[0], torch.cat([w.flatten() for w in again.parameters()]))


def test_mistakes_are_explained():
    with pytest.raises(ScenarioError, match=r"model 'papper' is unknown\. Did you mean 'paper'"):
        models.maker("papper", channels=1, size=28)
    with pytest.raises(ScenarioError, match="3x3 are too small"):
        models.maker("paper", channels=1, size=3)()
