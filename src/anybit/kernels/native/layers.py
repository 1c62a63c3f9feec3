"""Which layers of a prepared model compute with the kernels."""

from __future__ import annotations

from torch import Tensor, nn

from anybit.kernels import is_plain
from anybit.kernels.native.compiled import library
from anybit.kernels.native.operations import conv2d, group_norm, max_pool2d, on_grid, subsample, uniform
from anybit.layers import GroupNormReLU, Subsample
from anybit.quant.sites import KeyedDropout, Quantizer


def use_native(model: nn.Module) -> None:
    """Let a prepared model's square convolutions, norms, pools, quantizers and draws compute natively; nothing else."""
    library()
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d) and is_plain(layer):
            layer.kernel = conv2d  # type: ignore[assignment]
        elif isinstance(layer, GroupNormReLU) and layer.affine:
            layer.kernel = group_norm
        elif isinstance(layer, Subsample):
            layer.kernel = subsample
        elif isinstance(layer, Quantizer):
            layer.kernel, layer.uniform = on_grid, uniform
        elif isinstance(layer, KeyedDropout):
            layer.uniform = uniform
        elif type(layer) is nn.GroupNorm and layer.affine:
            layer.__class__ = _GroupNorm
        elif type(layer) is nn.MaxPool2d and _is_simple(layer):
            layer.__class__ = _MaxPool2d
        elif type(layer) is nn.Sequential:
            layer.__class__ = _Sequential


def _is_simple(layer: nn.MaxPool2d) -> bool:
    """Square, no padding, no dilation, only the values, only whole windows."""
    square = all(isinstance(size, int) or len({*size}) == 1 for size in (layer.kernel_size, layer.stride))
    return (square and _side(layer.padding) == 0 and _side(layer.dilation) == 1 and not layer.return_indices
            and not layer.ceil_mode)


def _side(size: int | tuple[int, ...]) -> int:
    """Of a square; 0 and 1 are as good as (0, 0) and (1, 1), and nothing else is asked for."""
    return size if isinstance(size, int) else max(size)


class _GroupNorm(nn.GroupNorm):
    def forward(self, x: Tensor) -> Tensor:
        return group_norm(x, None, self.weight, self.bias, self.num_groups, self.eps, relu=False)


class _MaxPool2d(nn.MaxPool2d):
    def forward(self, x: Tensor, relu: bool = False) -> Tensor:
        return max_pool2d(x, _side(self.kernel_size), _side(self.stride), relu)


class _Sequential(nn.Sequential):
    """A ReLU that a pool follows is left to the pool, which has a quarter of the values left."""

    def forward(self, x: Tensor) -> Tensor:
        layers, fused = list(self), False
        for before, layer, after in zip([None, *layers], layers, [*layers[1:], None], strict=False):
            if _joins(before, layer, after):
                fused = True
            else:
                x = layer(x, relu=True) if fused else layer(x)
                fused = False
        return x


def _joins(before: nn.Module | None, layer: nn.Module, after: nn.Module | None) -> bool:
    """Whether a layer is a ReLU whose result nobody but the pool sees: nor its input, if that is overwritten."""
    if type(layer) is not nn.ReLU or type(after) is not _MaxPool2d:
        return False
    watched = any((m._forward_hooks, m._forward_pre_hooks, m._backward_hooks, m._backward_pre_hooks) != ({},) * 4
                  for m in (layer, after))
    return not watched and (not layer.inplace or isinstance(before, nn.Conv2d))
