"""Ways to write a model that are the user's own: their artifacts are the evaluated model, or one line says why not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anybit.errors import ModelError
from anybit.export.archive import read_archive, write_archive
from anybit.export.c.program import number
from anybit.export.exporting import Exporter
from anybit.export.graph import DEFAULT_OPSET, float_graph
from anybit.export.report import write_report
from anybit.quant.grid import Width
from tests.export.test_c import found, subject_of


class Tied(nn.Module):
    """Two layers of one weight, whose inputs have other ranges."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.second(self.first(x.flatten(1)) * 4))
        return out


class Held(nn.Module):
    def __init__(self, name: str, inner: nn.Module) -> None:
        super().__init__()
        self.name = name
        self.add_module(name, inner)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.get_submodule(self.name)(x)
        return out


class Odd(nn.Module):
    """A convolution and a linear layer, and one odd thing between them."""

    def __init__(self, odd: str) -> None:
        super().__init__()
        self.odd = odd
        self.conv, self.head = nn.Conv2d(1, 3, 3, padding=1), nn.Linear(192 if odd != "border" else 300, 10)
        self.c1 = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("low", torch.tensor(-0.1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x.float() if self.odd == "float" else x)
        if self.odd == "border":
            x = F.max_pool2d(F.pad(x, (2, 2, 2, 2), value=float("-inf")), 3, 1)
        if self.odd == "low":
            x = torch.clamp(x, min=self.low)
        if self.odd == "whole":
            x = (x * 8).int() / 8
        out: Tensor = self.head((x + torch.zeros(x.shape[1:]) if self.odd == "zeros" else x).flatten(1)) * self.c1
        return out


@pytest.mark.parametrize("name", ["model", "net"])
def test_a_module_may_be_called_model(name: str, tmp_path: Path) -> None:
    """Its layers are found by their names: the second of two tied layers is fed by its own site, and has its own cost."""
    torch.manual_seed(0)
    subject = subject_of(Held(name, Tied()))
    write_archive(tmp_path / "m", subject, Width(8, 8))
    _, facts = read_archive(tmp_path / "m")
    fed = [node["site"] for node in facts["graph"] if node["op"] == "quantize"]
    assert fed == [f"{name}.{part}.input_quantizer" for part in ("first", "second", "last")]
    artifact = Exporter(subject, tmp_path).export(Width(4, 8), "c")
    assert artifact.footprint is not None
    assert [layer.name for layer in artifact.footprint.layers if layer.macs] == [f"{name}.{part}"
                                                                                 for part in ("first", "second", "last")]


@pytest.mark.parametrize(("odd", "runtime"), [("float", "onnx"), ("float", "c"), ("float", "archive"), ("zeros", "onnx"),
                                              ("zeros", "archive"), ("c1", "onnx")])
def test_a_forward_may_make_floats_of_its_own(odd: str, runtime: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    artifact = Exporter(subject_of(Odd(odd)), tmp_path).export(Width(3, 32), runtime)  # type: ignore[arg-type]
    assert artifact.verdict.problem == ""
    assert artifact.verdict.error is not None
    assert artifact.verdict.error < 1e-4


def test_c_has_the_largest_number_for_infinity(tmp_path: Path) -> None:
    assert number(float("-inf")) == "-3.40282347e+38f"
    torch.manual_seed(0)
    subject = subject_of(Odd("border"))
    assert found(subject, "W4", tmp_path).isfinite().all()
    assert Exporter(subject, tmp_path).export(Width(4, 32), "c").verdict.problem == ""


@pytest.mark.parametrize(("odd", "why"), [("low", "clamps to numbers"), ("whole", "the model makes int32 of its numbers")])
def test_what_c_does_not_have_is_one_line_and_an_archive_without_a_graph(odd: str, why: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    subject = subject_of(Odd(odd))
    with pytest.raises(ModelError, match=why):
        Exporter(subject, tmp_path).export(Width(4, 32), "c")
    (lacking,) = Exporter(subject, tmp_path).export(Width(4, 32), "archive").known_wrong
    assert why in lacking


def test_a_layer_that_onnx_cannot_have_is_named(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.EmbeddingBag(17, 8), nn.Linear(8, 10))
    ids = torch.randint(17, (6, 64))
    with pytest.raises(ModelError, match=r"layer '1' \(EmbeddingBag\): .* nn\.Embedding and its \.sum\(1\)"):
        float_graph(model, ids, [], DEFAULT_OPSET)


def test_a_rejected_float_model_is_reported_as_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    subject = subject_of(Odd("c1"))
    exporter = Exporter(subject, tmp_path)
    wrong = torch.zeros(len(subject.data.test), 10)
    monkeypatch.setattr("anybit.export.exporting.onnx_outputs", lambda path, subject: wrong)
    artifact = exporter.export(Width(32, 32))
    assert artifact.rejected
    assert write_report(exporter, {("FP32", "onnx"): artifact}, None, {})["artifacts"][0]["rejected"]
