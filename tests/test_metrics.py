"""Losses and metrics: one value per example, checked before the first round, with a direction and a unit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import anybit
from anybit.errors import ConfigError
from anybit.federated.metrics import LOSSES, METRICS, Meaning, Metric, meaning, meaning_in


def regression(outputs: int = 1, **options: Any) -> anybit.Fitted:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(40, 3)).astype(np.float32)
    y = x.sum(1)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, outputs))
    return anybit.fit(model, [(x[:15], y[:15]), (x[15:30], y[15:30])], (x[30:], y[30:]), rounds=1, cohort=2,
                      **{"loss": "mse", **options})


def test_built_in_values() -> None:
    scores, labels = torch.tensor([[1., 3, 2], [5, 1, 0]]), torch.tensor([1, 2])
    assert METRICS["accuracy"](scores, labels).tolist() == [100, 0]
    assert METRICS["top5"](scores, labels).tolist() == [100, 100]
    one, flat = torch.tensor([[1.], [5.]]), torch.tensor([3., 4.])
    assert LOSSES["mse"](one, flat).tolist() == [4, 1], "(N, 1) and (N,) are the same numbers"
    assert LOSSES["mae"](one, flat).tolist() == [2, 1]
    assert METRICS["binary_accuracy"](torch.tensor([[-1., 2, 3, 4]]), torch.tensor([[0, 1, 0, 1]])).tolist() == [75]
    zero = torch.zeros(1, 2)
    assert LOSSES["bce_with_logits"](zero, torch.tensor([[0, 1]])).tolist() == pytest.approx([np.log(2)])


def test_pixels_are_averaged() -> None:
    # Two classes on 1 × 4 pixels: predicted 0 0 1 1, wanted 0 1 1 1.
    scores = torch.tensor([[1., 1, 0, 0], [0, 0, 1, 1]]).reshape(1, 2, 1, 4)
    wanted = torch.tensor([[[0, 1, 1, 1]]])
    assert METRICS["accuracy"](scores, wanted).tolist() == [75]
    assert METRICS["iou"](scores, wanted).tolist() == pytest.approx([100 * (1 / 2 + 2 / 3) / 2])
    assert LOSSES["cross_entropy"](scores, wanted).shape == (1,)


def test_iou_leaves_out_what_has_no_label() -> None:
    """Predicted 0 0 1 1, labels 0 1 1 and none: class 0 has 1/2 and class 1, too, where the fourth would make it 1/3."""
    scores = torch.tensor([[[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]]])
    assert METRICS["iou"](scores, torch.tensor([[0, 1, 1, -100]])).tolist() == pytest.approx([50.0])
    assert METRICS["iou"](scores, torch.tensor([[0, 0, -100, -100]])).tolist() == [100.0]


def batch_mean(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.l1_loss(outputs.squeeze(1), targets)


def broadcast(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).abs()


def broadcast_mean(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).abs().mean(1)


@pytest.mark.parametrize("what", ["loss", "metric"])
@pytest.mark.parametrize(("function", "message"), [
    (batch_mean, r"returned shape \(\).*reduction='none'"),
    (broadcast, r"returned shape \(4, 4\) for outputs of shape \(4, 1\) and targets of shape \(4,\): .* were broadcast"),
    (broadcast_mean, "gives an example another value when others are beside it"),
    (lambda outputs, targets: 3.0, "returned a float"),
    (lambda outputs, targets: (outputs @ targets), "fails on outputs of shape"),
    (3, "is a int: give a function"), ("nothing", "unknown .*known:")])
def test_a_wrong_function_is_refused_before_the_first_round(what: str, function: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        regression(**{what: function})
    assert what in str(error.value)


def test_evaluate_checks_the_metric_too() -> None:
    x, y = torch.randn(12, 3), torch.randn(12)
    with pytest.raises(ConfigError, match="the two were broadcast"):
        anybit.evaluate(nn.Sequential(nn.Linear(3, 1)), (x, y), ["FP32"], loss="mse", metric=broadcast)
    score = anybit.evaluate(nn.Sequential(nn.Linear(3, 1)), (x, y), ["FP32"], loss="mse")["FP32"]
    assert score.metric == score.loss


def test_without_a_metric_it_is_accuracy_or_the_loss() -> None:
    fitted = regression()
    assert (fitted.evaluation["metric"], fitted.evaluation["better"]) == ("mse", "lower")
    assert all(score.metric == score.loss for score in fitted.scores.values())
    x, y = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32), np.arange(20) % 2
    smooth = anybit.fit(nn.Sequential(nn.Linear(3, 2)), [(x, y)], (x, y), rounds=1, cohort=1, loss=smoothed)
    assert smooth.evaluation["metric"] == "accuracy"
    assert "better" not in smooth.evaluation
    assert (smooth.config.loss, smooth.config.metric) == (f"{__name__}:smoothed", "accuracy")


def smoothed(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none", label_smoothing=0.1)


def test_accuracy_of_numbers_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"accuracy needs scores .*use metric 'mae'"):
        regression(metric="accuracy")


def test_direction_and_unit_are_recorded(tmp_path: Path) -> None:
    metric = anybit.Metric(LOSSES["mae"], better="lower", unit="°C")
    regression(metric=metric, path=tmp_path / "run")
    stored = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert meaning_in(stored) == Meaning("mae", "lower", "°C")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["loss"], config["metric"]) == ("mse", "mae")


def test_a_plain_function_has_no_direction() -> None:
    assert meaning(batch_mean) == Meaning("batch_mean", None, "")
    mine = Metric(lambda outputs, targets: outputs, "accuracy")
    assert meaning_in(mine.meaning.recorded()) == Meaning("accuracy", None, ""), "not the accuracy of the same name"
    assert meaning_in({"metric": "accuracy"}) == Meaning("accuracy", "higher", "%")


def test_infinite_values_are_values() -> None:
    def infinite(outputs: Tensor, targets: Tensor) -> Tensor:
        return torch.full_like(targets, torch.inf)
    assert regression(metric=infinite).scores["FP32"].metric == np.inf


@pytest.mark.parametrize("wrong", [{"better": "more"}, {"unit": 3}, {"function": 3}])
def test_a_metric_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="Metric"):
        Metric(**{"function": batch_mean, **wrong})
