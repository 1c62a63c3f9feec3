"""Layers that engines run faster than their parts, and what a layer reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn


class GroupNormReLU(nn.GroupNorm):
    """ReLU(GroupNorm(x) + shortcut), with GroupNorm's parameters, in one kernel where there is one."""

    kernel: Callable[[Tensor, Tensor | None, Tensor, Tensor, int, float], Tensor] | None = None

    def forward(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
        if self.kernel is not None:
            return self.kernel(x, shortcut, self.weight, self.bias, self.num_groups, self.eps)
        y = super().forward(x)
        return F.relu(y if shortcut is None else y + shortcut)


class Subsample(nn.Module):
    """Every `stride`-th pixel, between `before` and `after` new channels of zeros: a shortcut without parameters."""

    kernel: Callable[[Tensor, int, int, int], Tensor] | None = None

    def __init__(self, stride: int, before: int, after: int) -> None:
        super().__init__()
        self.stride, self.before, self.after = stride, before, after

    def forward(self, x: Tensor) -> Tensor:
        if self.kernel is not None:
            return self.kernel(x, self.stride, self.before, self.after)
        return F.pad(x[:, :, ::self.stride, ::self.stride], (0, 0, 0, 0, self.before, self.after))


def as_read(layer: nn.Module, x: Tensor) -> Tensor:
    """Return x as `layer` reads it: on the grid of the layer's input where the model is quantized, else x itself."""
    site = getattr(layer, "input_quantizer", None)
    return x if site is None else cast(Tensor, site(x))
