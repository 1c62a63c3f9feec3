"""A model at one width, as a module to compute with."""

from __future__ import annotations

import copy

import torch
from torch import nn

from anybit.quant.grid import FLOAT, Width, rounding
from anybit.quant.ranges import StepTable
from anybit.quant.sites import SiteOptions, bind, parameter_of, prepare, quantizers


@torch.no_grad()
def at_width(model: nn.Module, table: StepTable, width: Width, options: SiteOptions) -> nn.Module:
    """Copy `model` for evaluation, with weights on the grid of `width` and, where it quantizes activations, their sites."""
    rounded = copy.deepcopy(model).eval()
    parameters = dict(rounded.named_parameters())
    if width.weights != FLOAT:
        for name, site in quantizers(_bound(prepare(model, rounding, None, options), table, width), "weights").items():
            parameter = parameters[parameter_of(name)]
            parameter.copy_(site(parameter))
    return rounded if width.activations == FLOAT else _bound(prepare(rounded, None, rounding, options), table, width)


def _bound(prepared: nn.Module, table: StepTable, width: Width) -> nn.Module:
    zero = torch.zeros((), dtype=torch.int64)
    buffers = bind(prepared, table.steps, torch.tensor(width), rows=torch.ones(1), key=zero, count=zero)
    for name, value in buffers.items():
        module, _, buffer = name.rpartition(".")
        setattr(prepared.get_submodule(module), buffer, value)
    return prepared.eval()
