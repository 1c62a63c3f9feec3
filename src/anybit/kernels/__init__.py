"""Kernels that are faster than the libraries': Triton for stacked clients here, C++ for a client on a core in native/."""

from __future__ import annotations

import importlib.util

from torch import Tensor, nn
from torch.nn.functional import group_norm, relu

from anybit.layers import GroupNormReLU


def has_kernels() -> bool:
    """Tell if Triton is installed, which PyTorch brings along on GPU machines."""
    return importlib.util.find_spec("triton") is not None


def use_kernels(model: nn.Module, compiled: bool = False) -> None:
    """Give kernels to the square 2-d convolutions, and the norms with ReLU, of a prepared model, which may be compiled."""
    if compiled:
        from anybit.kernels import convolution, norm  # noqa: F401 (which register what is announced)
        from anybit.kernels.operators import announce

        announce()
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d) and is_plain(layer):
            layer.kernel = _convolution  # type: ignore[assignment]
        elif isinstance(layer, GroupNormReLU):
            layer.kernel = _norm_relu


def is_plain(layer: nn.Conv2d) -> bool:
    """Tell if a convolution is square, has one group and no dilation, and pads with zeros."""
    if isinstance(layer.padding, str) or layer.padding_mode != "zeros" or layer.groups != 1 or {*layer.dilation} != {1}:
        return False
    square = all(len({*sizes}) == 1 for sizes in (layer.kernel_size, layer.stride, layer.padding))
    return square and layer.padding[0] < layer.kernel_size[0]


def _convolution(x: Tensor, w: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
    from anybit.kernels.convolution import conv2d

    out: Tensor = conv2d(x, w, stride, padding)
    return out if bias is None else out + bias[:, None, None]


def _norm_relu(x: Tensor, shortcut: Tensor | None, gamma: Tensor, beta: Tensor, groups: int, eps: float) -> Tensor:
    from anybit.kernels.norm import fits, norm_relu

    if fits(x, x.shape[1], groups):
        return norm_relu(x, shortcut, gamma, beta, groups, eps)
    y = group_norm(x, groups, gamma, beta, eps)
    return relu(y if shortcut is None else y + shortcut)
