"""The server's w: what clients train, and the learned steps that travel with it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from anybit.errors import ModelError
from anybit.federated.algorithm import LOG_STEP, State
from anybit.quant.ranges import StepTable


def trainable(model: nn.Module) -> dict[str, Tensor]:
    """w: the parameters that clients train, by name."""
    w = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    if bad := next((name for name, p in w.items() if not bool(torch.isfinite(p).all())), None):
        raise ModelError(f"parameter '{bad}' holds NaN or infinity before any training: initialize the model anew")
    if not w:
        raise ModelError("the model has no parameter that requires a gradient: nothing can be trained")
    return w


def weights(state: State) -> dict[str, Tensor]:
    """The server's w without learned steps."""
    return {n: p for n, p in state.w.items() if not n.startswith(LOG_STEP)}


def learned_table(state: State, table: StepTable) -> StepTable:
    """The table with the learned steps in it."""
    learned = {n.removeprefix(LOG_STEP): p.exp() for n, p in state.w.items() if n.startswith(LOG_STEP)}
    return table.merged(StepTable({site: table.steps[site] * factor for site, factor in learned.items()}))

