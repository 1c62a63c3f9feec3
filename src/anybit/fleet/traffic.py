"""Fewer bits on the way: deltas stochastically rounded for the way up, the model at the device's width for the way down."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from anybit.export.packing import pack, packed_size, unpack
from anybit.federated.algorithm import LOG_STEP
from anybit.fleet.wire import Layout, Refused, Tensors
from anybit.quant.grid import BITS, FLOAT, Width, limits
from anybit.quant.ranges import StepTable
from anybit.quant.sites import Quantizer, quantizers, weight_sites
from anybit.randomness import uniform

SCALES = "scales"


def round_delta(delta: Tensors, bits: int, key: int) -> dict[str, Tensor]:
    """⌊δ/s + u⌋ with u ~ U[0, 1) and s = max|δ|/L, L = 2^(b−1) − 1, packed; and all s in one array.

    E⌊x + u⌋ = x, and nothing is clipped: s·⌊δ/s + u⌋ has mean δ, so the mean over clients is unbiased. Learned steps
    (few, and of another scale) stay as they are.
    """
    out, scales, top = dict[str, Tensor](), [], 2 ** (bits - 1) - 1
    counter = torch.zeros((), dtype=torch.int64)
    for number, (name, values) in enumerate(delta.items()):
        if name.startswith(LOG_STEP):
            out[name] = values.cpu()
            continue
        scale = values.abs().max().cpu() / top
        draw = uniform(torch.tensor(key), counter, number, values.shape)
        level = torch.floor(values.cpu() / torch.where(scale > 0, scale, 1.0) + draw).clamp(-top, top)
        out[name] = _packed(level + top, bits)
        scales.append(scale)
    return {**out, SCALES: torch.stack(scales)}


def rounded_layout(like: Mapping[str, Layout], bits: int) -> dict[str, Layout]:
    """What `round_delta` makes of tensors of this layout."""
    out = {name: one if name.startswith(LOG_STEP) else
           Layout(torch.uint8, (packed_size(one.size, bits),)) for name, one in like.items()}
    return {**out, SCALES: Layout(torch.float32, (sum(not name.startswith(LOG_STEP) for name in like),))}


def unrounded_delta(arrays: Tensors, like: Mapping[str, Layout], bits: int) -> dict[str, Tensor]:
    """s·level: the deltas that `round_delta` rounded."""
    scales, top = iter(arrays[SCALES].tolist()), 2 ** (bits - 1) - 1
    out = {}
    for name, one in like.items():
        if name.startswith(LOG_STEP):
            out[name] = arrays[name]
            continue
        scale, codes = next(scales), _unpacked(arrays[name], bits, one)
        if scale < 0 or float(codes.max()) > 2 * top:
            raise Refused(f"delta '{name}': codes or scale outside their range")
        out[name] = (codes - top) * scale
        if not bool(torch.isfinite(out[name]).all()):
            raise Refused(f"delta '{name}': values that are not finite")
    return out


def _bits_of(site: Quantizer, width: Width) -> int:
    return width.weights if width.weights == FLOAT or site.bits is None else site.bits


def low_bit_weights(prepared: nn.Module, w: Tensors, table: StepTable, width: Width) -> dict[str, Tensor]:
    """The model at a width: quantized weights as packed codes ⌊w/Δ⌉ − low, everything else as it is."""
    out = {name: values.cpu() for name, values in w.items()}
    for name, parameter in weight_sites(prepared).items():
        site = quantizers(prepared)[name]
        bits = _bits_of(site, width)
        if bits != FLOAT:
            low, high = limits(torch.tensor(bits), site.grid)
            level = torch.round(w[parameter].cpu() / _step(table, name, bits)).clamp(low, high)
            out[parameter] = _packed(level - low, bits)
    return out


def low_bit_layout(prepared: nn.Module, like: Mapping[str, Layout], width: Width) -> dict[str, Layout]:
    """What `low_bit_weights` makes of parameters of this layout."""
    out = dict(like)
    for name, parameter in weight_sites(prepared).items():
        bits = _bits_of(quantizers(prepared)[name], width)
        if bits != FLOAT:
            out[parameter] = Layout(torch.uint8, (packed_size(like[parameter].size, bits),))
    return out


def restored_weights(prepared: nn.Module, arrays: Tensors, like: Mapping[str, Layout], table: StepTable,
                     width: Width) -> dict[str, Tensor]:
    """Δ·(code + low): the weights on their grid, as the device computes with them."""
    out = dict(arrays)
    for name, parameter in weight_sites(prepared).items():
        site = quantizers(prepared)[name]
        bits = _bits_of(site, width)
        if bits != FLOAT:
            level = _unpacked(arrays[parameter], bits, like[parameter]) + limits(torch.tensor(bits), site.grid)[0]
            out[parameter] = level * _step(table, name, bits)
    return out


def _step(table: StepTable, site: str, bits: int) -> Tensor:
    return table.steps[site].cpu()[BITS.index(bits)]


def _packed(codes: Tensor, bits: int) -> Tensor:
    return torch.from_numpy(pack(codes.to(torch.uint8).numpy(), bits))


def _unpacked(stream: Tensor, bits: int, like: Layout) -> Tensor:
    return torch.from_numpy(unpack(stream.numpy(), bits, like.size)).to(torch.float32).reshape(like.shape)
