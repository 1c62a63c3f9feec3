"""ONNX artifacts in ONNX Runtime: the right numbers, kernels, types and bytes."""

from __future__ import annotations

import platform
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from anybit.config import Config
from anybit.errors import ConfigError, ModelError
from anybit.export import exporting
from anybit.export.exporting import Exporter, Options
from anybit.export.reference import Additions, outputs, reference
from anybit.export.subject import Subject
from anybit.export.verify import int8_is_exact, kernels, onnx_outputs, session
from anybit.quant.grid import Width
from anybit.quant.sites import SiteOptions
from anybit.schema import read
from anybit.training.build import build_task
from anybit.training.evaluation import Evaluator, calibration_images
from anybit.training.run import Run
from tests.export.command import TRUSTED
from tests.export.user_net import TINY, Upside

pytestmark = pytest.mark.artifacts

INTEGER = {"QLinearConv": 2, "MatMulInteger": 2}


def untrained(sites: SiteOptions, model: torch.nn.Module | None = None) -> Subject:
    """A subject that was never trained, with steps estimated from its weights: for what does not depend on training."""
    task = build_task(read(Config, TINY), TRUSTED)
    model = (model or task.model).eval()
    images = calibration_images(task.data, 32, 1)
    config = read(Config, {**TINY, "ranges": {"activations": "cover"}})
    evaluator = Evaluator(model, task.variant, sites, config.ranges, config.evaluation, task.data, images, task.loss,
                          task.metric)
    w = {name: p.detach() for name, p in model.named_parameters()}
    return Subject(model, evaluator, evaluator.finder(w, evaluator.start_table(w)).table("mse"), "mse", "untrained")


@pytest.mark.parametrize("bits", [8, 6, 4, 3, 2])
def test_weight_only_at_every_width(exporter: Exporter, bits: int) -> None:
    artifact = exporter.export(Width(bits, 32))
    assert not artifact.rejected, artifact.verdict.problem
    assert artifact.verdict.agreement >= min(artifact.verdict.control, 0.997)
    assert artifact.verdict.artifact == pytest.approx(artifact.verdict.evaluation, abs=0.5)
    weights = sum(artifact.weights.values())
    overhead = artifact.fp32_bytes - 4 * weights
    assert artifact.bytes == pytest.approx(weights * bits / 8 + overhead, rel=0.15, abs=2500)
    assert "BitShift" not in kernels(exporter.folder / artifact.file), "weights are unpacked once, at load"


@pytest.mark.parametrize("width", ["WA8", "W6A8", "WA4", "W4A8", "WA3", "W2A8", "W4A6"])
def test_weights_and_activations_run_in_integer_kernels(exporter: Exporter, width: str) -> None:
    artifact = exporter.export(Width.parse(width))
    assert not artifact.rejected, artifact.verdict.problem
    assert Counter(artifact.kernels) == INTEGER
    assert artifact.added == ["8-bit output quantizer on 2 layers", "32-bit bias on 1 layers"]
    assert artifact.verdict.agreement >= min(artifact.verdict.control, 0.99)
    assert artifact.in_float == {}


def test_the_evaluation_is_the_runs_own(exporter: Exporter, run_path: Path) -> None:
    scores = Run.load(run_path, trusted=TRUSTED).evaluate(["W4", "W4A8"])
    for width in ("W4", "W4A8"):
        assert exporter.export(Width.parse(width)).verdict.evaluation == pytest.approx(scores[width].metric)


def test_any_batch(exporter: Exporter) -> None:
    running = session(exporter.folder / exporter.export(Width(4, 8)).file)
    x = exporter.subject.data.pipeline(exporter.subject.data.test.images[:9]).numpy()
    together = running.run(None, {"input": x[:9]})[0]
    one = np.concatenate([running.run(None, {"input": x[i:i + 1]})[0] for i in range(9)])
    assert np.allclose(together, one, atol=1e-5)


@pytest.mark.parametrize(("opset", "types"), [(18, {8: "packed4", 2: "packed2"}), (25, {8: "UINT4", 2: "UINT2"})])
def test_older_and_newer_opsets(subject: Subject, tmp_path: Path, opset: int, types: dict[int, str]) -> None:
    exporter = Exporter(subject, tmp_path, Options(opset=opset, operands="uint8"))
    for width in (Width(4, 8), Width(2, 32)):
        artifact = exporter.export(width)
        assert not artifact.rejected, artifact.verdict.problem
        graph = onnx.load(tmp_path / artifact.file).graph
        kinds = {onnx.TensorProto.DataType.Name(t.data_type) for t in graph.initializer}
        kinds |= {t.name for t in graph.initializer}
        assert types[8 if width.weights == 4 else 2] in kinds


def test_int8_weights_are_taken_where_they_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    x86 = platform.machine() in ("x86_64", "AMD64")
    for exact in (True, False):
        monkeypatch.setattr(exporting, "int8_is_exact", lambda exact=exact: exact)
        assert Options().signed == (x86 and exact)
        assert Options(operands="int8").signed
        assert not Options(operands="uint8").signed


def test_a_processor_that_saturates_is_found_out(subject: Subject, tmp_path: Path) -> None:
    """8-bit weights as int8 lose accuracy just where the probe says so; whatever it says, `auto` loses none."""
    artifact = Exporter(subject, tmp_path, Options(operands="int8")).export(Width(8, 8))
    assert artifact.rejected == (not int8_is_exact())
    assert ("use --operands uint8" in artifact.verdict.problem) == artifact.rejected
    assert not Exporter(subject, tmp_path, Options()).export(Width(8, 8)).rejected


@pytest.mark.parametrize("operands", ["uint8", "int8"])
def test_both_kinds_of_operands(subject: Subject, tmp_path: Path, operands: str) -> None:
    artifact = Exporter(subject, tmp_path, Options(operands=operands)).export(Width(3, 8))  # type: ignore[arg-type]
    assert not artifact.rejected, artifact.verdict.problem
    assert Counter(artifact.kernels) == INTEGER


def test_exact_convolutions_add_nothing(subject: Subject, tmp_path: Path) -> None:
    artifact = Exporter(subject, tmp_path, Options(exact=True)).export(Width(8, 8))
    assert not artifact.rejected, artifact.verdict.problem
    assert Counter(artifact.kernels) == {"ConvInteger": 2, "MatMulInteger": 2}
    assert artifact.added == []
    assert artifact.verdict.reference == artifact.verdict.evaluation


def assert_as_reference(exporter: Exporter, width: Width, path: Path) -> Additions:
    """Write the graph of a width, and compare its answers with the reference's; return what it adds to the training."""
    model = exporter._onnx.model(width)
    path.write_bytes(model.proto.SerializeToString())
    expected = outputs(reference(exporter.subject, width, model.added), exporter.subject)
    found = onnx_outputs(path, exporter.subject)
    assert (found - expected).abs().median() < 1e-4 * expected.abs().max()
    assert (found.argmax(1) == expected.argmax(1)).float().mean() > 0.97
    return model.added


@pytest.mark.parametrize("sites", [
    SiteOptions(weight_grid="narrow", activation_grid="unsigned"), SiteOptions(per_channel=True),
    SiteOptions(weight_grid="unsigned"), SiteOptions(first_last_bits=8, quantize_image=False),
    SiteOptions(full_precision=("mix",))], ids=["narrow", "per-channel", "unsigned", "edges", "partly"])
def test_every_site_option(sites: SiteOptions, tmp_path: Path) -> None:
    exporter = Exporter(untrained(sites), tmp_path)
    for width in (Width(3, 32), Width(3, 8)):
        assert_as_reference(exporter, width, tmp_path / "m.onnx")


def test_what_has_no_integer_kernel_is_named(tmp_path: Path) -> None:
    artifact = Exporter(untrained(SiteOptions(), Upside()), tmp_path).export(Width(8, 8))
    assert artifact.in_float == {"up": "no runtime has an integer ConvTranspose"}
    assert not artifact.rejected, artifact.verdict.problem


class Scaled(torch.nn.Module):
    """Uses a layer's weight outside the layer too."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = torch.nn.Linear(64, 64), torch.nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.body(x.flatten(1)) * self.body.weight.sum())
        return out


def test_what_cannot_be_quantized_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="layer 'body': its weight goes into a ReduceSum node"):
        Exporter(untrained(SiteOptions(), Scaled()), tmp_path).export(Width(8, 8))


def test_bad_options(subject: Subject, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--opset 17"):
        Exporter(subject, tmp_path, Options(opset=17)).export(Width(8, 8))
    with pytest.raises(ConfigError, match="write W8A4"):
        Exporter(subject, tmp_path).export(Width(32, 4))


def test_the_float_graph_keeps_frozen_batchnorm(exporter: Exporter) -> None:
    artifact = exporter.export(Width(32, 32))
    expected = outputs(replace(exporter.subject).model, exporter.subject)
    assert torch.allclose(onnx_outputs(exporter.folder / artifact.file, exporter.subject), expected, atol=1e-4)


class Gate(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum().item() > 0 else -x


def test_what_cannot_be_traced_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    class Gated(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = torch.nn.Linear(64, 10)
            self.gate = Gate()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.gate(self.head(x.flatten(1)))
            return out

    subject = untrained(SiteOptions(), Gated())
    capfd.readouterr()
    with pytest.raises(ModelError, match=r"layer 'gate' \(Gate\): it decides by values of tensors.*torch\.where") as error:
        Exporter(subject, tmp_path).export(Width(8, 8))
    assert "\n" not in str(error.value)
    assert capfd.readouterr().err == ""
