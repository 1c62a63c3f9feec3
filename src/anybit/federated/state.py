"""The server's state between rounds, the part of it that clients train, and their constant inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anybit.errors import ModelError
from anybit.quant.checks import check_initialized
from anybit.quant.grid import GridName, bounds
from anybit.quant.ranges import StepTable, all_bits, root_mean_square
from anybit.quant.sites import parameter_of, quantizers
from anybit.tensors import Tensors


class LogSteps(NamedTuple):
    """log(Δ/Δ_start) of the sites whose step sizes are learned, by kind as in a width; first dimension BITS."""

    weights: dict[str, Tensor]
    activations: dict[str, Tensor]

    def by_site(self) -> dict[str, Tensor]:
        """Return {site: log(Δ/Δ_start)}."""
        return {**self.weights, **self.activations}


class Trainable(NamedTuple):
    """Tensors that a client trains; its delta has the same form."""

    w: dict[str, Tensor]
    log_steps: LogSteps = LogSteps({}, {})

    def named(self) -> dict[str, Tensor]:
        """Return all tensors by their names in files and messages."""
        return {**self.w, **{f"log_step/{site}": value for site, value in self.log_steps.by_site().items()}}

    def from_names(self, tensors: Tensors) -> Trainable:
        """Return the tensors of `named` in this object's order: sums over parameters depend on it."""
        log_steps = ({site: tensors[f"log_step/{site}"] for site in kind} for kind in self.log_steps)
        return Trainable({name: tensors[name] for name in self.w}, LogSteps(*log_steps))


class Given(NamedTuple):
    """Inputs of a client that it does not train."""

    step_sizes: dict[str, Tensor]
    """Δ of every site (Δ_start of learned ones), first dimension BITS."""
    strengths: tuple[Tensor, ...] = ()
    """λ of every penalty."""
    start_rms: dict[str, Tensor] = {}  # noqa: RUF012 (never changed)
    """Root mean square, at the start, of every weight whose step sizes follow it; a client gets none."""
    pace: tuple[Tensor, ...] = ()
    """Factor of the client's learning rates in the round, where it changes over the rounds."""

    def at(self, w: Tensors) -> Given:
        """Return what clients get in a round that begins with the weights w."""
        if not self.start_rms:
            return self
        return Given(followed(self.step_sizes, self.start_rms, w), self.strengths, pace=self.pace)


class State(NamedTuple):
    """The server's state between rounds."""

    w: dict[str, Tensor]
    log_steps: LogSteps
    optimizer: Any
    """State of the server's optimizer: a tree of tensors."""
    average: dict[str, Tensor] = {}  # noqa: RUF012 (never changed: a state is a value)
    """Average of w over the rounds; empty where none is kept."""

    @property
    def trainable(self) -> Trainable:
        """Start of every client in a round."""
        return Trainable(self.w, self.log_steps)


def trainable_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return w, the parameters that clients train, by name; raise if there are none, or if one is not finite."""
    check_initialized(model)
    w = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    if not w:
        raise ModelError("the model has no parameter that requires a gradient: nothing can be trained")
    return finite(w)


def finite(w: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return w; raise if a parameter is not finite."""
    if bad := next((name for name, p in w.items() if not bool(torch.isfinite(p).all())), None):
        raise ModelError(f"parameter '{bad}' holds NaN or infinity before any training: initialize the model anew")
    return w


def unlearned(prepared: nn.Module, table: StepTable) -> LogSteps:
    """Return log(Δ/Δ_start) = 0 for every site that training transforms, except weights whose step sizes follow."""
    def zeros(kind: Any) -> dict[str, Tensor]:
        return {name: torch.zeros_like(table.steps[name]) for name, site in sorted(quantizers(prepared, kind).items())
                if site.transform is not None and name not in table.start_rms}
    return LogSteps(zeros("weights"), zeros("activations"))


def trained_table(table: StepTable, w: Tensors, log_steps: Tensors) -> StepTable:
    """Return the step sizes that belong to w: followed ones at its scale, learned ones Δ = Δ_start·exp(log(Δ/Δ_start)).

    All of them positive: while training 0 stands for 32 bits, which a weight that is all zero has.
    """
    steps = {site: step.clamp_min(torch.finfo(step.dtype).tiny) if site in table.start_rms else step
             for site, step in followed(table.steps, table.start_rms, w).items()}
    return StepTable({**steps, **{site: steps[site] * between(value).exp() for site, value in log_steps.items()}})


def between(log_steps: Tensor) -> Tensor:
    """Return log(Δ/Δ_start) with the widths at which nothing was trained, still 0, in line with their nearest that were.

    At the step sizes of the start they would fit weights and ranges that are gone.
    """
    trained = (log_steps != 0).flatten(1).any(1) if log_steps.dim() > 1 else log_steps != 0
    known, out = trained.nonzero().flatten().tolist(), log_steps.clone()
    for i in range(len(log_steps)) if known else ():
        below = max((k for k in known if k <= i), default=known[0])
        above = min((k for k in known if k >= i), default=known[-1])
        share = (i - below) / (above - below) if above > below else 0.0
        out[i] = torch.lerp(log_steps[below], log_steps[above], share)
    return out


def followed(steps: Tensors, start_rms: Tensors, w: Tensors) -> dict[str, Tensor]:
    """Return Δ_start·rms(w)/rms(w_0) of the weights in `start_rms`: a range that keeps its place in their distribution."""
    def now(site: str) -> Tensor:
        return root_mean_square(w[parameter_of(site)], start_rms[site].dim() > 0)
    return {**steps, **{site: steps[site] * (now(site) / rms) for site, rms in start_rms.items()}}


def projected(w: Tensors, step_sizes: Tensors, grids: Mapping[str, GridName]) -> dict[str, Tensor]:
    """Return w with every weight of a site in `grids` clipped to its widest range, min_b Δ_b·low_b … max_b Δ_b·high_b.

    A weight outside of all ranges gets no gradient at any low width, and would only drift.
    """
    out, ends = dict(w), dict[GridName, tuple[Tensor, Tensor]]()
    for site, grid in grids.items():
        name, steps = parameter_of(site), step_sizes[site]
        if grid not in ends:
            ends[grid] = bounds(all_bits(steps.device), grid)
        low, high = (steps * end.to(steps.dtype).reshape(-1, *[1] * (steps.dim() - 1)) for end in ends[grid])
        # A weight that was all zero had no range yet.
        out[name] = torch.where((steps > 0).all(0), w[name].clamp(low.amin(0), high.amax(0)), w[name])
    return out
