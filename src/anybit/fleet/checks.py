"""Checks of an answer before it counts: client, round, names, shapes, types, finiteness, size, norm."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from anybit.config import ClientOptions, FleetOptions
from anybit.federated.state import Trainable
from anybit.fleet.exchange import Reply
from anybit.fleet.flower import RecordDict
from anybit.fleet.text import brief
from anybit.fleet.traffic import rounded_layout, unrounded_delta
from anybit.fleet.wire import MAX_STEPS, Layout, Refused, check_content, layout, read_tensors, read_values
from anybit.quant.grid import FLOAT, Width
from anybit.quant.ranges import all_bits

ANSWER = {"client": int, "round": int, "examples": int, "seconds": float}
TRAINED = {**ANSWER, "width": str, "losses": list, "score": float}
PRIVATE = {"client": int, "round": int, "width": str}
"""All that a device says beside its delta where it is promised privacy."""
LARGEST_DELTA = 1e6
"""The largest change of a weight in a round: its square, which adaptive servers sum up, stays finite in float32."""
LARGEST_LOG_STEP = 3.0
"""The largest change of log Δ in a round, twentyfold: a device says itself how many local steps it took."""


@dataclass(frozen=True)
class Work:
    """The local training that a device was asked for."""

    client: ClientOptions
    widths: Callable[[int], Sequence[Width]]
    """The width of every local step, from their number."""

    def steps(self, examples: int) -> int:
        """Return the number of local steps on so many examples."""
        return self.client.steps_of(examples)


@dataclass(frozen=True)
class Update:
    """A device's part of a round, after the checks."""

    client: int
    width: Width
    examples: int
    delta: Trainable
    losses: Tensor
    score: float
    """The metric of the model that the device received, at its own width, on its own examples."""
    seconds: float
    bytes: int
    clipped: float | None = None
    """The norm before it was clipped to the bound."""


def check_update(reply: Reply, round: int, width: Width, like: Trainable, options: FleetOptions,
                 work: Work | None = None, private: bool = False) -> Update:
    """Read the update in a reply, or raise Refused with the reason.

    work: compared with the number of losses and with the learned step sizes · private: it has a delta, and no more.
    """
    bits = options.uplink_bits
    expected = layout(like.named()) if bits == FLOAT else rounded_layout(like, bits)
    content, values = read_answer(reply, round, PRIVATE if private else TRAINED, {"delta": expected})
    if private:  # stands for numbers that nobody is told
        values, work = {"examples": 1, "losses": [0.0], "score": 0.0, "seconds": 0.0} | values, None
    if values["width"] != str(width):
        raise Refused(f"trained at {brief(values['width'], 20)} instead of {width}")
    if not 1 <= values["examples"] <= options.max_examples:
        raise Refused(f"claims {values['examples']} examples, outside 1…{options.max_examples}")
    if not 1 <= len(values["losses"]) <= MAX_STEPS:
        raise Refused(f"{len(values['losses'])} losses")
    if work and len(values["losses"]) != work.steps(values["examples"]):
        raise Refused(f"{len(values['losses'])} losses, but {values['examples']} examples make "
                      f"{work.steps(values['examples'])} local steps")
    tensors = read_tensors(content, "delta", expected)
    delta = like.from_names(tensors) if bits == FLOAT else unrounded_delta(tensors, like, bits)
    update = _bounded(Update(reply.client, width, values["examples"], delta, torch.tensor(values["losses"]),
                             values["score"], values["seconds"], reply.bytes), options)
    _check_sizes(update.delta)
    _check_log_steps(update.delta, work, len(update.losses))
    return update


def read_answer(reply: Reply, round: int, expected: Mapping[str, type],
                arrays: Mapping[str, Mapping[str, Layout]]) -> tuple[RecordDict, dict[str, Any]]:
    """Return the content and the values of an answer, or raise Refused: it must be this client's, for this round."""
    if reply.content is None:
        raise Refused(reply.error)
    check_content(reply.content, expected, arrays)
    values = read_values(reply.content, expected)
    if values["client"] != reply.client:
        raise Refused(f"answers as client {values['client']}")
    if values["round"] != round:
        raise Refused(f"stale: an answer for round {values['round']}, not {round}")
    return reply.content, values


def delta_norm(delta: Trainable) -> float:
    """Return ‖δ‖₂ over all weights, learned step sizes aside."""
    return float(torch.stack([(d.double() ** 2).sum() for d in delta.w.values()]).sum().sqrt())


def shortened(update: Update, norm: float, bound: float) -> Update:
    """Return the update with δ·bound/‖δ‖."""
    delta = update.delta._replace(w={n: d * (bound / norm) for n, d in update.delta.w.items()})
    return replace(update, delta=delta, clipped=norm)


def _bounded(update: Update, options: FleetOptions) -> Update:
    """Return the update with δ·min(1, bound/‖δ‖), or raise Refused, as the norm rule says; for a bound that is a number."""
    norm, bound = delta_norm(update.delta), options.norm_bound
    if not isinstance(bound, float | int) or norm <= bound:
        return update
    if options.norm_rule == "reject":
        raise Refused(f"the delta's norm is {norm:.4g}, above {bound:.4g}")
    return shortened(update, norm, bound)


def _check_sizes(delta: Trainable) -> None:
    for name, values in delta.w.items():
        most = min(LARGEST_DELTA, torch.finfo(values.dtype).max ** 0.5)
        if values.numel() and (largest := float(values.abs().max())) > most:
            raise Refused(f"delta '{name}': a weight moves by {largest:.4g}, above {most:.4g}")


def _check_log_steps(delta: Trainable, work: Work | None, steps: int) -> None:
    """Raise Refused if a learned step size moves further than local steps can move it, or was not trained at all."""
    most, bits = LARGEST_LOG_STEP, all_bits(torch.device("cpu"))
    if work:
        most = min(most, 1.01 * work.client.step_lr * steps + 1e-4)  # and the rounding of sums
        widths = torch.tensor(work.widths(steps))
    for number, kind in enumerate(delta.log_steps):
        for site, values in kind.items():
            if (moved := float(values.abs().max())) > most:
                raise Refused(f"delta 'log_step/{site}': log Δ moves by {moved:.4g}, above {most:.4g}")
            if work and bool(values[~(widths[:, number, None] == bits).any(0)].any()):
                raise Refused(f"delta 'log_step/{site}': a step size moves at bits that were not trained")
