"""Initial weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from torch import nn

Init = Literal["torch", "he"]
"""torch: U(±1/√inputs), what its layers do by themselves · he: N(0, 2/outputs) (He et al.), about 2.4 times as wide."""


def initialize(layers: Iterable[nn.Conv2d | nn.Linear], init: Init) -> None:
    """Draw the weights of layers that a ReLU follows."""
    if init == "he":
        for layer in layers:
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
