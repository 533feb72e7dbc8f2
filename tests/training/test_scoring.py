"""Metrics against scikit-learn's, and every way in which shapes can be wrong, with a sentence."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as reference
from small_tasks import plan_of
from torch import Tensor, nn
from torch.nn import functional as F

from slackwater.errors import ScenarioError
from slackwater.training.loop import train
from slackwater.training.scoring import Metric, Scorer, auroc, f1, resolved
from slackwater.training.task import Samples, Task

CPU = torch.device("cpu")
BCE = F.binary_cross_entropy_with_logits


def scored(metric: Any, outputs: Tensor, targets: Tensor, loss: Any = F.cross_entropy) -> float:
    scorer = Scorer(resolved(metric), loss, CPU)
    for part in range(0, len(outputs), 7):  # batches, as an evaluation has them
        scorer.add(outputs[part : part + 7], targets[part : part + 7])
    return scorer.value(0.5)


@pytest.mark.parametrize("classes", [2, 4])
def test_the_metrics_are_those_of_scikit_learn(classes: int) -> None:
    rng = torch.Generator().manual_seed(classes)
    outputs, y = torch.randn(90, classes, generator=rng).double(), torch.randint(0, classes, (90,), generator=rng)
    guessed = outputs.argmax(dim=1)
    assert scored("accuracy", outputs, y) == pytest.approx(reference.accuracy_score(y, guessed))
    average = "binary" if classes == 2 else "macro"
    assert scored("f1", outputs, y) == pytest.approx(reference.f1_score(y, guessed, average=average))
    shares = outputs.softmax(dim=1)
    wanted = reference.roc_auc_score(y, shares[:, 1] if classes == 2 else shares, multi_class="ovr")
    assert scored("auroc", outputs, y) == pytest.approx(wanted)


def test_auroc_counts_ties_half() -> None:
    scores, y = torch.tensor([0.0, 0.0, 1.0, 1.0, 2.0]), torch.tensor([0.0, 1.0, 0.0, 1.0, 1.0])
    assert auroc(scores, y) == pytest.approx(reference.roc_auc_score(y, scores))
    assert math.isnan(auroc(scores, torch.ones(5)))


@pytest.mark.parametrize("shape", [(50,), (50, 1)])
def test_one_logit_is_a_binary_classifier(shape: tuple[int, ...]) -> None:
    """The old accuracy compared every output with every target, and showed 6300 %."""
    rng = torch.Generator().manual_seed(0)
    outputs = torch.randn(shape, generator=rng)
    y = (torch.rand(shape, generator=rng) > 0.4).float()
    wanted = reference.accuracy_score(y.reshape(-1), outputs.reshape(-1) > 0)
    assert scored("accuracy", outputs, y, BCE) == pytest.approx(wanted)
    assert scored("auroc", outputs, y, BCE) == pytest.approx(
        reference.roc_auc_score(y.reshape(-1), outputs.reshape(-1))
    )
    assert scored("accuracy", outputs.sigmoid(), y, nn.BCELoss()) == pytest.approx(wanted)


def test_accuracy_of_sequences_is_a_share_of_all_positions() -> None:
    outputs, y = torch.zeros(4, 3, 6), torch.zeros(4, 6, dtype=torch.int64)
    outputs[:, 1] = 1.0
    y[0] = 1
    assert scored("accuracy", outputs, y) == 0.25


def test_regression_and_perplexity() -> None:
    outputs, y = torch.tensor([[1.0], [2.0], [6.0]]), torch.tensor([[1.0], [4.0], [2.0]])
    assert scored("mae", outputs, y) == pytest.approx(2.0)
    assert scored("RMSE", outputs, y) == pytest.approx(math.sqrt(20 / 3))
    assert scored("perplexity", outputs, y) == pytest.approx(math.exp(0.5))


def test_f1_without_a_positive_is_0_as_in_scikit_learn() -> None:
    zeros = torch.zeros(5, dtype=torch.int64)
    assert f1(zeros, zeros) == reference.f1_score(zeros, zeros, zero_division=0) == 0.0


def test_ones_own_metric_and_its_mistakes() -> None:
    def span(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.max() - outputs.min()) * len(targets)

    outputs, y = torch.tensor([1.0, 3.0]), torch.tensor([0.0, 1.0])
    assert scored(span, outputs, y) == 4.0
    own = Metric(name="range", compute=span, higher_is_better=False, unit="mm")
    assert scored(own, outputs, y) == 4.0
    assert resolved(own).label.unit == "mm"  # type: ignore[union-attr]
    assert resolved(lambda outputs, targets: 1.0).name == "score"  # type: ignore[union-attr]
    with pytest.raises(ScenarioError, match=r"'vector' returns \[2\] for outputs \[2\] and targets \[2\].* one number"):
        scored(Metric(name="vector", compute=lambda o, t: o), outputs, y)
    with pytest.raises(ScenarioError, match=r"There is no metric 'acuracy'\. Did you mean 'accuracy'"):
        resolved("acuracy")
    with pytest.raises(ScenarioError, match="cannot be called 'loss'"):
        Metric(name="loss", compute=span)
    with pytest.raises(ScenarioError, match="metric must be a name"):
        resolved(3)  # type: ignore[arg-type]


def task(y: Tensor, outputs: int, loss: Any = F.cross_entropy, metric: Any = "accuracy", **changes: Any) -> Task:
    x = torch.linspace(-1, 1, len(y))[:, None]
    held = Samples(x=x, y=y)
    fields: dict[str, Any] = {"model": lambda: nn.Linear(1, outputs), "loss": loss, "metric": metric}
    return Task(name="t", clients=[held], test=held, **fields | changes)


ONE = plan_of(np.ones((1, 2)))
FAST: dict[str, Any] = {"local_steps": 2, "threads": 1}
BINARY = (torch.arange(64) % 2).float()


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        (lambda: task(BINARY, 1, BCE), r"returns \[2, 1\] for targets \[2\]\. PyTorch would compare .* y\.unsqueeze\(1\)"),
        (lambda: task(BINARY.long(), 1), "one output, for which cross-entropy is always 0"),
        (lambda: task(torch.rand(64, 1), 1, F.mse_loss), "accuracy needs classes, but a target .* metric='rmse'"),
        (lambda: task(torch.rand(64, 1), 1, F.mse_loss, "f1"), "F1 needs classes"),
        (lambda: task(torch.rand(64, 2), 3, lambda o, t: o.mean(), "rmse"), r"\[2, 3\] for targets \[2, 2\]; RMSE needs"),
        (lambda: task(BINARY.long(), 2, lambda o, t: o), r"loss returns \[2, 2\]; it must return one number"),
        (lambda: task(BINARY[:, None].long(), 2, lambda o, t: o.mean()), r"Accuracy needs outputs \[n, classes\]"),
        (lambda: task(torch.zeros(64).long(), 2, metric="auroc"), "AUROC needs two classes"),
        (lambda: task(BINARY.long(), 2, step=lambda s: s.module(s.x)), r"step returns \[2, 2\]"),
        (lambda: task(BINARY.int(), 2), r"loss fails on outputs \[2, 2\] and targets \[2\] of torch\.int32"),
        (lambda: task(2 * BINARY[:, None].long(), 1, lambda o, t: o.mean()), "one output separates two classes"),
    ],
)  # fmt: skip
def test_shapes_that_do_not_fit_are_a_sentence_before_training(broken: Any, sentence: str) -> None:
    with pytest.raises(ScenarioError, match=sentence):
        train(ONE, broken(), **FAST)


def test_a_one_logit_model_trains_and_its_accuracy_is_a_share() -> None:
    y = (torch.linspace(-1, 1, 64)[:, None] > 0).float()
    result = train(ONE, task(y, 1, BCE), local_steps=50, lr=1.0, threads=1)
    assert 0.95 <= result.accuracy <= 1.0


def test_a_regression_is_measured_by_its_error() -> None:
    y = 2 * torch.linspace(-1, 1, 64)[:, None]
    result = train(ONE, task(y, 1, F.mse_loss, "rmse"), local_steps=80, threads=1)
    assert result.metric.name == "RMSE"
    assert result.score < 0.1
    assert "RMSE" in repr(result)


def test_a_client_without_both_classes_has_no_auroc_and_is_not_the_worst(tmp_path: Any) -> None:
    y = (torch.linspace(-1, 1, 64)[:, None] > 0).float()
    whole = Samples(x=torch.linspace(-1, 1, 64)[:, None], y=y)
    two = Task(
        name="two", clients=[whole, whole], test=whole, model=lambda: nn.Linear(1, 1), loss=BCE, metric="auroc",
        client_tests=[whole, Samples(x=whole.x[:20], y=whole.y[:20])],
    )  # fmt: skip
    result = train(plan_of(np.ones((2, 2))), two, local_steps=40, lr=1.0, threads=1, out=tmp_path)
    assert result.score == result.worst_client_score == 1.0
    assert math.isnan(result.client_scores["client-2"])
