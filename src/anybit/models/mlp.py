"""Linear layers in a row, with nothing between them that would hide what quantization does."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from anybit.models.initial import Init, initialize


def mlp(inputs: int = 64, hidden: int = 64, layers: int = 8, classes: int = 10, init: Init = "he") -> nn.Module:
    """Build `layers` hidden linear layers with ReLU and one more; 33,930 parameters for 8×8 images."""
    widths = [inputs, *[hidden] * layers]
    linears, head = [nn.Linear(a, b) for a, b in pairwise(widths)], nn.Linear(hidden, classes)
    initialize(linears, head, init)
    return nn.Sequential(nn.Flatten(), *(part for linear in linears for part in (linear, nn.ReLU())), head)
