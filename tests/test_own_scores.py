"""What fit returns says of itself what the evaluation said: on its own grid, without dropout, from bytes to files."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import anybit
from anybit.errors import DataError, RunError
from anybit.files.verification import verify

draw = np.random.default_rng(0)
LABELS = draw.integers(3, size=160)
IMAGES = np.clip(draw.normal(90, 25, (160, 1, 6, 6)) + 40 * LABELS[:, None, None, None], 0, 255).astype(np.uint8)
CLIENTS = [(IMAGES[i:120:4], LABELS[i:120:4]) for i in range(4)]
TEST = IMAGES[120:], LABELS[120:]


@pytest.fixture(scope="module")
def fitted() -> anybit.Fitted:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(64, 3))
    return anybit.fit(model, CLIENTS, TEST, anybit.carousel(), rounds=8, cohort=4, client=anybit.ClientOptions(lr=0.1),
                      server=anybit.ServerOptions(lr=0.01),
                      compute=anybit.ComputeOptions(convolution="no-onednn"),  # not what a process has by itself
                      evaluation=anybit.EvaluationOptions(sites=("W",), bits=(32, 4, 2)))


def test_evaluations_after_the_training_are_on_its_own_grid(fitted: anybit.Fitted) -> None:
    assert fitted.config.sites.weight_grid == "centred"
    assert fitted.evaluate(["W4", "W2"]) == {width: fitted.scores[width] for width in ("W4", "W2")}
    assert fitted.evaluate(["W2"], "mse")["W2"].loss == fitted.evaluation["grid"]["mse"]["W2"]["loss"]
    by_table = anybit.evaluate(fitted.model, TEST, ["W2"], steps="table", table=fitted.steps)
    assert by_table["W2"].loss == pytest.approx(fitted.scores["W2"].loss)
    other = anybit.evaluate(fitted.model, TEST, ["W2"], steps="table", table=fitted.steps, sites=anybit.SiteOptions())
    assert other["W2"].loss != pytest.approx(fitted.scores["W2"].loss, rel=1e-3)


def test_a_trained_model_draws_no_dropout(fitted: anybit.Fitted, tmp_path: Path) -> None:
    x = torch.from_numpy(TEST[0]).float() / 255
    assert torch.equal(fitted.model(x), fitted.model(x))
    given = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(36, 3))
    anybit.fit(given, CLIENTS, TEST, rounds=1, path=tmp_path / "run")
    model = anybit.Run.load(tmp_path / "run", model=given).model()
    assert torch.equal(model(x), model(x))


def test_files_of_models_of_bytes_say_how_these_are_scaled(fitted: anybit.Fitted, tmp_path: Path) -> None:
    import onnx

    fitted.export(tmp_path / "onnx", ["W8"], min_accuracy=0)
    metadata = {entry.key: entry.value for entry in onnx.load(tmp_path / "onnx/model.w8.onnx").metadata_props}
    assert metadata["scale"] == "1/255"
    assert "scaled to [0, 1] (bytes / 255)" in (tmp_path / "onnx/README.md").read_text()
    if shutil.which("cc"):
        fitted.export(tmp_path / "c", ["W8"], "c", min_accuracy=0)
        assert "scaled to [0, 1] (bytes / 255)" in (tmp_path / "c/model.w8.h").read_text()


def test_an_export_replaces_nothing_of_others_and_is_verified_file_by_file(fitted: anybit.Fitted, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    with pytest.raises(RunError, match=r"README\.md is not of an export, and would be replaced"):
        fitted.export(tmp_path, ["W8"], "archive", min_accuracy=0)
    (tmp_path / "README.md").unlink()
    (artifact,) = fitted.export(tmp_path, ["W8"], min_accuracy=0)
    fitted.export(tmp_path, ["W8"], min_accuracy=0)
    file = tmp_path / artifact.file
    assert verify(file) == {file.name: "ok"}
    file.write_bytes(file.read_bytes()[:-1])
    assert verify(file) == {file.name: "damaged"}
    with pytest.raises(RunError, match="give the folder of the run, sweep or export"):
        verify(tmp_path / "export.json")


@pytest.mark.parametrize(("targets", "said"), [
    (np.eye(3)[LABELS], r"one-hot, give y\.argmax\(1\)"), (LABELS[:, None], r"give y\[:, 0\]"),
    (LABELS.astype(np.float32), r"these are float32: classes are y\.astype\(int\)")])
def test_labels_that_are_none_are_told_what_to_become(targets: np.ndarray, said: str) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
    with pytest.raises(DataError, match=said):
        anybit.fit(model, [(IMAGES[:120], targets[:120])], (IMAGES[120:], targets[120:]), rounds=1)
