"""The second runtime, where it is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from anybit.errors import ConfigError
from anybit.export.exporting import Exporter
from anybit.quant.grid import Width

pytestmark = pytest.mark.executorch


def test_eight_bits_in_xnnpack(exporter: Exporter) -> None:
    artifact = exporter.export(Width(8, 8), "executorch")
    assert not artifact.rejected, artifact.verdict.problem
    assert artifact.kernels == {"XNNPACK": 4}
    assert artifact.verdict.agreement >= 0.99
    assert Path(artifact.file).suffix == ".pte"
    assert artifact.latency is not None
    assert artifact.latency.median > 0


def test_other_widths_say_what_to_use(exporter: Exporter) -> None:
    with pytest.raises(ConfigError, match="use WA8, or runtime='onnx'"):
        exporter.export(Width(4, 8), "executorch")
