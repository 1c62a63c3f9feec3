"""ExecuTorch with XNNPACK, the second runtime: 8 bits, weights and activations.

XNNPACK computes a layer in int8 only if its input *and* its output are on a grid; otherwise the layer falls to slow
kernels. So every layer gets an 8-bit output quantizer, which is part of the reference too.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anybit.errors import ConfigError, ModelError, option
from anybit.export.artifact import Artifact
from anybit.export.bench import Latency, in_turns
from anybit.export.extras import need, quiet
from anybit.export.positional import batch_of, positional
from anybit.export.reference import Additions, output_grids, reference
from anybit.export.subject import Subject
from anybit.export.verify import verdict
from anybit.files.writing import write_bytes
from anybit.inputs import Inputs, leaves
from anybit.quant.grid import Grid, Width

BATCH = 64
"""The largest batch: ExecuTorch plans memory for it (and may lower it)."""
_PRODUCTS = ("convolution", "linear", "addmm", "mm", "bmm")


class _Layer(nn.Module):
    """A layer with its weight as int8 and quantize–dequantize pairs that XNNPACK folds into one kernel."""

    def __init__(self, layer: nn.Module, codes: Tensor, step_sizes: tuple[float, ...], low: int) -> None:
        super().__init__()
        self.layer, self.low = layer, low
        self.weight_step, self.input_step, self.output_step = step_sizes
        self.register_buffer("codes", codes)
        del layer.weight

    def forward(self, x: Tensor) -> Tensor:
        ops = torch.ops.quantized_decomposed
        weight = ops.dequantize_per_tensor(self.codes, self.weight_step, 0, self.low, 127, torch.int8)
        layer: Any = self.layer
        product = nn.functional.linear if isinstance(layer, nn.Linear) else layer._conv_forward
        out: Tensor = _round_trip(product(_round_trip(x, self.input_step), weight, layer.bias), self.output_step)
        return out


def _round_trip(x: Tensor, step: float) -> Any:
    ops = torch.ops.quantized_decomposed
    q = ops.quantize_per_tensor(x, step, 0, -128, 127, torch.int8)
    return ops.dequantize_per_tensor(q, step, 0, -128, 127, torch.int8)


def _need(module: str) -> Any:
    return need(f"executorch.{module}", "executorch", "an ExecuTorch artifact")


def export_executorch(subject: Subject, path: Path, width: Width) -> Artifact:
    """Write and verify a .pte file."""
    if width != Width(8, 8):
        raise ConfigError(f"width {width}: ExecuTorch's XNNPACK computes in 8 bits; use WA8, or {option('runtime', 'onnx')}")
    if other := next((n for n, fed_by in subject.matrices.items() if [f"{layer}.weight" for layer in fed_by] != [n]), None):
        raise ModelError(f"parameter '{other}': the ExecuTorch export takes convolutions and linear layers with a weight of "
                         f"their own; use {option('runtime', 'onnx')}")
    with quiet():
        _need("exir")
        grids = output_grids(subject, width, subject.layers)
        model = positional(_quantized(subject, width, grids), subject.images, subject.output)
        program, remaining = _lowered(model, subject.images)
        write_bytes(path, program)
        result, latency = _run(path, subject)
    added = Additions(grids, tuple(n for n in subject.layers if subject.model.get_submodule(n).bias is not None))
    problem = f"{remaining} layers were not taken by XNNPACK" if remaining else ""
    judged = verdict(subject, width, reference(subject, width), reference(subject, width, added), result, problem)
    weights = sum(w.codes.size for w in subject.quantized_weights(width).values())
    return Artifact(path.name, str(width), "executorch", path.stat().st_size, subject.float_bytes, {"8": weights}, judged,
                    {"8": "int8"}, {"XNNPACK": len(subject.layers) - remaining}, added.words(), {},
                    subject.untrained(width), latency)


def _quantized(subject: Subject, width: Width, outputs: dict[str, Grid]) -> nn.Module:
    """Copy the model with integers in its layers."""
    model, weights = copy.deepcopy(subject.model), subject.quantized_weights(width)
    for name in subject.layers:
        layer, site = model.get_submodule(name), f"{name}.input_quantizer"
        weight = weights.get(f"{name}.weight")
        if weight is None or subject.bits(site, width) != 8 or weight.bits != 8 or weight.step.dim():
            raise ModelError(f"layer '{name}': the ExecuTorch export needs weights and activations of every layer in 8 "
                             f"bits with one step size per tensor; use {option('runtime', 'onnx')}")
        if isinstance(layer, nn.modules.conv._ConvTransposeNd) or 0 in (weight.low, subject.grid(site, width).low):
            raise ModelError(f"layer '{name}': XNNPACK has no signed 8-bit {type(layer).__name__}; use "
                             + option("runtime", "onnx"))
        low = weight.integers().low
        codes = torch.from_numpy(weight.codes.astype("int16") + low).to(torch.int8)
        step_sizes = tuple(float(s) for s in (weight.step, subject.grid(site, width).step, outputs[name].step))
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, _Layer(layer, codes, step_sizes, low))
    return model


def _lowered(model: nn.Module, images: Inputs) -> tuple[bytes, int]:
    """Return (the program, the number of products that stayed outside XNNPACK)."""
    exir, partition = _need("exir"), _need("backends.xnnpack.partition.xnnpack_partitioner")
    batch = torch.export.Dim("batch", min=1, max=BATCH)
    tensors = tuple(_plain(x[:2]) for x in leaves(images).values())
    program = torch.export.export(model, tensors, dynamic_shapes=batch_of(model, tensors, batch))
    edge = exir.to_edge_transform_and_lower(program, partitioner=[partition.XnnpackPartitioner()])
    names = [str(node.target) for node in edge.exported_program().graph.nodes if node.op == "call_function"]
    remaining = sum(any(f".{product}." in name for product in _PRODUCTS) for name in names)
    return bytes(edge.to_executorch().buffer), remaining


def _run(path: Path, subject: Subject) -> tuple[Tensor, Latency]:
    """Return the outputs of the artifact on the test set, and its latency for one image."""
    method = _need("runtime").Runtime.get().load_program(path).load_method("forward")
    most = method.metadata.input_tensor_meta(0).sizes()[0]
    parts = [method.execute(_list(inputs))[0].clone() for inputs in subject.test_batches(most)]
    one = _list(next(subject.test_batches(1)))
    return torch.cat(parts), in_turns([lambda: method.execute(one)])[0]


def _list(inputs: Inputs) -> list[Tensor]:
    return [_plain(x) for x in leaves(inputs).values()]


def _plain(x: Tensor) -> Tensor:
    # Strides of dimensions of size 1 are arbitrary, and ExecuTorch compares them.
    return torch.empty(x.shape, dtype=x.dtype).copy_(x)
