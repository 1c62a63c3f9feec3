"""Test vectors of archives: a few inputs and what the evaluation's model gives for them, for readers to check themselves.

The inputs are drawn, so that no artifact holds anybody's data.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor

from anybit.errors import ModelError
from anybit.export.interpreter import computed
from anybit.export.nodes import Node
from anybit.export.reference import reference
from anybit.export.subject import Subject
from anybit.inputs import called, selected
from anybit.quant.grid import FLOAT, Width
from anybit.randomness import generator

EXAMPLES = 2
CANDIDATES = 16
ERROR = 1e-4
"""The relative difference of outputs that is allowed at least: a few thousand sums in another order in float32."""


class Sample(NamedTuple):
    """Inputs before their normalization, the outputs, and the largest difference that a reader may see."""

    inputs: Tensor
    outputs: Tensor
    tolerance: float


@torch.no_grad()
def drawn(subject: Subject, width: Width, nodes: Sequence[Node]) -> Sample:
    """Draw inputs and keep those on which other ways to compute, in float64 and in readers, differ least.

    Where activations are rounded, a value between two levels may fall to either in the last bit, and such an input would
    tell nothing of a reader.
    """
    inputs = _inputs(subject)
    x = subject.data.pipeline(inputs)
    model = reference(subject, width)
    outputs = selected(called(model, x), subject.output)
    if not bool(outputs.isfinite().all()):
        raise ModelError("the model's outputs are not finite")
    exact = outputs
    with suppress(RuntimeError):  # forward makes float32 of its own, as by x.float() or torch.zeros
        exact = selected(called(model.double(), x.double()), subject.output)
    parameters = dict(subject.model.state_dict())
    for name, weight in subject.quantized_weights(width).items():
        parameters[name] = weight.step * (torch.from_numpy(weight.codes).to(torch.float32) + weight.low)
    grids = {site: subject.grid(site, width) for site in subject.activation_sites() if subject.bits(site, width) != FLOAT}
    read = computed(nodes, parameters, grids, x, precise=True)
    error = torch.maximum((outputs - exact).abs(), (outputs - read).abs()).reshape(len(x), -1).amax(1)
    kept = error.argsort(stable=True)[:EXAMPLES].sort().values
    largest = max(ERROR * float(outputs[kept].abs().max()), 10 * float(error[kept].max()), 1e-6)
    return Sample(inputs[kept], outputs[kept], float(f"{largest:.1e}"))


def _inputs(subject: Subject) -> Tensor:
    """Draw bytes, or floats with the mean and the deviation of the data's."""
    assert isinstance(subject.images, Tensor)
    draws, shape, data = generator(0, "test vector"), (CANDIDATES, *subject.images.shape[1:]), subject.data.test.x
    if subject.from_bytes or not isinstance(data, Tensor):
        return torch.from_numpy(draws.integers(0, 256, shape, "uint8"))
    spread = torch.from_numpy(draws.uniform(-2, 2, shape).astype("float32"))
    return data.mean() + spread * data.std(correction=0)
