"""What a card says of files that are no smaller, and of names that say two things."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

import anybit
from anybit.export.artifact import no_smaller


def test_a_tiny_model_says_why_fewer_bits_are_no_smaller(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(24, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(int)
    torch.manual_seed(0)
    fitted = anybit.fit(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), [(x, y)], (x, y), rounds=1)
    w4, w2, wa8 = fitted.export(tmp_path, ["W4", "W2", "W8A8"], min_accuracy=0)
    assert w2.bytes > w4.bytes, "2 bits are a stream, and 4 bits have a type of their own"
    words = (f"`model.w2.onnx` is no smaller than `model.w4.onnx` ({w2.bytes:,} against {w4.bytes:,} bytes): what unpacks "
             "its weights (2-bit stream) takes more than fewer bits of 48 weights save")
    assert no_smaller([w4, w2, wa8]) == [words]
    card = (tmp_path / "README.md").read_text()
    assert f"- {words}." in card
    assert "- WA8 is short for W8A8: weights and activations in 8 bits." in card
    assert no_smaller(fitted.export(tmp_path / "archive", ["W4", "W2"], "archive", min_accuracy=0)) == []
