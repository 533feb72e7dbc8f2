"""The metric of a task: accuracy, AUROC, F1, MAE, RMSE, perplexity, or a function of the user's own.

Binary tasks may have one output, a logit: its sign is the prediction, and its value ranks the samples. With
`nn.BCELoss` the output is a probability, and 0.5 separates the classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from slackwater.errors import ScenarioError
from slackwater.ledger.score import LABELS, MetricLabel
from slackwater.registry import did_you_mean
from slackwater.training.users_code import users_code

Compute = Callable[[Tensor, Tensor], float | Tensor]
_RESERVED = ("loss", "samples")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric of the user's own.

    Args:
        name: Name in every output, such as "sensitivity".
        compute: compute(outputs, targets) of the whole test set, on the CPU, returns the score.
        higher_is_better: Whether a larger score is better.
        unit: Unit of the score, such as "days". "%": the score is a share, and is shown times 100.
    """

    name: str
    compute: Compute
    higher_is_better: bool = True
    unit: str = ""

    def __post_init__(self) -> None:
        if self.name in _RESERVED:
            raise ScenarioError(f"A metric cannot be called {self.name!r}, which every run records besides it.")
        if not callable(self.compute):
            raise ScenarioError(f"The metric {self.name!r} needs compute=, a function of outputs and targets.")
        _ = self.label

    @property
    def label(self) -> MetricLabel:
        """Return name, direction and unit."""
        return MetricLabel(name=self.name, higher_is_better=self.higher_is_better, unit=self.unit)


def resolved(metric: str | Metric | Compute) -> str | Metric:
    """Return the key of a known metric, or the user's own with its label; raise for an unknown name."""
    if isinstance(metric, Metric):
        return metric
    if isinstance(metric, str):
        key = metric.strip().lower()
        if key not in LABELS:
            raise ScenarioError(
                f"There is no metric {metric!r}.{did_you_mean(key, LABELS)} Known: {', '.join(LABELS)}. Or give a "
                "function, or sw.Metric(name=.., compute=.., higher_is_better=..)."
            )
        return key
    if callable(metric):
        name = getattr(metric, "__name__", "score")
        return Metric(name=name if name.isidentifier() else "score", compute=metric)  # a lambda has no name of its own
    raise ScenarioError(f"metric must be a name, a function or a sw.Metric, not {metric!r:.60}.")


def label(metric: str | Metric) -> MetricLabel:
    """Return name, direction and unit of a resolved metric."""
    return LABELS[metric] if isinstance(metric, str) else metric.label


class Scorer:
    """Adds up a metric over the batches of one data set."""

    def __init__(self, metric: str | Metric, loss: object, device: torch.device) -> None:
        self._metric, self._threshold = metric, 0.5 if _of_probabilities(loss) else 0.0
        self._right = torch.zeros((), dtype=torch.int64, device=device)
        self._positions = 0
        self._outputs: list[Tensor] = []
        self._targets: list[Tensor] = []

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Add a batch."""
        if self._metric == "accuracy":
            self._right += torch.count_nonzero(predicted(outputs, targets, self._threshold) == targets)
            self._positions += targets.numel()
        elif self._metric != "perplexity":
            self._outputs.append(outputs.detach().cpu())
            self._targets.append(targets.detach().cpu())

    def value(self, loss: float) -> float:
        """Return the score, NaN where it does not exist; `loss` is the mean over the data set."""
        if self._metric == "accuracy":
            return int(self._right) / max(1, self._positions)
        if self._metric == "perplexity":
            return math.exp(loss) if loss < 700 else math.inf
        outputs, targets = torch.cat(self._outputs), torch.cat(self._targets)
        if isinstance(self._metric, Metric):
            return _own(self._metric, outputs, targets)
        if self._metric == "f1":
            return f1(predicted(outputs, targets, self._threshold), targets)
        if self._metric == "auroc":
            return auroc(outputs, targets)
        apart = (outputs.double().reshape(-1) - targets.double().reshape(-1)).abs()
        return float(apart.mean()) if self._metric == "mae" else float(apart.square().mean().sqrt())


def _own(metric: Metric, outputs: Tensor, targets: Tensor) -> float:
    given = f"outputs {_shape(outputs)} and targets {_shape(targets)}"
    with users_code(f"The metric {metric.name!r} fails on {given}"):
        found = metric.compute(outputs, targets)
    try:
        return float(found)
    except (TypeError, ValueError, RuntimeError):
        what = _shape(found) if isinstance(found, Tensor) else type(found).__name__
        raise ScenarioError(
            f"The metric {metric.name!r} returns {what} for {given}; it must return one number, or float('nan') where there "
            "is none."
        ) from None


def predicted(outputs: Tensor, targets: Tensor, threshold: float = 0.0) -> Tensor:
    """Return the predicted classes in the shape of the targets: the largest output, or whether the only one is above."""
    if _one_output(outputs, targets):
        return (outputs > threshold).reshape(targets.shape).to(targets.dtype)
    return outputs.argmax(dim=1).reshape(targets.shape)


def auroc(outputs: Tensor, targets: Tensor) -> float:
    """Return the area under the ROC curve; ties count half. With more than two classes, the mean of one against the rest.

    NaN if the targets are all of one class.
    """
    flat = targets.reshape(-1)
    if _one_output(outputs, targets):
        return _area(outputs.reshape(-1).double(), flat > 0.5)
    shares = outputs.double().softmax(dim=1)
    if outputs.shape[1] == 2:
        return _area(outputs.double()[:, 1] - outputs.double()[:, 0], flat == 1)
    areas = [_area(shares[:, one], flat == one) for one in range(outputs.shape[1]) if bool((flat == one).any())]
    known = [area for area in areas if not math.isnan(area)]
    return sum(known) / len(known) if known else math.nan


def _area(scores: Tensor, positive: Tensor) -> float:
    """Return the share of pairs of a positive and a negative sample that the scores rank right."""
    above, below = int(positive.sum()), int((~positive).sum())
    if not above or not below:
        return math.nan
    _, group, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    ranks = (counts.cumsum(0) - (counts - 1) / 2)[group]  # the mean rank of equal scores, counted from 1
    return (float(ranks[positive].double().sum()) - above * (above + 1) / 2) / (above * below)


def f1(guessed: Tensor, targets: Tensor) -> float:
    """Return F1 of the class 1 for two classes, else the mean over the classes that occur."""
    guessed, targets = guessed.reshape(-1).long(), targets.reshape(-1).long()
    classes = torch.unique(torch.cat([guessed, targets])).tolist()
    if set(classes) <= {0, 1}:
        classes = [1]
    scores = []
    for one in classes:
        hits = int(((guessed == one) & (targets == one)).sum())
        named = int((guessed == one).sum()) + int((targets == one).sum())
        scores.append(2 * hits / named if named else 0.0)
    return sum(scores) / len(scores)


def check_outputs(told: str, metric: str | Metric, loss: Callable[..., Any], outputs: Any, targets: Tensor) -> Tensor:
    """Return the loss; raise if a model's outputs, the targets, the loss and the metric do not fit together.

    PyTorch would broadcast [n, 1] against [n] to [n, n]: the model trains on nonsense, and "accuracy" exceeds 100 %.

    Args:
        told: Name of the task and whose data it is, as the beginning of the sentence.
        metric: The resolved metric.
        loss: The task's loss function.
        outputs: Of a trial pass over two samples.
        targets: Of these samples.
    """
    _check_shapes(f"{told}: ", metric, loss, outputs, targets)
    shape = _shape(outputs) if isinstance(outputs, Tensor) else type(outputs).__name__
    with users_code(f"{told}: the loss fails on outputs {shape} and targets {_shape(targets)} of {targets.dtype}"):
        value = loss(outputs, targets)
    return check_loss(told, "loss", value)


def _check_shapes(told: str, metric: str | Metric, loss: object, outputs: Any, targets: Tensor) -> None:
    if not isinstance(outputs, Tensor):
        if isinstance(metric, Metric) or metric == "perplexity":
            return
        raise ScenarioError(
            f"{told}the model returns {type(outputs).__name__}, of which {label(metric).name} cannot be computed. Return a "
            "tensor, or use metric='perplexity' or your own sw.Metric."
        )
    shapes = f"the model returns {_shape(outputs)} for targets {_shape(targets)}"
    if outputs.numel() == targets.numel() and outputs.shape != targets.shape and targets.is_floating_point():
        fix = "y = y.unsqueeze(1)" if outputs.dim() > targets.dim() else "y = y.squeeze(1)"
        raise ScenarioError(
            f"{told}{shapes}. PyTorch would compare every output with every target. Give both the same shape: {fix}."
        )
    if _is_cross_entropy(loss) and outputs.dim() > 1 and outputs.shape[1] == 1 and not targets.is_floating_point():
        raise ScenarioError(
            f"{told}the model has one output, for which cross-entropy is always 0. Use "
            "loss=nn.functional.binary_cross_entropy_with_logits with targets of the same shape, or two outputs."
        )
    if metric in ("mae", "rmse") and outputs.shape != targets.shape:
        raise ScenarioError(f"{told}{shapes}; {label(metric).name} needs the same shape.")
    if metric in ("accuracy", "f1", "auroc"):
        _check_classes(told, shapes, str(metric), outputs, targets)


def check_loss(told: str, which: str, value: object) -> Tensor:
    """Return a loss; raise if it is not one number. `which` is the field of the task that returned it."""
    if not isinstance(value, Tensor) or value.numel() != 1:
        shape = _shape(value) if isinstance(value, Tensor) else type(value).__name__
        raise ScenarioError(f"{told}: {which} returns {shape}; it must return one number, the mean over the batch.")
    return value


def _check_classes(told: str, shapes: str, metric: str, outputs: Tensor, targets: Tensor) -> None:
    called = LABELS[metric].name
    if _one_output(outputs, targets):
        if bool((targets > 1).any()):
            raise ScenarioError(
                f"{told}{shapes}: one output separates two classes, but a target is {int(targets.max())}."
            )
        return
    if outputs.dim() < 2 or outputs[:, 0].shape != targets.shape:
        raise ScenarioError(
            f"{told}{shapes}. {called[:1].upper()}{called[1:]} needs outputs [n, classes] for targets [n], or one output for "
            "each target. For others use metric= with your own function."
        )
    if metric == "auroc" and outputs.dim() != 2:
        raise ScenarioError(f"{told}{shapes}; AUROC needs outputs [n, classes] or [n].")


def check_test_set(name: str, metric: str | Metric, targets: Tensor, *, whole: bool) -> None:
    """Raise if the metric does not exist on a test set: accuracy of a regression, or AUROC of one class.

    `whole`: whether the targets are those of the whole set.
    """
    if metric in ("accuracy", "f1", "auroc") and targets.is_floating_point():
        odd = targets[(targets != 0) & (targets != 1)]
        if odd.numel():
            raise ScenarioError(
                f"Task {name!r}: {label(metric).name} needs classes, but a target of the test set is {float(odd[0]):g}. For a "
                "regression use metric='rmse' or 'mae'."
            )
    if metric == "auroc" and whole and len(torch.unique(targets)) < 2:
        raise ScenarioError(f"Task {name!r}: AUROC needs two classes, but all targets of the test set are the same.")


def _one_output(outputs: Tensor, targets: Tensor) -> bool:
    """Return whether the model has one output for each target, so that its sign is the class."""
    return outputs.shape == targets.shape or (outputs.dim() == targets.dim() + 1 and outputs.shape[1:] == (1,))


def _of_probabilities(loss: object) -> bool:
    return isinstance(loss, nn.BCELoss) or loss is nn.functional.binary_cross_entropy


def _is_cross_entropy(loss: object) -> bool:
    return isinstance(loss, nn.CrossEntropyLoss) or loss is nn.functional.cross_entropy


def _shape(tensor: Tensor) -> str:
    return str(list(tensor.shape))
