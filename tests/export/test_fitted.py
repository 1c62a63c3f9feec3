"""Export of what `fit` returned, without a run folder and without names."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

import anybit
from anybit.api import Fitted
from anybit.errors import Rejected
from anybit.export import exporting, report
from anybit.federated import variants
from anybit.files.safetensors import load


def fit(variant: variants.Variant, rounds: int) -> Fitted:
    draw = np.random.default_rng(0)
    labels = draw.integers(4, size=200)
    inputs = (draw.normal(size=(4, 8))[labels] * 2 + draw.normal(size=(200, 8))).astype(np.float32)
    clients = [(inputs[i:i + 30], labels[i:i + 30]) for i in range(0, 150, 30)]
    return anybit.fit(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), clients, (inputs[150:], labels[150:]),
                      variant, rounds=rounds, cohort=5, server=anybit.ServerOptions(lr=0.02))


@pytest.fixture(scope="module")
def fitted() -> Fitted:
    return fit(variants.mqat(), 30)


def test_artifacts_score_what_the_training_scored(fitted: Fitted, tmp_path: Path) -> None:
    fitted.model.train()
    artifacts = fitted.export(tmp_path, ["W8", "W2", "W8A8"])
    assert [a.file for a in artifacts] == ["model.w8.onnx", "model.w2.onnx", "model.wa8.onnx"]
    for artifact in artifacts:
        assert (tmp_path / artifact.file).stat().st_size == artifact.bytes
        assert artifact.verdict.agreement == 1
        assert artifact.verdict.artifact == fitted.scores[artifact.width].metric
    assert fitted.model.training, "the model is left as it was"
    assert json.loads((tmp_path / "export.json").read_text())["steps"].startswith("the table of the training; activations")
    card = (tmp_path / "README.md").read_text()
    assert "# Sequential, mqat" in card
    assert "Data: `own data` (150 training and 50 test examples)" in card
    trained, exported = (card.partition(f"{what} with ")[2].split()[:2] for what in ("Trained", "Exported"))
    assert trained[0] == exported[0] == "anybit"
    assert trained[1].rstrip(":") == exported[1].rstrip(".")


def test_as_c(fitted: Fitted, tmp_path: Path) -> None:
    for artifact in fitted.export(tmp_path, ["W2", "W8A8"], "c"):
        assert artifact.verdict.artifact == fitted.scores[artifact.width].metric
        assert {f"model.{artifact.width.lower()}.{kind}" for kind in "ch"} == {artifact.file, *artifact.files}


def test_another_model_in_the_same_folder_is_said(fitted: Fitted, tmp_path: Path) -> None:
    fitted.export(tmp_path, ["W8", "W4"], "archive")
    other = fit(variants.mqat(), 31)
    with pytest.warns(anybit.AnybitWarning, match=r"still holds model\.w8\.safetensors of another model: remove"):
        other.export(tmp_path, ["W4"], "archive")


def test_no_width_is_said(fitted: Fitted, tmp_path: Path) -> None:
    with pytest.raises(anybit.AnybitError, match=r"no width is given: name some, e\.g\. W4"):
        fitted.export(tmp_path / "out", [])
    assert not (tmp_path / "out").exists()


def test_bytes_are_scaled_before_mean_and_deviation(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 256, size=(40, 8)).astype(np.uint8), np.arange(40) % 4
    pipeline = anybit.Pipeline(mean=(0.5,) * 8, std=(0.25,) * 8)
    found = anybit.fit(nn.Sequential(nn.Linear(8, 4)), [(x, y)], (x, y), rounds=1, pipeline=pipeline)
    found.export(tmp_path, ["W8"], min_accuracy=0)
    model = onnx.load(str(tmp_path / "model.w8.onnx"))
    facts = {entry.key: entry.value for entry in model.metadata_props}
    assert (facts["scale"], facts["mean"]) == ("1/255", str([0.5] * 8))


class Stairs(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.div(x, 0.125, rounding_mode="floor") / 8


def test_a_rounded_quotient_is_not_a_quotient(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(40, 8)).astype(np.float32), np.arange(40) % 4
    found = anybit.fit(nn.Sequential(nn.Linear(8, 8), Stairs(), nn.Linear(8, 4)), [(x, y)], (x, y), rounds=1)
    with pytest.raises(anybit.AnybitError, match=r"the C export does not round quotients \(rounding_mode\)"):
        found.export(tmp_path, ["W8"], "c", min_accuracy=0)
    with pytest.warns(anybit.AnybitWarning, match=r"no graph, so that no reader runs it: .*does not round quotients"):
        found.export(tmp_path, ["W8"], "archive", min_accuracy=0)


def test_the_grid_is_the_variants_choice(tmp_path: Path) -> None:
    """carousel trains weights on the centred grid where nobody asks for another."""
    fitted = fit(variants.carousel(), 10)
    for artifact in fitted.export(tmp_path, ["W4", "W2"], "archive"):
        assert artifact.verdict.artifact == fitted.scores[artifact.width].metric
    packed = json.loads(load(tmp_path / "model.w2.safetensors")[1]["packed"])
    assert {entry["low"] for entry in packed.values()} == {-1.5}


def test_other_runtimes_and_what_is_rejected(fitted: Fitted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (archive,) = fitted.export(tmp_path, ["W3"], "archive")
    assert archive.verdict.artifact == fitted.scores["W3"].metric
    wrong = archive.verdict._replace(problem="computes something else")
    monkeypatch.setattr(exporting, "verdict", lambda *_: wrong)
    with pytest.raises(Rejected, match=r"model\.w4\.safetensors.*computes something else"):
        fitted.export(tmp_path, ["W4"], "archive")
    assert report.refuse([archive]) is None
