"""A second export into the same folder: what is still there of the first stays on record."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import anybit
from anybit.errors import RunError
from anybit.export.report import record_page
from anybit.files.verification import verify


@pytest.fixture(scope="module")
def fitted() -> Callable[[int], anybit.Fitted]:
    x = np.random.default_rng(0).normal(size=(24, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(int)

    def made(seed: int) -> anybit.Fitted:
        torch.manual_seed(seed)
        return anybit.fit(nn.Sequential(nn.Linear(4, 2)), [(x, y)], (x, y), rounds=1)
    return made


def files(folder: Path) -> list[str]:
    report: dict[str, Any] = json.loads((folder / "export.json").read_text())
    return [artifact["file"] for artifact in report["artifacts"]]


def test_files_of_other_widths_and_runtimes_stay_known(fitted: Callable[[int], anybit.Fitted], tmp_path: Path) -> None:
    model = fitted(0)
    model.export(tmp_path, ["W8", "W4"], "archive", min_accuracy=0)
    first = json.loads((tmp_path / "export.json").read_text())["artifacts"]
    model.export(tmp_path, ["W4", "W2"], "archive", min_accuracy=0)
    model.export(tmp_path, ["W8"], "c", min_accuracy=0)
    assert set(files(tmp_path)) == {"model.w8.c", "model.w4.safetensors", "model.w2.safetensors", "model.w8.safetensors"}
    assert set(verify(tmp_path).values()) == {"ok"}
    card = (tmp_path / "README.md").read_text()
    assert all(f"| `{name}` |" in card for name in files(tmp_path))
    last = json.loads((tmp_path / "export.json").read_text())["artifacts"]
    assert first[0] in last, "nothing of it is changed"


def test_changed_files_and_those_of_another_model_are_not(fitted: Callable[[int], anybit.Fitted], tmp_path: Path) -> None:
    model = fitted(0)
    model.export(tmp_path, ["W8", "W4"], "archive", min_accuracy=0)
    (tmp_path / "model.w8.safetensors").write_bytes(b"changed")
    (tmp_path / "model.w4.safetensors").unlink()
    model.export(tmp_path, ["W2"], "archive", min_accuracy=0)
    assert files(tmp_path) == ["model.w2.safetensors"]
    with pytest.warns(anybit.AnybitWarning, match=r"still holds model\.w2\.safetensors of another model"):
        fitted(1).export(tmp_path, ["W3"], "archive", min_accuracy=0)
    assert files(tmp_path) == ["model.w3.safetensors"]


def test_files_of_another_model_are_named_until_they_are_gone(fitted: Callable[[int], anybit.Fitted],
                                                              tmp_path: Path) -> None:
    first, second = fitted(0), fitted(1)
    first.export(tmp_path, ["W8"], "archive", min_accuracy=0)
    for width in ("W4", "W3"):
        with pytest.warns(anybit.AnybitWarning, match=r"still holds model\.w8\.safetensors of another model"):
            second.export(tmp_path, [width], "archive", min_accuracy=0)
    others = json.loads((tmp_path / "export.json").read_text())["others"]
    assert list(others) == ["model.w8.safetensors"]
    with pytest.warns(anybit.AnybitWarning, match=r"still holds model\.w3\.safetensors, model\.w4\.safetensors of another"):
        first.export(tmp_path, ["W2"], "archive", min_accuracy=0)
    for name in ("w8", "w2"):
        (tmp_path / f"model.{name}.safetensors").unlink()
    second.export(tmp_path, ["W2"], "archive", min_accuracy=0)  # a warning would be an error
    report = json.loads((tmp_path / "export.json").read_text())
    assert set(report["others"]) == {"model.w4.safetensors", "model.w3.safetensors"}, "its own, and no longer in the card"


@pytest.mark.parametrize("others", [[], "all", {"model.w8.safetensors": "0"}, {"../outside": {"sha256": "0"}}])
def test_others_that_nobody_wrote_are_no_record(others: Any, fitted: Callable[[int], anybit.Fitted], tmp_path: Path) -> None:
    fitted(0).export(tmp_path, ["W8"], "archive", min_accuracy=0)
    report = json.loads((tmp_path / "export.json").read_text())
    (tmp_path / "export.json").write_text(json.dumps({**report, "others": others}))
    fitted(0).export(tmp_path, ["W4"], "archive", min_accuracy=0)
    assert "others" not in json.loads((tmp_path / "export.json").read_text())


def test_the_page_is_on_record_and_stays_there(fitted: Callable[[int], anybit.Fitted], tmp_path: Path) -> None:
    model, page = fitted(0), tmp_path / "web"
    model.export(tmp_path, ["W8"], "archive", min_accuracy=0)
    page.mkdir()
    for name in ("index.html", "model.w8.wasm"):
        (page / name).write_text(name)
    assert verify(tmp_path)["web/index.html"] == "unknown"
    record_page(tmp_path, page)
    model.export(tmp_path, ["W2"], "archive", min_accuracy=0)
    assert set(verify(tmp_path).values()) == {"ok"}
    assert "web/model.w8.wasm" in verify(tmp_path)
    (page / "index.html").write_text("another")
    assert verify(tmp_path)["web/index.html"] == "damaged"
    (page / "model.w8.wasm").unlink()
    record_page(tmp_path, page)
    assert set(verify(tmp_path).values()) == {"ok"}
    assert "web/model.w8.wasm" not in verify(tmp_path)


def test_a_float_model_of_another_export_is_not_vouched_for(fitted: Callable[[int], anybit.Fitted], tmp_path: Path) -> None:
    (tmp_path / "fp32.onnx").write_bytes(b"somebody else's")
    fitted(0).export(tmp_path, ["W8"], "archive", min_accuracy=0)
    assert verify(tmp_path)["fp32.onnx"] == "unknown"
    fitted(0).export(tmp_path, ["W8"], "onnx", min_accuracy=0)
    fitted(0).export(tmp_path, ["W4"], "archive", min_accuracy=0)
    assert verify(tmp_path)["fp32.onnx"] == "ok", "of the same model, and unchanged"


@pytest.mark.parametrize("name", ["../outside", "web/../../outside", "web/", "..", "web/..", "/etc/hostname", "other/file"])
def test_names_that_lead_elsewhere_are_no_record(name: str, fitted: Callable[[int], anybit.Fitted], tmp_path: Path) -> None:
    fitted(0).export(tmp_path, ["W8"], "archive", min_accuracy=0)
    report = json.loads((tmp_path / "export.json").read_text())
    (tmp_path / "export.json").write_text(json.dumps({**report, "sha256": {**report["sha256"], name: "0" * 64}}))
    with pytest.raises(RunError, match="records no digests"):
        verify(tmp_path)


def test_a_folder_may_be_a_link_and_its_page_may_not(fitted: Callable[[int], anybit.Fitted], tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for width in ("W8", "W4"):
        fitted(0).export(tmp_path / "link", [width], "archive", min_accuracy=0)
    assert set(files(tmp_path / "real")) == {"model.w8.safetensors", "model.w4.safetensors"}
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "real/web").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="web"):
        verify(tmp_path / "real")
