"""The built-in tasks and their networks, each by name, and tasks from a file or module of the user's own."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import entry_points
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from slackwater.errors import MissingExtraError, ScenarioError
from slackwater.registry import did_you_mean
from slackwater.training import data as datasets
from slackwater.training.data import Images, Progress
from slackwater.training.partition import Kind, Partition, label_counts, split, stream, usual_least
from slackwater.training.site_tasks import dialysis, flights, randhie, shakespeare
from slackwater.training.task import Samples, Task
from slackwater.training.users_code import users_code


def paper_cnn(channels: int = 1, size: int = 28, classes: int = 10) -> nn.Module:
    """Build the CNN that the paper describes: two 3x3 convolutions (32, 64), each with ReLU and 2x2 max-pooling, then 128 units.

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


class _GroupNorm(nn.GroupNorm):
    """Group normalisation in float32, also within a step in bfloat16: on channels-last images PyTorch's own is much slower there."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the normalised input."""
        with torch.autocast(x.device.type, enabled=False):
            return super().forward(x.float())


def cifar_cnn(channels: int = 3, size: int = 32, classes: int = 10) -> nn.Module:
    """Build three convolutions (32, 64, 128) with group normalisation: 114,186 parameters on 32x32 colour images.

    Groups, not batches: batch statistics of clients with different labels do not average (Hsieh et al., 2020).
    """
    side = _side(size, at_least=8) // 2 // 2 // 2
    layers: list[nn.Module] = []
    for inputs, outputs in ((channels, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), _GroupNorm(8, outputs), nn.MaxPool2d(2), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * side * side, classes))


class _Residual(nn.Module):
    """Two 3x3 convolutions with group normalisation, added to the input; a 1x1 convolution fits it where sizes differ."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False), _GroupNorm(8, outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), _GroupNorm(8, outputs),
        )  # fmt: skip
        same = inputs == outputs
        self.short = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        return torch.relu(self.body(x) + self.short(x))


def resnet(channels: int = 3, size: int = 32, classes: int = 10) -> nn.Module:
    """Build a residual network of 20 layers (He et al., 2016) with group normalisation: 272,282 parameters in colour."""
    _side(size, at_least=8)
    layers: list[nn.Module] = [nn.Conv2d(channels, 16, 3, padding=1, bias=False), _GroupNorm(8, 16), nn.ReLU()]
    widths = (16, 16, 16, 16, 32, 32, 32, 64, 64, 64)
    layers += [_Residual(inputs, outputs) for inputs, outputs in pairwise(widths)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


VARIANTS: Mapping[str, Callable[..., nn.Module]] = {
    "paper": paper_cnn,
    "paper-large": paper_large_cnn,
    "mlp": mlp,
    "small-cnn": digits_cnn,
    "cifar-cnn": cifar_cnn,
    "resnet": resnet,
}


def maker(variant: str, *, channels: int, size: int, classes: int = 10) -> Callable[[], nn.Module]:
    """Return a function that makes a model for inputs of [channels, size, size]; it can be pickled."""
    if variant not in VARIANTS:
        hint = did_you_mean(variant, VARIANTS, cutoff=0.4)
        raise ScenarioError(f"model {variant!r} is unknown.{hint} Known: {', '.join(VARIANTS)}.")
    return partial(VARIANTS[variant], channels=channels, size=size, classes=classes)


def parameters(model: nn.Module) -> int:
    """Return the number of trainable parameters."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def _block(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    """Return a convolution of the same size, then pooling to half; pooling before ReLU is exact and a quarter faster."""
    return nn.Conv2d(inputs, outputs, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()


def _head(inputs: int, classes: int) -> tuple[nn.Module, ...]:
    return nn.Flatten(), nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, classes)


def _side(size: int, *, at_least: int) -> int:
    if size < at_least:
        raise ScenarioError(
            f"Images of {size}x{size} are too small for this model, which needs {at_least}x{at_least}. Use 'mlp'."
        )
    return size


ENTRY_POINTS = "slackwater.tasks"
"""The group under which another package's metadata names its tasks: name = "module:function"."""
_MOST_CLIENT_TESTS = 1000  # per client: enough for an accuracy to about 1 %, and quick to evaluate
_CLIENT_TEST_STREAM, _DEVICE_STREAM = 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """(pixel / top - mean) / deviation, by channel; mean and deviation are those of the training set."""

    top: float
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def __call__(self, pixels: NDArray[np.uint8]) -> torch.Tensor:
        """Return pixels [sample, channel, row, column] as float32."""
        shape = (1, -1, 1, 1)
        scaled = torch.from_numpy(np.array(pixels)).to(torch.float32).div_(self.top)
        return scaled.sub_(torch.tensor(self.mean).view(shape)).div_(torch.tensor(self.deviation).view(shape))


DIGITS = Scale(top=16.0, mean=(0.3053,), deviation=(0.3760,))
MNIST = Scale(top=255.0, mean=(0.1307,), deviation=(0.3081,))
FASHION_MNIST = Scale(top=255.0, mean=(0.2860,), deviation=(0.3530,))
CIFAR10 = Scale(top=255.0, mean=(0.4914, 0.4822, 0.4465), deviation=(0.2470, 0.2435, 0.2616))


def digits(
    *, clients: int = 7, partition: Kind = "dirichlet", beta: float = 0.5, seed: int = 0, model: str = "mlp",
    data: str | Path | None = None, devices_per_client: int = 0,
) -> Task:  # fmt: skip
    """Return scikit-learn's 1,797 digits of 8x8 pixels; every fifth of each class is for testing.

    The `mlp` is the default for its speed: it took about a third of the time of `small-cnn` for similar accuracy.
    """
    if data is not None:
        raise ScenarioError(f"data is {str(data)!r}, but the digits are part of scikit-learn. Leave data out.")
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingExtraError("scikit-learn", "torch") from error
    pixels, labels = load_digits(return_X_y=True)
    # By class: every fifth sample of the whole set would be a zero or a five.
    nth_of_class = np.empty(len(labels), dtype=np.int64)
    for label in range(10):
        nth_of_class[labels == label] = np.arange(np.count_nonzero(labels == label))
    test = nth_of_class % 5 == 4
    pixels, labels = pixels.astype(np.uint8).reshape(-1, 1, 8, 8), labels.astype(np.int64)
    images = Images(train_x=pixels[~test], train_y=labels[~test], test_x=pixels[test], test_y=labels[test])
    return _task("digits", images, DIGITS, clients, partition, beta, seed, model, devices_per_client)


def mnist(
    *, clients: int = 7, partition: Kind = "dirichlet", beta: float = 0.5, seed: int = 0, model: str = "paper",
    data: str | Path | None = None, devices_per_client: int = 0, progress: Progress | None = None,
) -> Task:  # fmt: skip
    """Return handwritten digits, 60,000 and 10,000 of 28x28, with the paper's CNN (`paper`, `paper-large`) or an `mlp`."""
    images = datasets.load("mnist", data, progress=progress)
    return _task("mnist", images, MNIST, clients, partition, beta, seed, model, devices_per_client, data)


def fashion_mnist(
    *, clients: int = 7, partition: Kind = "dirichlet", beta: float = 0.5, seed: int = 0, model: str = "paper",
    data: str | Path | None = None, devices_per_client: int = 0, progress: Progress | None = None,
) -> Task:  # fmt: skip
    """Return clothes in the format of MNIST, with the same models."""
    images = datasets.load("fashion_mnist", data, progress=progress)
    return _task(
        "fashion_mnist", images, FASHION_MNIST, clients, partition, beta, seed, model, devices_per_client, data
    )


def cifar10(
    *, clients: int = 7, partition: Kind = "dirichlet", beta: float = 0.5, seed: int = 0, model: str = "cifar-cnn",
    data: str | Path | None = None, devices_per_client: int = 0, progress: Progress | None = None,
) -> Task:  # fmt: skip
    """Return photographs of ten kinds, 50,000 and 10,000 of 32x32 in colour; as float32 they take 0.7 GB of memory."""
    images = datasets.load("cifar10", data, progress=progress)
    return _task("cifar10", images, CIFAR10, clients, partition, beta, seed, model, devices_per_client, data)


_imported: dict[str, Callable[..., Task]] = {}  # by absolute reference: the user's code runs once
_registered: dict[str, Callable[..., Task]] = {
    made.__name__: made for made in (digits, mnist, fashion_mnist, cifar10, shakespeare, randhie, dialysis, flights)
}


def register_task(name: str, function: Callable[..., Task]) -> None:
    """Register a task, for `make` and the command line. Packages use the entry point group instead.

    Args:
        name: New name, as `--task` takes it.
        function: Makes the task; its options are passed by keyword.
    """
    if _registered.get(name, function) is not function:
        raise ScenarioError(f"There is already a task {name!r}. Choose another name.")
    _registered[name] = function


def names() -> tuple[str, ...]:
    """Return the names of all tasks, without importing other packages."""
    return tuple(dict.fromkeys([*_registered, *(point.name for point in entry_points(group=ENTRY_POINTS))]))


def make(name: str, **options: object) -> Task:
    """Return a task by its name."""
    function = _find(name)
    known = inspect.signature(function).parameters
    open_ended = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in known.values())
    for option in options:
        if option not in known and not open_ended:
            raise ScenarioError(
                f"Task {name!r} has no option {option!r}.{_hint(option, known)} Known: {', '.join(known)}."
            )
    if not is_reference(name):
        return function(**options)
    with users_code(f"The function of task {name!r} failed"):
        return function(**options)


def make_for(name: str, names: Sequence[str], *, client: str | None = None, **options: Any) -> Task:
    """Return a task for the clients of a plan.

    A function of the user's own gets those of `clients`, `names`, `client` and the options that it takes.

    Args:
        name: A known task, "package.module:function" or "file.py:function".
        names: The clients' names, in the plan's order.
        client: The one client whose data is needed, where each site has only its own; "" on a server, which needs none.
        options: Options of the task, such as `seed`; None: not given.
    """
    takes = option_names(name)
    offered = {"clients": len(names), "names": list(names), "client": client, "seed": options.pop("seed", None)}
    offered["progress"] = options.pop("progress", None)
    given = {key: value for key, value in offered.items() if key in takes and value is not None}
    if not is_reference(name):
        given["clients"] = len(names)
    asked = {key: value for key, value in options.items() if value is not None}
    task = make(name, **given, **asked)
    if not isinstance(task, Task):
        raise ScenarioError(f"{name} returns {type(task).__name__}, not a sw.Task.")
    if is_reference(name):
        known = {key: value for key, value in given.items() if key in ("clients", "names", "seed")}
        task = replace(task, record={**task.record, **known, **asked, "task": absolute(name)})
    return task


def is_reference(name: str) -> bool:
    """Return whether a task is named by the place of its function: "package.module:function" or "file.py:function"."""
    return ":" in name


def absolute(reference: str) -> str:
    """Return a reference that does not depend on the working directory, as far as it names a file."""
    place, function = _parts(reference)
    return f"{Path(place).expanduser().absolute()}:{function}" if place.endswith(".py") else reference


def _parts(reference: str) -> tuple[str, str]:
    place, _, function = reference.rpartition(":")  # a path on Windows has a colon too
    if not place or not function.isidentifier():
        raise ScenarioError(
            f"{reference!r} names no task. Write a file and its function, like hosp.py:make_task, or a module and its "
            "function, like my_package.tasks:make_task."
        )
    return place, function


def _import(reference: str) -> Callable[..., Task]:
    """Import the function that a reference names; this runs the user's code."""
    place, attribute = _parts(reference)
    path = Path(place).expanduser().absolute()
    if place.endswith(".py"):
        if not path.is_file():
            raise ScenarioError(f"There is no file {path}, which {reference!r} names.")
        name, folder = f"_task_{path.stem}", path.parent  # a file called random.py must not replace a module
    else:
        name, folder = place, Path.cwd()
    if str(folder) not in sys.path:  # the module may import its neighbours
        sys.path.insert(0, str(folder))
    with users_code(f"Task {reference!r} cannot be loaded"):
        try:
            if place.endswith(".py"):
                spec = importlib.util.spec_from_file_location(name, path)
                assert spec is not None
                assert spec.loader is not None
                module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up
                spec.loader.exec_module(module)
            else:
                module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise ScenarioError(
                f"Task {reference!r} cannot be loaded: there is no module {error.name!r}. Install it, or run the command "
                "where it is."
            ) from None
    if not hasattr(module, attribute):
        functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ScenarioError(
            f"{place} has no {attribute!r}.{did_you_mean(attribute, functions)} Name the function that returns the task."
        )
    found = getattr(module, attribute)
    if isinstance(found, Task):
        made: Task = found
        return lambda: made
    if not callable(found):
        raise ScenarioError(f"{reference!r} is neither a function that returns a Task, nor a Task.")
    return found  # type: ignore[no-any-return]


def option_names(name: str) -> tuple[str, ...]:
    """Return the options that a task's function names."""
    named = inspect.signature(_find(name)).parameters.values()
    return tuple(one.name for one in named if one.kind is not inspect.Parameter.VAR_KEYWORD)


def _find(name: str) -> Callable[..., Task]:
    if name in _registered:
        return _registered[name]
    if is_reference(name):
        key = absolute(name)
        if key not in _imported:
            _imported[key] = _import(name)
        return _imported[key]
    if name.endswith(".py"):
        raise ScenarioError(
            f"{name!r} names a file. Name the function in it that returns the task, like {name}:make_task."
        )
    for point in entry_points(group=ENTRY_POINTS, name=name):
        try:
            function = point.load()
        except Exception as error:
            owner = point.dist.name if point.dist else "another package"
            raise ScenarioError(f"Task {name!r} of {owner} ({point.value}) cannot be loaded: {error!r}.") from error
        if not callable(function):
            raise ScenarioError(f"Task {name!r} ({point.value}) is not a function that returns a Task.")
        _registered[name] = function
        return _registered[name]
    raise ScenarioError(f"There is no task {name!r}.{_hint(name, names())} Known: {', '.join(names())}.")


def _hint(name: str, known: Sequence[str] | Mapping[str, object]) -> str:
    return did_you_mean(name.replace("-", "_"), known, cutoff=0.5)


def _task(
    name: str, images: Images, scale: Scale, clients: int, kind: Kind, beta: float, seed: int, model: str,
    devices_per_client: int, data: str | Path | None = None,
) -> Task:  # fmt: skip
    channels, size = images.train_x.shape[1:3]
    make_model = maker(model, channels=channels, size=size)
    if devices_per_client < 0:
        raise ScenarioError(f"devices_per_client is {devices_per_client}; give the number of devices, or 0 for none.")
    if clients >= 1 and clients * devices_per_client > len(images.train_y):
        raise ScenarioError(
            f"{clients} clients with devices_per_client={devices_per_client} have more devices than there are samples "
            f"({len(images.train_y)}). Use fewer."
        )
    # Every device needs a sample, so request that many from the partition.
    least = max(devices_per_client, usual_least(len(images.train_y), clients)) if devices_per_client else None
    parts = split(images.train_y, clients, kind=kind, beta=beta, min_samples=least, seed=seed)
    if devices_per_client:
        rng = stream(seed, _DEVICE_STREAM)
        parts = tuple(rng.permutation(part) for part in parts)
    x, y = scale(images.train_x[np.concatenate(parts)]), torch.from_numpy(images.train_y[np.concatenate(parts)])
    ends = np.cumsum([len(part) for part in parts])
    # Slices of one tensor: clients and devices need no extra memory.
    rows = [slice(end - len(part), end) for part, end in zip(parts, ends, strict=True)]
    held = tuple(Samples(x=x[row], y=y[row]) for row in rows)
    test = Samples(x=scale(images.test_x), y=torch.from_numpy(images.test_y))
    record: dict[str, object] = {
        "task": name,
        "clients": clients,
        "partition": kind,
        "beta": beta if kind in ("dirichlet", "quantity") else None,
        "seed": seed,
        "model": model,
        "devices_per_client": devices_per_client,
        # Absolute, since a run may be resumed from another working directory.
        "data": None if data is None else str(Path(data).expanduser().absolute()),
        "scale": {"top": scale.top, "mean": list(scale.mean), "deviation": list(scale.deviation)},
        "samples": [len(part) for part in parts],
        "label_counts": label_counts(parts, images.train_y).tolist(),
    }
    return Task(
        name=name, clients=held, test=test, model=make_model, client_tests=_client_tests(parts, images, test, seed),
        devices=tuple(_devices(samples, devices_per_client, i) for i, samples in enumerate(held) if devices_per_client),
        record=record,
    )  # fmt: skip


def _devices(samples: Samples, count: int, client: int) -> tuple[Samples, ...]:
    """Split a client's shuffled samples into equal parts (within one)."""
    if len(samples) < count:
        raise ScenarioError(
            f"Client number {client + 1} has {len(samples)} samples, too few for devices_per_client={count}. "
            "Use fewer devices or clients, or a larger beta."
        )
    return tuple(
        Samples(x=x, y=y) for x, y in zip(samples.x.tensor_split(count), samples.y.tensor_split(count), strict=True)
    )


def _client_tests(parts: Partition, images: Images, test: Samples, seed: int) -> tuple[Samples, ...]:
    """Return up to 1000 test samples for each client, in its own proportions of labels.

    No client has a sample twice; clients share samples, since there are too few to divide.
    """
    rng = stream(seed, _CLIENT_TEST_STREAM)
    classes = np.arange(int(images.train_y.max()) + 1)
    by_class = [np.flatnonzero(images.test_y == label) for label in classes]
    there = np.array([len(members) for members in by_class])
    tests = []
    for counts in label_counts(parts, images.train_y):
        shares = counts / counts.sum()
        held = shares > 0
        most = min(_MOST_CLIENT_TESTS, int(np.min(there[held] / shares[held])))
        exact = shares * most
        wanted = np.floor(exact).astype(np.int64)
        # Largest remainders, so that the total is right; `most` leaves enough samples in every class.
        for label in np.argsort(wanted - exact, kind="stable")[: most - int(wanted.sum())]:
            wanted[label] += 1
        wanted = np.minimum(wanted, there)
        chosen = np.sort(np.concatenate([rng.permutation(by_class[label])[: wanted[label]] for label in classes]))
        index = torch.from_numpy(chosen)
        tests.append(Samples(x=test.x[index], y=test.y[index]))
    return tuple(tests)
