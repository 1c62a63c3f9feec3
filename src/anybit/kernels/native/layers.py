"""The layers of a prepared model that compute with the kernels."""

from __future__ import annotations

from torch import Tensor, nn

from anybit.kernels import is_plain
from anybit.kernels.native.compiled import library
from anybit.kernels.native.operations import conv2d, group_norm, max_pool2d, on_grid, subsample, uniform
from anybit.layers import GroupNormReLU, Subsample
from anybit.quant.modules import KeyedDropout, Quantizer, as_it_was, put_in_place


def use_native(model: nn.Module) -> None:
    """Let a prepared model's square convolutions, norms, pools, quantizers and draws compute natively."""
    library()
    _join_pools(model)
    put_in_place(model, _native)
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


def _native(layer: nn.Module) -> nn.Module | None:
    if type(layer) is nn.GroupNorm and layer.affine:
        return as_it_was(NativeGroupNorm(layer), layer)
    if type(layer) is nn.MaxPool2d and _is_simple(layer):
        return as_it_was(NativeMaxPool2d(layer), layer)
    return None


def _join_pools(model: nn.Module) -> None:
    """Move a ReLU behind the pool that follows it, where a quarter of the values are left.

    Only in an nn.Sequential that is always called as a whole: the model itself, and those inside it.
    """
    if type(model) is not nn.Sequential:
        return
    layers = list(model)
    for i, (before, layer, after) in enumerate(zip([None, *layers], layers, [*layers[1:], None], strict=False)):
        if type(layer) is nn.Sequential:
            _join_pools(layer)
        elif type(after) is nn.MaxPool2d and _is_simple(after) and _joins(before, layer, after):
            model[i], model[i + 1] = nn.Identity(), as_it_was(NativeMaxPool2d(after, relu=True), after)


def _is_simple(layer: nn.MaxPool2d) -> bool:
    """Tell if a pool is square, without padding, dilation, indices and partial windows."""
    square = all(isinstance(size, int) or len({*size}) == 1 for size in (layer.kernel_size, layer.stride))
    return (square and _side(layer.padding) == 0 and _side(layer.dilation) == 1 and not layer.return_indices
            and not layer.ceil_mode)


def _side(size: int | tuple[int, ...]) -> int:
    return size if isinstance(size, int) else max(size)


class NativeGroupNorm(nn.GroupNorm):
    """A GroupNorm that shares the parameters of another."""

    def __init__(self, like: nn.GroupNorm) -> None:
        super().__init__(like.num_groups, like.num_channels, like.eps, device="meta")
        self.weight, self.bias = like.weight, like.bias

    def forward(self, x: Tensor) -> Tensor:
        return group_norm(x, None, self.weight, self.bias, self.num_groups, self.eps, relu=False)


class NativeMaxPool2d(nn.Module):
    """A square max pool, optionally with a ReLU."""

    def __init__(self, like: nn.MaxPool2d, relu: bool = False) -> None:
        super().__init__()
        self.size, self.stride, self.relu = _side(like.kernel_size), _side(like.stride), relu

    def forward(self, x: Tensor) -> Tensor:
        return max_pool2d(x, self.size, self.stride, self.relu)


def _joins(before: nn.Module | None, layer: nn.Module, after: nn.Module) -> bool:
    """Tell if a layer is a ReLU whose result (and input, if that is overwritten) only the pool uses."""
    if type(layer) is not nn.ReLU:
        return False
    watched = any((m._forward_hooks, m._forward_pre_hooks, m._backward_hooks, m._backward_pre_hooks) != ({},) * 4
                  for m in (layer, after))
    return not watched and (not layer.inplace or isinstance(before, nn.Conv2d))
