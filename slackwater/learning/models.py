"""The networks of the built-in tasks, each by name, with PyTorch's default initialisation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from torch import nn

from slackwater.errors import ScenarioError
from slackwater.registry import did_you_mean


def paper_cnn(channels: int = 1, size: int = 28, classes: int = 10) -> nn.Module:
    """Build the CNN the paper describes: two 3x3 convolutions (32, 64), each with ReLU and 2x2 max-pooling, then 128 units.

    With same-padding, and on 28x28 grey images, 421,642 parameters. The paper says "about 1.2 million", which only
    `paper_large_cnn` has.
    """
    side = _side(size, at_least=4) // 2 // 2
    blocks = (*_block(channels, 32), *_block(32, 64))
    return nn.Sequential(*blocks, *_head(64 * side * side, classes))


def paper_large_cnn(channels: int = 1, size: int = 28, classes: int = 10) -> nn.Module:
    """Build the paper's "about 1.2 million": no padding and one pooling, 1,199,882 parameters on 28x28."""
    side = (_side(size, at_least=6) - 4) // 2
    body = (nn.Conv2d(channels, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.MaxPool2d(2), nn.ReLU())
    return nn.Sequential(*body, *_head(64 * side * side, classes))


def mlp(channels: int = 1, size: int = 28, classes: int = 10, hidden: int = 200) -> nn.Module:
    """Build a network with one hidden layer of 200 units."""
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def digits_cnn(channels: int = 1, size: int = 8, classes: int = 10) -> nn.Module:
    """Build two small convolutions (16, 32) for 8x8 images: 6,090 parameters, a round in milliseconds."""
    side = _side(size, at_least=4) // 2 // 2
    blocks = (*_block(channels, 16), *_block(16, 32))
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(32 * side * side, classes))


def cifar_cnn(channels: int = 3, size: int = 32, classes: int = 10) -> nn.Module:
    """Build three convolutions (32, 64, 128) with group normalisation: 114,186 parameters on 32x32 colour images.

    Groups, not batches: batch statistics of clients with different labels do not average (Hsieh et al., 2020).
    """
    side = _side(size, at_least=8) // 2 // 2 // 2
    layers: list[nn.Module] = []
    for inputs, outputs in ((channels, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.MaxPool2d(2), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * side * side, classes))


VARIANTS: Mapping[str, Callable[..., nn.Module]] = {
    "paper": paper_cnn,
    "paper-large": paper_large_cnn,
    "mlp": mlp,
    "small-cnn": digits_cnn,
    "cifar-cnn": cifar_cnn,
}


def maker(variant: str, *, channels: int, size: int, classes: int = 10) -> Callable[[], nn.Module]:
    """Return what makes a new model for inputs of [channels, size, size]; it can be pickled for worker processes."""
    if variant not in VARIANTS:
        hint = did_you_mean(variant, VARIANTS, cutoff=0.4)
        raise ScenarioError(f"model {variant!r} is not known.{hint} There are: {', '.join(VARIANTS)}.")
    return partial(VARIANTS[variant], channels=channels, size=size, classes=classes)


def parameters(model: nn.Module) -> int:
    """Return how many numbers are trained."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def _block(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    """Return a convolution of the same size, halved; pooling before ReLU has the same bits and is a quarter faster."""
    return nn.Conv2d(inputs, outputs, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()


def _head(inputs: int, classes: int) -> tuple[nn.Module, ...]:
    return nn.Flatten(), nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, classes)


def _side(size: int, *, at_least: int) -> int:
    if size < at_least:
        raise ScenarioError(
            f"Images of {size}x{size} are too small for this model, which needs {at_least}x{at_least}. Use 'mlp'."
        )
    return size
