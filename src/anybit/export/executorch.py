"""ExecuTorch with XNNPACK, the second runtime: 8 bits, weights and activations.

XNNPACK computes a layer in int8 only if its input *and* its output are on a grid; otherwise the layer falls to slow
kernels. So every layer gets an 8-bit output quantizer, which is part of the reference too.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from anybit.errors import ConfigError, ModelError
from anybit.export.bench import Latency, in_turns
from anybit.export.extras import need, quiet
from anybit.export.reference import Additions, output_grids, reference
from anybit.export.subject import Subject
from anybit.export.verify import verdict
from anybit.files.writing import write_bytes
from anybit.quant.grid import Grid, Width

if TYPE_CHECKING:
    from anybit.export.artifact import Artifact

BATCH = 64
"""The largest batch: ExecuTorch plans memory for it (and may lower it)."""
_PRODUCTS = ("convolution", "linear", "addmm", "mm", "bmm")


class _Layer(nn.Module):
    """A layer with its weight as int8 and quantize–dequantize pairs that XNNPACK folds into one kernel."""

    def __init__(self, layer: nn.Module, codes: Tensor, steps: tuple[float, ...], low: int) -> None:
        super().__init__()
        self.layer, self.low = layer, low
        self.weight_step, self.input_step, self.output_step = steps
        self.register_buffer("codes", codes)
        del layer.weight

    def forward(self, x: Tensor) -> Tensor:
        ops = torch.ops.quantized_decomposed
        assert isinstance(self.codes, Tensor)
        weight = ops.dequantize_per_tensor(self.codes, self.weight_step, 0, self.low, 127, torch.int8)
        y = _product(self.layer, _round_trip(x, self.input_step), weight)
        return _round_trip(y, self.output_step)


def _round_trip(x: Tensor, step: float) -> Tensor:
    ops = torch.ops.quantized_decomposed
    q = ops.quantize_per_tensor(x, step, 0, -128, 127, torch.int8)
    out: Tensor = ops.dequantize_per_tensor(q, step, 0, -128, 127, torch.int8)
    return out


def _product(layer: Any, x: Tensor, weight: Tensor) -> Tensor:
    if isinstance(layer, nn.Linear):
        return torch.nn.functional.linear(x, weight, layer.bias)
    out: Tensor = layer._conv_forward(x, weight, layer.bias)
    return out


def export_executorch(subject: Subject, path: Path, width: Width) -> Artifact:
    """Write and verify a .pte file."""
    from anybit.export.artifact import Artifact

    if width != Width(8, 8):
        raise ConfigError(f"width {width}: ExecuTorch's XNNPACK computes in 8 bits; use WA8, or --runtime onnx")
    with quiet():
        need("executorch.exir", "executorch", "an ExecuTorch artifact")
        grids = output_grids(subject, width, subject.layers)
        program, remaining = _lowered(_quantized(subject, width, grids), subject.images)
        write_bytes(path, program)
        result, speed = _run(path, subject)
    biased = tuple(n for n in subject.layers if subject.model.get_submodule(n).bias is not None)
    added = Additions(grids, biased)
    problem = f"{remaining} layers were not taken by XNNPACK" if remaining else ""
    judged = verdict(subject, reference(subject, width), reference(subject, width, added), result, problem)
    weights = sum(w.codes.size for w in subject.quantized_weights(width).values())
    fp32 = sum(t.numel() * t.element_size() for t in subject.model.state_dict().values())
    return Artifact(path.name, str(width), "executorch", path.stat().st_size, fp32, {"8": weights}, judged,
                    {"8": "int8"}, {"XNNPACK": len(subject.layers) - remaining}, added.words(), {},
                    subject.untrained(width), speed)


def _quantized(subject: Subject, width: Width, outputs: dict[str, Grid]) -> nn.Module:
    """A copy of the model whose layers carry integers."""
    model, weights = copy.deepcopy(subject.model), subject.quantized_weights(width)
    for name in subject.layers:
        layer, site = model.get_submodule(name), f"{name}.input_quantizer"
        weight = weights.get(f"{name}.weight")
        if weight is None or subject.bits(site, width) != 8 or weight.bits != 8 or weight.step.dim():
            raise ModelError(f"layer '{name}': the ExecuTorch export needs weights and activations of every layer in 8 "
                             "bits with one step per tensor; use --runtime onnx")
        if isinstance(layer, nn.modules.conv._ConvTransposeNd) or 0 in (weight.low, subject.grid(site, width).low):
            raise ModelError(f"layer '{name}': XNNPACK has no signed 8-bit {type(layer).__name__}; use --runtime onnx")
        codes = torch.from_numpy(weight.codes.astype("int16") + weight.low).to(torch.int8)
        steps = tuple(float(s) for s in (weight.step, subject.grid(site, width).step, outputs[name].step))
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, _Layer(layer, codes, steps, weight.low))
    return model


def _lowered(model: nn.Module, images: Tensor) -> tuple[bytes, int]:
    """(the program, how many products stayed outside XNNPACK)."""
    exir = need("executorch.exir", "executorch", "an ExecuTorch artifact")
    partition = need("executorch.backends.xnnpack.partition.xnnpack_partitioner", "executorch",
                     "an ExecuTorch artifact")
    batch = torch.export.Dim("batch", min=1, max=BATCH)
    program = torch.export.export(model, (_plain(images[:2]),), dynamic_shapes=({0: batch},))
    edge = exir.to_edge_transform_and_lower(program, partitioner=[partition.XnnpackPartitioner()])
    names = [str(node.target) for node in edge.exported_program().graph.nodes if node.op == "call_function"]
    remaining = sum(any(f".{product}." in name for product in _PRODUCTS) for name in names)
    content: bytes = edge.to_executorch().buffer
    return bytes(content), remaining


def _run(path: Path, subject: Subject) -> tuple[Tensor, Latency]:
    """What the artifact says of the whole test set, and how long it takes for one image."""
    runtime = need("executorch.runtime", "executorch", "an ExecuTorch artifact").Runtime.get()
    method = runtime.load_program(path).load_method("forward")
    x, most = subject.data.test.x, method.metadata.input_tensor_meta(0).sizes()[0]
    parts = [method.execute([_plain(subject.data.pipeline(x[i:i + most]))])[0].clone() for i in range(0, len(x), most)]
    one = _plain(subject.data.pipeline(x[:1]))
    return torch.cat(parts), in_turns([lambda: method.execute([one])])[0]


def _plain(x: Tensor) -> Tensor:
    """A fresh tensor: strides of dimensions of size 1 are arbitrary, and ExecuTorch compares them."""
    return torch.empty(x.shape).copy_(x)
