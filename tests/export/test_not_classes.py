"""Artifacts of models that do not classify are verified by their outputs, and reported as what they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import anybit
from anybit.errors import Rejected
from anybit.export import exporting
from anybit.export.agreement import relative_error, within
from anybit.federated.metrics import LOSSES

pytestmark = pytest.mark.artifacts

RUNTIMES = [("W8", "onnx"), ("W4A8", "onnx"), ("WA2", "onnx"), ("W2", "archive")]


class Flat(nn.Module):
    """A regressor with outputs (N,)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x).squeeze(1)
        return out


def fitted(model: nn.Module, y: np.ndarray, x: np.ndarray, **options: Any) -> anybit.Fitted:
    return anybit.fit(model, [(x[:40], y[:40])], (x[40:], y[40:]), rounds=3, cohort=1,
                      client=anybit.ClientOptions(lr=0.05), **options)


@pytest.fixture(scope="module")
def regressor() -> anybit.Fitted:
    x = np.random.default_rng(0).normal(size=(90, 3)).astype(np.float32)
    return fitted(Flat(), 20 + x.sum(1), x, loss="mse", metric=anybit.Metric(LOSSES["mae"], better="lower", unit="°C"))


@pytest.mark.parametrize(("width", "runtime"), RUNTIMES)
def test_a_regressor_is_verified_by_its_outputs(regressor: anybit.Fitted, tmp_path: Path, width: str, runtime: Any) -> None:
    (artifact,) = regressor.export(tmp_path, [width], runtime)
    assert artifact.verdict.error is not None
    assert artifact.verdict.error < 0.05
    assert artifact.verdict.agreement > 0.9
    report, card = json.loads((tmp_path / "export.json").read_text()), (tmp_path / "README.md").read_text()
    assert (report["metric"], report["better"], report["unit"]) == ("mae", "lower", "°C")
    assert "classification" not in card
    assert "class" not in card
    assert "| mae (°C), lower is better |" in card
    assert "Output: numbers (batch)." in card


@pytest.mark.parametrize("width", ["W8", "WA2"])
@pytest.mark.parametrize("wrong", [lambda right: right[torch.randperm(len(right))], lambda right: torch.randn_like(right),
                                   lambda right: right.mean().expand_as(right), lambda right: right + 0.5,
                                   lambda right: right * torch.nan])
def test_other_outputs_are_rejected(regressor: anybit.Fitted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: str,
                                    wrong: Any) -> None:
    right = exporting.onnx_outputs
    monkeypatch.setattr(exporting, "onnx_outputs", lambda path, subject: wrong(right(path, subject)))
    with pytest.raises(Rejected, match="relative error of its outputs"):
        regressor.export(tmp_path, [width])


def test_segmentation(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(50, 1, 6, 6)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 1))
    result = fitted(model, y, x, metric="iou")
    assert 0 <= result.scores["W4"].metric <= 100
    artifacts = result.export(tmp_path, ["W8", "WA8"])
    assert all(a.verdict.agreement > 0.99 for a in artifacts)
    assert [a.verdict.error is None for a in artifacts] == [False, True], "decisions judge rounded activations"
    assert artifacts[0].verdict.artifact == pytest.approx(result.scores["W8"].metric, abs=0.5)
    card = (tmp_path / "README.md").read_text()
    assert "pipeline_tag: image-segmentation" in card
    assert "one score per class and position" in card


def test_many_labels(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    result = fitted(nn.Sequential(nn.Linear(4, 3)), (x[:, :3] > 0).astype(np.int64), x, loss="bce_with_logits",
                    metric="binary_accuracy")
    (artifact,) = result.export(tmp_path, ["W4"])
    assert artifact.verdict.error is not None
    assert artifact.verdict.artifact == pytest.approx(result.scores["W4"].metric)


def test_the_error_is_relative_to_the_deviation() -> None:
    expected = torch.tensor([99., 101.])
    assert relative_error(torch.tensor([100., 100.]), expected) == 1
    assert relative_error(torch.tensor([99.1, 101.1]), expected) == pytest.approx(0.1, rel=1e-4)
    assert within(torch.tensor([99., 102.]), expected, 0.5) == 0.5
    constant = torch.full((3,), 7.0)
    assert relative_error(constant, constant) == 0
    assert relative_error(torch.zeros(3), torch.zeros(3)) == 0
    assert relative_error(torch.ones(3), torch.zeros(3)) > 1e6


@pytest.mark.parametrize("mask", [-torch.inf, -1e9, torch.finfo(torch.float16).min, torch.finfo(torch.float32).min])
def test_masks_differ_by_nothing(mask: float) -> None:
    """A class that is always masked, and one that is masked for one example: 49, 51 deviate by 1, whatever is beside."""
    expected = torch.tensor([[mask, 49., mask], [mask, 51., 49.], [mask, 50., 51.]])
    result = torch.tensor([[mask, 50., mask], [mask * 1.01, 50., 50.], [mask, 50., 50.]])
    assert relative_error(expected, expected) == 0
    assert relative_error(result, expected) == pytest.approx(1)
    assert within(expected, expected, 0.5) == 1
    for other in (0., torch.inf, torch.nan):
        assert not relative_error(torch.full_like(result, other), expected) <= 1e4
        assert within(torch.full_like(result, other), expected, 0.5) == 0


def test_random_outputs_of_a_classifier_at_chance_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Class 3, which all examples have, is never chosen: not by the model, and not by chance."""
    x, model = np.random.default_rng(0).normal(size=(90, 3)).astype(np.float32), nn.Sequential(nn.Linear(3, 4))
    with torch.no_grad():
        model[0].bias[3] = -100
    chance = fitted(model, np.full(90, 3), x)
    assert chance.scores["W8"].metric == 0
    random = torch.cat([torch.randn(50, 3, generator=torch.Generator().manual_seed(0)), torch.full((50, 1), -100.0)], 1)
    assert chance.export(tmp_path / "good", ["W8"])[0].verdict.agreement == 1
    monkeypatch.setattr(exporting, "onnx_outputs", lambda path, subject: random)
    with pytest.raises(Rejected, match=r"it makes \d\d% of the fake-quant model's decisions, fewer than 90%"):
        chance.export(tmp_path / "random", ["W8"])
