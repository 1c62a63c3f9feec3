"""Export of what `fit` returned, without a run folder and without names."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from torch import nn

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
