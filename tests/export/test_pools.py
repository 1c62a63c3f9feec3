"""Pools of examples without channels, which torch takes: one line says so, and nothing is computed from other numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch.nn.functional as F
from torch import Tensor, nn

from anybit.errors import ModelError
from anybit.export.exporting import Exporter
from anybit.export.subject import Subject
from anybit.quant.grid import Width
from tests.export.test_c import subject_of

LINE = {"max_pool1d": lambda x: F.max_pool1d(x, 2), "avg_pool1d": lambda x: F.avg_pool1d(x, 2),
        "adaptive_avg_pool1d": lambda x: F.adaptive_avg_pool1d(x, 32)}
PLANE = {"max_pool2d": lambda x: F.max_pool2d(x, 2), "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
         "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, (4, 4))}


class Pooled(nn.Module):
    def __init__(self, pool: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(x)


def without_channels(name: str) -> Subject:
    """1×8×8 → 64 or 8×8 → a pool of half the sides → 10."""
    pool, dims, outputs = (LINE[name], nn.Flatten(), 32) if name in LINE else (PLANE[name], nn.Flatten(1, 2), 16)
    return subject_of(nn.Sequential(dims, Pooled(pool), nn.Flatten(), nn.Linear(outputs, 10)))


@pytest.mark.parametrize("name", [*LINE, *PLANE])
def test_c_has_none_without_channels(name: str, tmp_path: Path) -> None:
    shape = r"1 dimensions on .* shape \(64,\)" if name in LINE else r"2 dimensions on .* shape \(8, 8\)"
    with pytest.raises(ModelError, match=rf"^layer '1': a pool of {shape} .*: give it a channel dimension, x\[:, None\]$"):
        Exporter(without_channels(name), tmp_path).export(Width(8, 32), "c")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", PLANE)
def test_archives_have_none_without_channels(name: str, tmp_path: Path) -> None:
    artifact = Exporter(without_channels(name), tmp_path).export(Width(8, 32), "archive")
    (why,) = artifact.known_wrong
    assert why.endswith("layer '1': a pool of 2 dimensions on an example of shape (8, 8) leaves none for channels: give it "
                        "a channel dimension, x[:, None]")
