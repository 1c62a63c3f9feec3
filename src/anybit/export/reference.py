"""The fake-quant model that an artifact is compared with: training's quantizers, plus those that the export adds.

Integer kernels need more on the grid than training had: the output of a convolution (8 bits) and the bias of a layer
(32 bits). Both are added here too, so that a difference means an error and not a choice.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from anybit.export.integer import bias_codes, bias_scale
from anybit.export.subject import Subject
from anybit.federated.metrics import per_example
from anybit.inputs import called, floats_to, selected
from anybit.quant.grid import BITS, FLOAT, Grid, Width, limits, quantize, rounding
from anybit.quant.ranges import cover_steps
from anybit.quant.sites import prepare, quantizers

OUTPUT_BITS = 8


@dataclass(frozen=True)
class Additions:
    """The quantizers that an export adds to those of the training."""

    outputs: Mapping[str, Grid] = field(default_factory=dict)
    """{layer: output grid}."""
    biases: tuple[str, ...] = ()
    """Layers whose bias is rounded to (input step · weight step)."""

    def words(self) -> list[str]:
        out = [f"{OUTPUT_BITS}-bit output quantizer on {len(self.outputs)} layers"] if self.outputs else []
        return out + ([f"32-bit bias on {len(self.biases)} layers"] if self.biases else [])


class _Output(nn.Module):
    """A quantizer on a fixed grid."""

    def __init__(self, grid: Grid) -> None:
        super().__init__()
        for name, value in grid._asdict().items():
            self.register_buffer(name, value)

    def forward(self, x: Tensor) -> Tensor:
        return quantize(x, Grid(*self.buffers()))


class _Tap(nn.Module):
    """A recorder of the range of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.high = torch.zeros(()), torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        self.low, self.high = torch.minimum(self.low, x.min()), torch.maximum(self.high, x.max())
        return x


def reference(subject: Subject, width: Width, added: Additions = Additions()) -> nn.Module:
    """Return the model with Q at `width` on all its sites, and with the additions of an export."""
    model = prepare(subject.model, rounding, rounding, subject.evaluator.sites).eval()
    for site, quantizer in quantizers(model).items():
        if subject.bits(site, width) != FLOAT:
            quantizer.step, quantizer.low, quantizer.high = (t.clone() for t in subject.grid(site, width))
    weights = subject.quantized_weights(width)
    for layer in added.biases:
        scale = bias_scale(weights[subject.weight_of[layer]], subject.grid(subject.input_sites[layer], width))
        bias = model.get_submodule(layer).bias
        assert isinstance(bias, Tensor)
        bias.data = torch.from_numpy((bias_codes(bias.detach().numpy(), scale) * scale).astype(np.float32))
    return _followed(model, {layer: _Output(grid) for layer, grid in added.outputs.items()})


def _followed(model: nn.Module, after: Mapping[str, nn.Module]) -> nn.Module:
    """Put a module after each named layer, wherever that layer is used."""
    layers = {id(model.get_submodule(name)): new for name, new in after.items()}
    if id(model) in layers:
        return nn.Sequential(model, layers[id(model)])
    places = [(parent, name, child) for parent in list(model.modules()) for name, child in parent._modules.items()
              if child is not None and id(child) in layers]
    for parent, name, child in places:
        parent._modules[name] = nn.Sequential(child, layers[id(child)])
    return model


@torch.no_grad()
def output_grids(subject: Subject, width: Width, layers: list[str]) -> dict[str, Grid]:
    """Find grids that cover the outputs of layers at `width` on training images."""
    taps = {layer: _Tap() for layer in layers}
    called(_followed(reference(subject, width), taps), subject.images)
    low, high = limits(torch.tensor(OUTPUT_BITS), "full")
    return {layer: Grid(cover_steps(tap.low, tap.high, "full")[BITS.index(OUTPUT_BITS)], low, high)
            for layer, tap in taps.items()}


@torch.no_grad()
def outputs(model: nn.Module, subject: Subject, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the model's outputs on the test set; float64 is the control for differences by rounding alone."""
    model = copy.deepcopy(model).to(dtype)
    parts = [selected(called(model, floats_to(inputs, dtype)), subject.output)
             for inputs in subject.test_batches(subject.evaluator.batch_size)]
    return torch.cat(parts).to(torch.float32)


def exact_outputs(model: nn.Module, subject: Subject) -> Tensor:
    """Return the outputs in float64; in float32 where forward makes float32 of its own, as by x.float() or torch.zeros."""
    try:
        return outputs(model, subject, torch.float64)
    except RuntimeError:
        return outputs(model, subject)


def metric(subject: Subject, result: Tensor) -> float:
    """Return the run's metric over the test set."""
    return float(per_example(subject.evaluator.metric, "metric", result, subject.data.test.y).double().mean())


def metric_scale(subject: Subject, result: Tensor) -> float:
    """Return the size of a difference of the metric: its value, or what sets it apart from always giving the mean output.

    An error near 0 is no scale of its own: the model's gain over the mean output still is.
    """
    value, trivial = metric(subject, result), metric(subject, result.mean(0, keepdim=True).expand_as(result))
    return max((abs(x) for x in (value, value - trivial) if math.isfinite(x)), default=0.0)
