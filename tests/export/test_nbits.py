"""MatMulNBits: packed weights in memory, the same numbers."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from torch import nn

from anybit.export.exporting import Exporter, Options
from anybit.export.reference import outputs, reference
from anybit.export.verify import onnx_outputs
from anybit.quant.grid import Width
from anybit.quant.sites import SiteOptions
from tests.export.test_onnx import untrained

pytestmark = pytest.mark.artifacts


class Layers(nn.Module):
    """A linear layer on sequences (40 columns: one block and a part), one on vectors, and a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.mix, self.head = nn.Conv2d(1, 40, 2, 2), nn.Linear(40, 12, bias=False), nn.Linear(16 * 12, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.mix(self.conv(x).flatten(2).transpose(1, 2)))
        out: torch.Tensor = self.head(x.flatten(1))
        return out


@pytest.mark.parametrize("sites", [SiteOptions(), SiteOptions(weight_grid="narrow", per_channel=True)],
                         ids=["full", "narrow"])
def test_linear_layers_stay_packed(sites: SiteOptions, tmp_path: Path) -> None:
    exporter = Exporter(untrained(sites, Layers()), tmp_path, Options(operators="matmulnbits"))
    artifact = exporter.export(Width(4, 32))
    assert not artifact.rejected, artifact.verdict.problem
    assert artifact.kernels == {"MatMulNBits": 2}
    assert artifact.in_float == {"conv": "MatMulNBits is no Conv"}
    assert artifact.storage == {"4": "native uint4, 4-bit blocks"}
    expected = outputs(reference(exporter.subject, Width(4, 32)), exporter.subject)
    found = onnx_outputs(tmp_path / artifact.file, exporter.subject)
    assert torch.allclose(found, expected, atol=1e-5 * float(expected.abs().max()))
    stored = {t.name: list(t.dims) for t in onnx.load(tmp_path / artifact.file).graph.initializer}
    assert stored["mix.weight.q4"] == [12, 2, 16], "two blocks of 32 columns, two codes a byte"


def test_what_it_cannot_multiply_is_unpacked_and_named(tmp_path: Path) -> None:
    for grid, width, why in (("centred", "W4", "no half-integer levels"), ("full", "W3", "at 4 bits, not at 3")):
        subject = untrained(SiteOptions(weight_grid=grid), Layers())  # type: ignore[arg-type]
        artifact = Exporter(subject, tmp_path, Options(operators="matmulnbits")).export(Width.parse(width))
        assert not artifact.rejected, artifact.verdict.problem
        assert artifact.kernels == {}
        assert why in artifact.in_float["mix"]
