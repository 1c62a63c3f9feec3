"""The archive: a safetensors file with bit-packed weights and all that a device needs to run them (docs/file-formats.md).

safetensors has no type below 8 bits, so a quantized weight is a U8 bit stream (see packing). Per file:

* `NAME` · U8 · the packed codes of parameter NAME, for every parameter that the metadata's `packed` names
* `NAME.step` · F32 · its step size, of shape () or (channels, 1, …)
* `SITE.step` · F32 · the step size of every activation site that the width quantizes
* `test/inputs`, `test/outputs` · inputs before their normalization, and the outputs that the evaluation's model gives
* every other parameter and buffer under its own name, as it is

The metadata is text, most of it JSON: KEYS. The weight is step · (codes + low), in float32; low and high are whole numbers,
or lie halfway between two (−1.5). Version 1 has weights and grids alone, and goes on being read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anybit.errors import ModelError, RunError
from anybit.export.c.trace import traced
from anybit.export.interpreter import computed, normalized
from anybit.export.nodes import Node, nodes_of
from anybit.export.packing import pack, packed_size, unpack
from anybit.export.sample import Sample, drawn
from anybit.export.subject import Subject, Trace
from anybit.files.reading import bounded
from anybit.files.safetensors import load, save
from anybit.inputs import leaves
from anybit.quant.grid import BITS, FLOAT, Grid, Width

VERSIONS = ("anybit-archive-1", "anybit-archive-2")
FORMAT = VERSIONS[-1]
KEYS = {
    "format": "anybit-archive-2", "width": "W4, W4A8, …", "steps": "where the step sizes come from, in words",
    "rounding": "half-even", "packed": "{NAME: {bits, low, offset, shape}}",
    "activations": "{SITE: {bits, low, offset, high}}", "tied": "{further name of a tensor: the one it is stored under}",
    "input": "{type, shape, mean, std}", "output": "{shape, classes}", "graph": "[{op, in, shape, …}]",
    "no_graph": "instead of graph: why there is none", "test": "{tolerance}",
    "sha256": "of the whole file, with 64 zeros in its place", "sha256_of": "file"}
"""{key of the metadata: what it holds}."""
_TEST = ("test/inputs", "test/outputs")
_NETWORK = ("input", "output", "graph", "test")


def write_archive(path: Path, subject: Subject, width: Width, trace: Callable[[], Trace] | None = None) -> None:
    """Write the model at a width; trace: gives what `traced` does, where several widths share it."""
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
            activations[site] = {**_levels(bits, float(grid.low)), "high": _number(float(grid.high))}
    packed = {name: {**_levels(q.bits, q.low), "shape": list(q.codes.shape)} for name, q in quantized.items()}
    facts = {"packed": packed, "activations": activations, **({"tied": tied} if tied else {})}
    network, sample = _network(subject, width, trace)
    if sample is not None:
        tensors |= dict(zip(_TEST, (sample.inputs, sample.outputs), strict=True))
    save(path, tensors, {"format": FORMAT, "width": str(width), "steps": subject.steps_at(width), "rounding": "half-even",
                         **{key: json.dumps(value, separators=(",", ":")) for key, value in facts.items()}, **network})


def _network(subject: Subject, width: Width, trace: Callable[[], Trace] | None) -> tuple[dict[str, str], Sample | None]:
    """Return (the metadata of the network, its test vector), or why it has no graph."""
    try:
        nodes = nodes_of(subject, *(trace() if trace else traced(subject)), width)
        sample = drawn(subject, width, nodes)
    except ModelError as error:
        return {"no_graph": str(error)}, None
    pipeline, names = subject.data.pipeline, subject.data.class_names
    shape = nodes[-1]["shape"]
    facts = {"input": {"type": "U8" if subject.from_bytes else "F32", "shape": list(sample.inputs.shape[1:]),
                       "mean": list(pipeline.mean or ()), "std": list(pipeline.std or ())},
             "output": {"shape": shape, "classes": list(names) if shape[:1] == [len(names)] else []},
             "graph": nodes, "test": {"tolerance": sample.tolerance}}
    return {key: json.dumps(value, separators=(",", ":")) for key, value in facts.items()}, sample


def read_archive(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return (parameters and buffers as float32, exactly the fake-quant weights, and the facts of the metadata).

    Facts are "width", "activations" with their step sizes and, where the file has them, "input", "output", "graph" or
    "no_graph", and "test" with its "inputs" and "outputs".
    """
    tensors, metadata = load(path)
    if metadata.get("format") not in VERSIONS:
        raise RunError(f"{path} is not an archive that this version of anybit reads: its format is "
                       f"'{metadata.get('format')}', not '{VERSIONS[0]}' or '{FORMAT}'")
    try:
        packed, activations = (bounded(json.loads(metadata[key])) for key in ("packed", "activations"))
        test = {key.partition("/")[2]: tensors.pop(key) for key in _TEST if metadata["format"] == FORMAT and key in tensors}
        weights = {name: _weight(tensors, name, entry) for name, entry in packed.items()}
        sites = {site: {**entry, "step": float(tensors.pop(f"{site}.step"))} for site, entry in activations.items()}
        rest = {name: tensor for name, tensor in tensors.items() if name.removesuffix(".step") not in packed}
        every = {**rest, **weights}
        tied = {name: every[first] for name, first in bounded(json.loads(metadata.get("tied", "{}"))).items()}
        facts: dict[str, Any] = {key: bounded(json.loads(metadata[key])) for key in _NETWORK if key in metadata}
        if "test" in facts:
            facts["test"] = {**facts["test"], **test}
    except (KeyError, ValueError, TypeError, AttributeError, RuntimeError, RecursionError) as error:
        raise RunError(f"{path} is damaged ({type(error).__name__}: {error})") from None
    known = {key: metadata[key] for key in ("no_graph",) if key in metadata}
    return {**every, **tied}, {"width": metadata.get("width", ""), "activations": sites, **facts, **known}


class Network:
    """The network of an archive, run from the file alone."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tensors, self.facts = read_archive(path)
        if "graph" not in self.facts:
            raise RunError(f"{path} has weights and no graph: {self.facts.get('no_graph', 'it is of version 1')}")
        self.grids = {site: Grid(*(torch.tensor(float(entry[key])) for key in ("step", "low", "high")))
                      for site, entry in self.facts["activations"].items()}

    def __call__(self, x: Tensor, precise: bool = False) -> Tensor:
        """Return the outputs for a batch of normalized inputs."""
        try:
            nodes: list[Node] = self.facts["graph"]
            return computed(nodes, self.tensors, self.grids, x, precise)
        except (KeyError, ValueError, TypeError, AttributeError, IndexError, RuntimeError) as error:
            raise RunError(f"{self.path} has a damaged graph ({type(error).__name__}: {error})") from None

    def raw(self, x: Tensor) -> Tensor:
        """Return the outputs for bytes or floats as the metadata's `input` has them, computed as readers do."""
        return self(normalized(self.facts["input"], x), precise=True)


def archive_outputs(path: Path, subject: Subject) -> tuple[Tensor, str]:
    """Return (the outputs on the test set, a problem with the test vector or none), from the file alone."""
    network = Network(path)
    test = network.facts["test"]
    difference = float((network.raw(test["inputs"]) - test["outputs"]).abs().max())
    problem = "" if difference <= test["tolerance"] else f"its test vector is missed by {difference:.3g}"
    batches = (network(next(iter(leaves(x).values()))) for x in subject.test_batches(subject.evaluator.batch_size))
    return torch.cat(list(batches)), problem


def _tied(model: nn.Module) -> dict[str, str]:
    """Return {further name of a parameter or buffer: its first}."""
    first = dict[int, str]()
    known = {name: first.setdefault(id(tensor), name) for name, tensor in model.state_dict(keep_vars=True).items()}
    return {name: original for name, original in known.items() if name != original}


def _levels(bits: int, low: float) -> dict[str, float]:
    return {"bits": bits, "low": _number(low), "offset": _number(low - math.floor(low))}


def _number(level: float) -> float:
    """Return a level as JSON has it: −2 without a point, −1.5 with one."""
    return int(level) if level.is_integer() else level


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
