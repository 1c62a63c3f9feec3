"""Levels halfway between whole numbers: every artifact computes what was evaluated, in no more bits per weight."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from anybit.errors import RunError
from anybit.export.archive import read_archive, write_archive
from anybit.export.executorch import _quantized
from anybit.export.exporting import Exporter, Options
from anybit.export.graph import float_graph, uses
from anybit.export.integer import Activations, quantize_all
from anybit.export.lowbit import Editor, weight_only
from anybit.export.reference import output_grids, outputs, reference
from anybit.export.subject import QuantizedWeight, Subject, from_run
from anybit.export.verify import kernels, onnx_outputs, session
from anybit.files.safetensors import load, save
from anybit.quant.grid import Grid, Width, limits, quantize
from anybit.quant.sites import SiteOptions
from anybit.training.run import Run
from tests.export.command import TRUSTED
from tests.export.conftest import train
from tests.export.test_onnx import INTEGER, assert_as_reference, untrained

pytestmark = pytest.mark.artifacts

LAYER = {"0.weight": ("0",)}
PAIR = QuantizedWeight(np.array([[0, 1, 2, 3]], np.uint8), torch.tensor(0.5), -1.5, 2)
"""−¾, −¼, ¼, ¾."""


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    path = train(tmp_path_factory.mktemp("run") / "centred", variant={"name": "mqat", "sites": "WA"},
                 sites={"weight_grid": "centred"})
    return from_run(Run.load(path, trusted=TRUSTED))


@pytest.fixture(scope="module")
def exporter(subject: Subject, tmp_path_factory: pytest.TempPathFactory) -> Exporter:
    return Exporter(subject, tmp_path_factory.mktemp("export"), Options(operands="uint8"))


def graph_of(layer: nn.Module, shape: tuple[int, ...]) -> Editor:
    return Editor(float_graph(nn.Sequential(layer).eval(), torch.rand(2, *shape), ["0.weight"], 21))


def run(editor: Editor, x: Tensor, folder: Path) -> Tensor:
    path = folder / "m.onnx"
    onnx.save(editor.finish(), path)
    return torch.from_numpy(session(path).run(None, {"input": x.numpy()})[0])


def on_grid(step: float, bits: int, name: Literal["full", "centred"]) -> Grid:
    return Grid(torch.tensor(step), *limits(torch.tensor(bits), name))


def test_half_integers_are_odd_numbers_at_half_the_step() -> None:
    factor, low, step = PAIR.integers()
    assert (factor, low, float(step)) == (2, -3, 0.25)
    assert (float(step) * (factor * PAIR.codes.astype(int) + low)).tolist() == [[-0.75, -0.25, 0.25, 0.75]]
    assert replace(PAIR, low=-2.0).integers() == (1, -2, torch.tensor(0.5))
    assert replace(PAIR, low=-7.5, bits=4).integers()[:2] == (2, -15)


def test_the_low_is_the_grids(subject: Subject) -> None:
    lows = {bits: {w.low for w in subject.quantized_weights(Width(bits, 32)).values()} for bits in (2, 3, 4, 5, 8)}
    assert lows == {2: {-1.5}, 3: {-3.5}, 4: {-7.5}, 5: {-15.0}, 8: {-127.0}}


@pytest.mark.parametrize("width", ["W8", "W6", "W4", "W3", "W2", "W4A8"])
def test_the_archive_is_exact(subject: Subject, tmp_path: Path, width: str) -> None:
    path, wanted = tmp_path / "m.safetensors", Width.parse(width)
    write_archive(path, subject, wanted)
    state, facts = read_archive(path)
    for name in subject.quantized_weights(wanted):
        expected = quantize(subject.w()[name], subject.grid(f"{name}_quantizer", wanted))
        assert torch.equal(state[name], expected), name
        if wanted.weights <= 4:
            assert bool((expected != 0).all()), "no level is zero"
    assert all((entry["low"], entry["high"]) == (-128, 127) for entry in facts["activations"].values())


def test_the_archive_keeps_two_bits_per_weight(subject: Subject, tmp_path: Path) -> None:
    full = untrained(SiteOptions())
    sizes = []
    for number, model in enumerate((full, subject)):
        path = tmp_path / f"{number}.safetensors"
        write_archive(path, replace(model, steps=""), Width(2, 32))
        sizes.append(path.stat().st_size)
    assert 0 <= sizes[1] - sizes[0] <= 8 * len(subject.layers), "'-1.5' for '-2', and the header's padding"
    packed = json.loads(load(tmp_path / "1.safetensors")[1]["packed"])
    assert {entry["low"] for entry in packed.values()} == {-1.5}
    assert '"low":-2,' in load(tmp_path / "0.safetensors")[1]["packed"], "whole numbers have no point"


def test_a_centred_activation_in_the_archive(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    write_archive(path, untrained(SiteOptions(activation_grid="centred")), Width(8, 4))
    entries = read_archive(path)[1]["activations"].values()
    assert {(entry["low"], entry["high"]) for entry in entries} == {(-7.5, 7.5)}


@pytest.mark.parametrize("low", [-1.3, 0.5, -4.5, math.nan, "-1.5"])
def test_an_archive_with_an_impossible_low_is_damaged(tmp_path: Path, low: Any) -> None:
    packed = {"w": {"bits": 2, "low": low, "shape": [4]}}
    save(tmp_path / "m", {"w": torch.tensor([0b11100100], dtype=torch.uint8), "w.step": torch.tensor(0.5)},
         {"format": "anybit-archive-1", "width": "W2", "packed": json.dumps(packed), "activations": "{}"})
    with pytest.raises(RunError, match="is damaged"):
        read_archive(tmp_path / "m")


def test_an_archive_by_hand(tmp_path: Path) -> None:
    packed = {"w": {"bits": 2, "low": -1.5, "shape": [4]}}
    save(tmp_path / "m", {"w": torch.tensor([0b11100100], dtype=torch.uint8), "w.step": torch.tensor(0.5)},
         {"format": "anybit-archive-1", "width": "W2", "packed": json.dumps(packed), "activations": "{}"})
    assert read_archive(tmp_path / "m")[0]["w"].tolist() == [-0.75, -0.25, 0.25, 0.75]


@pytest.mark.parametrize("opset", [21, 25])
def test_weight_only_by_hand(tmp_path: Path, opset: int) -> None:
    layer = nn.Linear(4, 1, bias=False)
    editor = Editor(float_graph(nn.Sequential(layer), torch.rand(2, 4), ["0.weight"], opset))
    weight_only(editor, {"0.weight": PAIR}, opset)
    # 1·(−¾) + 2·(−¼) + 3·¼ + 4·¾
    assert run(editor, torch.tensor([[1.0, 2, 3, 4]]), tmp_path).tolist() == [[2.5]]


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("opset", [21, 25])
def test_an_integer_product_by_hand(tmp_path: Path, opset: int, signed: bool) -> None:
    layer = nn.Linear(4, 1)
    nn.init.constant_(layer.bias, 1.0)
    editor = Editor(float_graph(nn.Sequential(layer).eval(), torch.rand(2, 4), ["0.weight"], opset))
    inputs = {"0": on_grid(0.25, 8, "full")}
    assert not quantize_all(editor, uses(editor.graph, LAYER), {"0.weight": PAIR}, Activations(inputs, {}), opset, signed)
    assert run(editor, torch.tensor([[1.0, 2, 3, 4.1]]), tmp_path).tolist() == [[3.5]], "4.1 → 4, and the bias"
    assert "BitShift" not in kernels(tmp_path / "m.onnx"), "codes are doubled once, at load"


@pytest.mark.parametrize("signed", [False, True])
def test_a_centred_activation_by_hand(tmp_path: Path, signed: bool) -> None:
    editor = graph_of(nn.Linear(4, 1, bias=False), (4,))
    inputs = {"0": on_grid(1.0, 2, "centred")}
    quantize_all(editor, uses(editor.graph, LAYER), {"0.weight": PAIR}, Activations(inputs, {}), 21, signed)
    x = torch.tensor([[0.9, 1.2, -7, 0], [0.1, -0.1, 9, -0.6]])
    # levels ½, 1½, −1½, ½ (0 is halfway, and −½ rounds to 0) and ½, −½, 1½, −½
    assert run(editor, x, tmp_path).tolist() == [[-0.375 - 0.375 - 0.375 + 0.375], [-0.375 + 0.125 + 0.375 - 0.375]]


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("activations", ["full", "centred"])
def test_a_padded_convolution(tmp_path: Path, signed: bool, fused: bool, activations: Literal["full", "centred"]) -> None:
    """The border is zero, also where zero is no level."""
    layer = nn.Conv2d(1, 2, 3, padding=1, bias=False)
    draw = torch.Generator().manual_seed(1)
    codes = torch.randint(0, 8, (2, 1, 3, 3), generator=draw)
    weight = QuantizedWeight(codes.numpy().astype(np.uint8), torch.tensor([0.5, 0.25]).reshape(2, 1, 1, 1), -3.5, 3)
    grid, x = on_grid(0.5, 4, activations), torch.randint(-20, 20, (3, 1, 5, 5), generator=draw) * 0.25 + 0.0625
    out = {"0": on_grid(0.25, 8, "full")} if fused else {}
    editor = graph_of(layer, (1, 5, 5))
    quantize_all(editor, uses(editor.graph, LAYER), {"0.weight": weight}, Activations({"0": grid}, out), 21, signed)
    exact = torch.conv2d(quantize(x, grid), weight.step * (codes - 3.5), padding=1)
    found = run(editor, x, tmp_path)
    assert torch.equal(found, quantize(exact, out["0"]) if fused else exact)
    assert kernels(tmp_path / "m.onnx")["QLinearConv" if fused else "ConvInteger"] == 1


@pytest.mark.parametrize("bits", [8, 6, 4, 3, 2])
def test_weight_only_is_the_evaluation(exporter: Exporter, bits: int) -> None:
    width = Width(bits, 32)
    artifact = exporter.export(width)
    assert not artifact.rejected, artifact.verdict.problem
    assert artifact.verdict.agreement >= min(artifact.verdict.control, 0.997)
    expected = outputs(reference(exporter.subject, width), exporter.subject)
    found = onnx_outputs(exporter.folder / artifact.file, exporter.subject)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert not exporter.export(width, "archive").rejected


@pytest.mark.parametrize("operands", ["uint8", "int8"])
@pytest.mark.parametrize("width", ["W4A8", "W3A8", "W2A8", "WA4"])
def test_integer_kernels_are_the_evaluation(subject: Subject, exporter: Exporter, tmp_path: Path, width: str,
                                            operands: Literal["uint8", "int8"]) -> None:
    """Below 5 bits no processor saturates int8 products: 2·255·15 fits 16 bits."""
    other = Exporter(subject, tmp_path, Options(operands=operands))
    other.__dict__["_onnx"] = replace(exporter._onnx, signed=operands == "int8")
    other._onnx.__dict__["_float"] = exporter._onnx._float
    artifact = other.export(Width.parse(width))
    assert not artifact.rejected, artifact.verdict.problem
    assert Counter(artifact.kernels) == INTEGER
    assert artifact.verdict.agreement >= min(artifact.verdict.control, 0.99)
    stored = {t.data_type for t in onnx.load(tmp_path / artifact.file).graph.initializer if t.name.endswith(".weight.q4")}
    assert stored == ({onnx.TensorProto.UINT4} if width.startswith(("W4", "WA4")) else set())


@pytest.mark.parametrize("width", ["W8A8", "W6A8"])
def test_more_bits_are_the_narrow_grid(exporter: Exporter, width: str) -> None:
    artifact = exporter.export(Width.parse(width))
    assert not artifact.rejected, artifact.verdict.problem
    assert Counter(artifact.kernels) == INTEGER


@pytest.mark.parametrize("sites", [
    SiteOptions(weight_grid="centred", per_channel=True), SiteOptions(weight_grid="centred", first_last_bits=8),
    SiteOptions(weight_grid="centred", activation_grid="unsigned"),
    SiteOptions(weight_grid="centred", activation_grid="centred")], ids=["per-channel", "edges", "unsigned", "both"])
def test_beside_other_site_options(sites: SiteOptions, tmp_path: Path) -> None:
    exporter = Exporter(untrained(sites), tmp_path, Options(operands="uint8"))
    for width in (Width(2, 32), Width(2, 8), Width(4, 4)):
        added = assert_as_reference(exporter, width, tmp_path / "m.onnx")
        assert kernels(tmp_path / "m.onnx")["QLinearConv"] == len(added.outputs)


@pytest.mark.parametrize("width", [Width(2, 32), Width(2, 8)], ids=str)
def test_the_graph_keeps_two_bits_per_weight(exporter: Exporter, width: Width, monkeypatch: pytest.MonkeyPatch) -> None:
    centred = len(exporter._onnx.model(width).proto.SerializeToString())
    right = Subject.quantized_weights
    monkeypatch.setattr(Subject, "quantized_weights", lambda subject, width: {
        name: replace(weight, low=-2.0) for name, weight in right(subject, width).items()})
    full = len(exporter._onnx.model(width).proto.SerializeToString())
    nodes = len(exporter.subject.layers) if width.activations == 8 else 0
    assert centred - full <= 80 * nodes + 16, "one node per weight doubles its codes"


@pytest.mark.parametrize("width", [Width(2, 32), Width(2, 8)], ids=str)
def test_levels_half_a_step_away_are_rejected(exporter: Exporter, tmp_path: Path, width: Width,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(exporter, folder=tmp_path)
    other.__dict__["_onnx"] = exporter._onnx
    right = Subject.quantized_weights

    def shifted(subject: Subject, width: Width) -> dict[str, QuantizedWeight]:
        return {name: replace(weight, low=-2.0) for name, weight in right(subject, width).items()}

    assert not other.export(width).rejected
    monkeypatch.setattr(Subject, "quantized_weights", shifted)
    artifact = other.export(width)
    assert artifact.rejected
    assert " apart" in artifact.verdict.problem
    assert other.export(width, "archive").rejected


def test_executorch_gets_whole_numbers(subject: Subject) -> None:
    width = Width(8, 8)
    model = _quantized(subject, width, output_grids(subject, width, subject.layers))
    for name, weight in subject.quantized_weights(width).items():
        layer: Any = model.get_submodule(name.removesuffix(".weight"))
        assert (layer.low, type(layer.low), layer.codes.dtype) == (-127, int, torch.int8)
        assert torch.equal(layer.weight_step * layer.codes, weight.step * (torch.from_numpy(weight.codes) - 127.0))


@pytest.mark.executorch
def test_executorch_takes_eight_bits(exporter: Exporter) -> None:
    artifact = exporter.export(Width(8, 8), "executorch")
    assert not artifact.rejected, artifact.verdict.problem
    assert artifact.kernels == {"XNNPACK": 4}
