"""Initial weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from torch import nn

Init = Literal["torch", "he", "xavier"]
"""torch: U(±1/√inputs), the default of its layers · he: N(0, 2/outputs) where a ReLU follows (He et al.), with about 2.4
times the deviation · xavier: U(±√(6/(inputs + outputs))), biases 0 (Glorot & Bengio), the default of Keras' layers."""


def initialize(hidden: Iterable[nn.Conv2d | nn.Linear], head: nn.Linear, init: Init) -> None:
    """Draw the weights of the last layer, and of the hidden ones, which a ReLU follows."""
    if init == "he":
        for layer in hidden:
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    elif init == "xavier":
        for layer in (*hidden, head):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
