"""Fewer bits on the wire: deltas stochastically rounded on the way up, the model at the device's width on the way down."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import torch
from torch import Tensor, nn

from anybit.export.packing import pack, packed_size, unpack
from anybit.federated.state import Trainable
from anybit.fleet.wire import Layout, Refused, layout
from anybit.quant.grid import FLOAT, Width, codes
from anybit.quant.modules import Quantizer
from anybit.quant.ranges import StepTable
from anybit.quant.sites import quantizers, weight_sites
from anybit.randomness import uniform
from anybit.tensors import Tensors

SCALES = "scales"


def round_delta(delta: Trainable, bits: int, key: int) -> dict[str, Tensor]:
    """Pack ⌊δ/s + u⌋ with u ~ U[0, 1) and s = max|δ|/L, L = 2^(b−1) − 1; and all s in one array.

    E⌊x + u⌋ = x, and nothing is clipped: s·⌊δ/s + u⌋ has mean δ, so the mean over clients is unbiased. Learned step sizes
    (few, and of another scale) stay as they are.
    """
    out, scales, top = dict[str, Tensor](), [], 2 ** (bits - 1) - 1
    counter = torch.zeros((), dtype=torch.int64)
    for number, (name, values) in enumerate(delta.w.items()):
        scale = values.abs().max().cpu() / top
        draw = uniform(torch.tensor(key), counter, number, values.shape)
        level = torch.floor(values.cpu() / torch.where(scale > 0, scale, 1.0) + draw).clamp(-top, top)
        out[name] = _packed(level + top, bits)
        scales.append(scale)
    log_steps = Trainable({}, delta.log_steps).named()
    return {**out, **{name: values.cpu() for name, values in log_steps.items()}, SCALES: torch.stack(scales)}


def rounded_layout(like: Trainable, bits: int) -> dict[str, Layout]:
    """Return the layout of the arrays that `round_delta` makes of tensors like these."""
    packed = {name: Layout(torch.uint8, (packed_size(values.numel(), bits),)) for name, values in like.w.items()}
    return {**packed, **layout(Trainable({}, like.log_steps).named()), SCALES: Layout(torch.float32, (len(like.w),))}


def unrounded_delta(arrays: Tensors, like: Trainable, bits: int) -> Trainable:
    """Return s·level: the deltas that `round_delta` rounded."""
    top, out = 2 ** (bits - 1) - 1, dict[str, Tensor]()
    for scale, (name, expected) in zip(arrays[SCALES].tolist(), layout(like.w).items(), strict=True):
        levels = _unpacked(arrays[name], bits, expected)
        if scale < 0 or float(levels.max()) > 2 * top:
            raise Refused(f"delta '{name}': codes or scale outside their range")
        out[name] = (levels - top) * scale
        if not bool(torch.isfinite(out[name]).all()):
            raise Refused(f"delta '{name}': values that are not finite")
    return like.from_names({**arrays, **out})


def low_bit_weights(prepared: nn.Module, w: Tensors, table: StepTable, width: Width) -> dict[str, Tensor]:
    """Return the model at a width: quantized weights as packed codes (see `codes`), everything else as it is."""
    out = {name: values.cpu() for name, values in w.items()}
    for parameter, site, steps in _quantized(prepared, table, width, w):
        out[parameter] = _packed(codes(w[parameter].cpu(), site.grid_at(width, steps.cpu())), site.bits_at(width))
    return out


def low_bit_layout(prepared: nn.Module, like: Mapping[str, Layout], table: StepTable, width: Width) -> dict[str, Layout]:
    """Return the layout of the arrays that `low_bit_weights` makes of parameters of this layout."""
    packed = {parameter: Layout(torch.uint8, (packed_size(like[parameter].size, site.bits_at(width)),))
              for parameter, site, _ in _quantized(prepared, table, width, like)}
    return {**like, **packed}


def restored_weights(prepared: nn.Module, arrays: Tensors, like: Mapping[str, Layout], table: StepTable,
                     width: Width) -> dict[str, Tensor]:
    """Return Δ·(code + low): the weights on their grid, as the device computes with them."""
    out = dict(arrays)
    for parameter, site, steps in _quantized(prepared, table, width, like):
        grid = site.grid_at(width, steps.cpu())
        out[parameter] = (_unpacked(arrays[parameter], site.bits_at(width), like[parameter]) + grid.low) * grid.step
    return out


def on_their_grid(prepared: nn.Module, w: Tensors, table: StepTable, width: Width) -> dict[str, Tensor]:
    """Return these weights at a width as a device computes with them: those that need not travel, because it has them."""
    return restored_weights(prepared, low_bit_weights(prepared, w, table, width), layout(w), table, width)


def _quantized(prepared: nn.Module, table: StepTable, width: Width,
               among: Collection[str]) -> Iterator[tuple[str, Quantizer, Tensor]]:
    """Yield (parameter, site, step sizes) of every weight among these that `width` quantizes."""
    sites = quantizers(prepared)
    for name, parameter in weight_sites(prepared, among).items():
        if sites[name].bits_at(width) != FLOAT:
            yield parameter, sites[name], table.steps[name]


def _packed(levels: Tensor, bits: int) -> Tensor:
    return torch.from_numpy(pack(levels.to(torch.uint8).numpy(), bits))


def _unpacked(stream: Tensor, bits: int, like: Layout) -> Tensor:
    return torch.from_numpy(unpack(stream.numpy(), bits, like.size)).to(torch.float32).reshape(like.shape)
