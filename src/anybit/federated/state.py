"""What the server keeps between rounds, what clients train of it, and what they are given beside it."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anybit.errors import ModelError
from anybit.quant.ranges import StepTable
from anybit.quant.sites import quantizers
from anybit.tensors import Tensors


class LogSteps(NamedTuple):
    """log(Δ/Δ_start) of the sites whose step sizes are learned, by kind as in a width; first dimension BITS."""

    weights: dict[str, Tensor]
    activations: dict[str, Tensor]

    def by_site(self) -> dict[str, Tensor]:
        """Return {site: log(Δ/Δ_start)}."""
        return {**self.weights, **self.activations}


class Trainable(NamedTuple):
    """What a client trains, and what its delta consists of."""

    w: dict[str, Tensor]
    log_steps: LogSteps = LogSteps({}, {})

    def named(self) -> dict[str, Tensor]:
        """Return all tensors under the names that files and messages give them."""
        return {**self.w, **{f"log_step/{site}": value for site, value in self.log_steps.by_site().items()}}

    def from_names(self, tensors: Tensors) -> Trainable:
        """Read what `named` wrote, in this one's form and order: sums over parameters must add up as they do elsewhere."""
        log_steps = (({site: tensors[f"log_step/{site}"] for site in kind}) for kind in self.log_steps)
        return Trainable({name: tensors[name] for name in self.w}, LogSteps(*log_steps))


class Given(NamedTuple):
    """What a client is given and does not train."""

    step_sizes: dict[str, Tensor]
    """Δ of every site, first dimension BITS; of learned ones Δ_start."""
    strengths: tuple[Tensor, ...] = ()
    """λ of every penalty."""


class State(NamedTuple):
    """What the server keeps between rounds."""

    w: dict[str, Tensor]
    log_steps: LogSteps
    optimizer: Any
    """What the server's optimizer keeps: a tree of its own form."""
    average: dict[str, Tensor] = {}  # noqa: RUF012 (never changed: a state is a value)
    """An average of w over the rounds; empty where none is kept."""

    @property
    def trainable(self) -> Trainable:
        """What clients start a round from."""
        return Trainable(self.w, self.log_steps)


def trainable_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return w: the parameters that clients train, by name."""
    w = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    if bad := next((name for name, p in w.items() if not bool(torch.isfinite(p).all())), None):
        raise ModelError(f"parameter '{bad}' holds NaN or infinity before any training: initialize the model anew")
    if not w:
        raise ModelError("the model has no parameter that requires a gradient: nothing can be trained")
    return w


def unlearned(prepared: nn.Module, table: StepTable) -> LogSteps:
    """Return log(Δ/Δ_start) = 0 of every site that training transforms."""
    def zeros(kind: Any) -> dict[str, Tensor]:
        return {name: torch.zeros_like(table.steps[name]) for name, site in sorted(quantizers(prepared, kind).items())
                if site.transform is not None}
    return LogSteps(zeros("weights"), zeros("activations"))


def learned_table(table: StepTable, log_steps: Tensors) -> StepTable:
    """Return the table with learned step sizes Δ_start·exp(log(Δ/Δ_start)) in it."""
    return table.merged(StepTable({site: table.steps[site] * value.exp() for site, value in log_steps.items()}))
