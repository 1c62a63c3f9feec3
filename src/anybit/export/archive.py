"""The archive: a safetensors file with bit-packed weights, exact and readable with numpy alone.

safetensors has no type below 8 bits, so a quantized weight is a U8 bit stream (see packing). Per file:

* `NAME` · U8 · the packed codes of parameter NAME, for every parameter that the metadata's `packed` names
* `NAME.step` · F32 · its step size, of shape () or (channels, 1, …)
* `SITE.step` · F32 · the step size of every activation site that the width quantizes
* every other parameter and buffer under its own name, as it is

Metadata (text): `format` "anybit-archive-1" · `width` · `packed` JSON {NAME: {bits, low, shape}} · `activations` JSON
{SITE: {bits, low, high}} · `tied`, where tensors are, JSON {further name of a tensor: the one it is stored under} ·
`sha256` of the whole file with 64 zeros in its place, as `sha256_of` "file" says (without it, in archives of earlier
versions: of all tensor bytes in file order). The weight is step · (codes + low), in float32; low and
high are whole numbers, or lie halfway between two (−1.5).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anybit.errors import RunError
from anybit.export.packing import pack, packed_size, unpack
from anybit.export.subject import Subject
from anybit.files.reading import bounded
from anybit.files.safetensors import load, save
from anybit.quant.grid import BITS, FLOAT, Width

FORMAT = "anybit-archive-1"


def write_archive(path: Path, subject: Subject, width: Width) -> None:
    """Write the model at a width."""
    quantized = subject.quantized_weights(width)
    tied = _tied(subject.model)
    tensors = {name: tensor for name, tensor in subject.model.state_dict().items() if name not in tied}
    for name, weight in quantized.items():
        tensors[name] = torch.from_numpy(pack(weight.codes, weight.bits))
        tensors[f"{name}.step"] = weight.step
    activations = {}
    for site in subject.activation_sites():
        if (bits := subject.bits(site, width)) != FLOAT:
            grid = subject.grid(site, width)
            tensors[f"{site}.step"] = grid.step
            activations[site] = {"bits": bits, "low": _number(grid.low), "high": _number(grid.high)}
    packed = {name: {"bits": q.bits, "low": _number(q.low), "shape": list(q.codes.shape)} for name, q in quantized.items()}
    save(path, tensors, {"format": FORMAT, "width": str(width), "packed": json.dumps(packed),
                         "activations": json.dumps(activations), "steps": subject.steps_at(width),
                         **({"tied": json.dumps(tied)} if tied else {})})


def read_archive(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return (parameters and buffers as float32, {"width", "activations"}), exactly the fake-quant weights."""
    tensors, metadata = load(path)
    if metadata.get("format") != FORMAT:
        raise RunError(f"{path} is not an archive of anybit: its format is '{metadata.get('format')}', not '{FORMAT}'")
    try:
        packed, activations = (bounded(json.loads(metadata[key])) for key in ("packed", "activations"))
        weights = {name: _weight(tensors, name, entry) for name, entry in packed.items()}
        sites = {site: {**entry, "step": float(tensors.pop(f"{site}.step"))} for site, entry in activations.items()}
        rest = {name: tensor for name, tensor in tensors.items() if name.removesuffix(".step") not in packed}
        every = {**rest, **weights}
        tied = {name: every[first] for name, first in bounded(json.loads(metadata.get("tied", "{}"))).items()}
    except (KeyError, ValueError, TypeError, AttributeError, RuntimeError, RecursionError) as error:
        raise RunError(f"{path} is damaged ({type(error).__name__}: {error})") from None
    return {**every, **tied}, {"width": metadata.get("width", ""), "activations": sites}


def _tied(model: nn.Module) -> dict[str, str]:
    """Return {further name of a parameter or buffer: its first}."""
    first = dict[int, str]()
    known = {name: first.setdefault(id(tensor), name) for name, tensor in model.state_dict(keep_vars=True).items()}
    return {name: original for name, original in known.items() if name != original}


def _number(level: Tensor | float) -> float:
    """Return a level as JSON has it: −2 without a point, −1.5 with one."""
    value = float(level)
    return int(value) if value.is_integer() else value


def _weight(tensors: Mapping[str, Tensor], name: str, entry: Mapping[str, Any]) -> Tensor:
    bits, low, shape = entry["bits"], entry["low"], torch.Size(entry["shape"])
    stream, step = tensors[name], tensors[f"{name}.step"]
    if bits not in BITS or not -(2**bits) < low <= 0 or 2 * low % 1 or any(n < 0 for n in shape):
        raise ValueError(f"'{name}' cannot have {bits} bits from {low} and shape {tuple(shape)}")
    # Any other shape would broadcast: a small file could ask for all memory.
    if step.dtype != torch.float32 or step.shape not in (torch.Size(()), torch.Size((*shape[:1], *[1] * (len(shape) - 1)))):
        raise ValueError(f"'{name}' of shape {tuple(shape)} has steps of shape {tuple(step.shape)}")
    if len(stream) != (needed := packed_size(shape.numel(), bits)) or stream.dtype != torch.uint8:
        raise ValueError(f"'{name}' holds {len(stream)} bytes, but {tuple(shape)} at {bits} bits needs {needed}")
    codes = torch.from_numpy(unpack(stream.numpy(), bits, shape.numel())).reshape(shape)
    weight: Tensor = step * (codes.to(torch.float32) + low)
    return weight
