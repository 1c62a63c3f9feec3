"""Checks of an answer before it counts: client, round, names, shapes, types, finiteness, size, norm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from anybit.config import FleetOptions
from anybit.federated.state import Trainable
from anybit.fleet.exchange import Reply
from anybit.fleet.flower import RecordDict
from anybit.fleet.traffic import rounded_layout, unrounded_delta
from anybit.fleet.wire import Refused, layout, read_tensors, read_values
from anybit.quant.grid import FLOAT, Width

ANSWER = {"client": int, "round": int, "examples": int, "seconds": float}
TRAINED = {**ANSWER, "width": str, "losses": list, "score": float}
MAX_STEPS = 100_000
"""The most local steps whose losses are read."""


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


def check_update(reply: Reply, round: int, width: Width, like: Trainable, options: FleetOptions) -> Update:
    """Read the update in a reply, or raise Refused with the reason."""
    content, values = read_answer(reply, round, TRAINED)
    if values["width"] != str(width):
        raise Refused(f"trained at {values['width'][:20]} instead of {width}")
    if not 1 <= values["examples"] <= options.max_examples:
        raise Refused(f"claims {values['examples']} examples, outside 1…{options.max_examples}")
    if not 1 <= len(values["losses"]) <= MAX_STEPS:
        raise Refused(f"{len(values['losses'])} losses")
    bits = options.uplink_bits
    expected = layout(like.named()) if bits == FLOAT else rounded_layout(like, bits)
    tensors = read_tensors(content, "delta", expected)
    delta = like.from_names(tensors) if bits == FLOAT else unrounded_delta(tensors, like, bits)
    return _bounded(Update(reply.client, width, values["examples"], delta, torch.tensor(values["losses"]), values["score"],
                           values["seconds"], reply.bytes), options)


def read_answer(reply: Reply, round: int, expected: Mapping[str, type]) -> tuple[RecordDict, dict[str, Any]]:
    """Return the content and the values of an answer, or raise Refused: it must be this client's, for this round."""
    if reply.content is None:
        raise Refused(reply.error)
    values = read_values(reply.content, "answer", expected)
    if values["client"] != reply.client:
        raise Refused(f"answers as client {values['client']}")
    if values["round"] != round:
        raise Refused(f"stale: an answer for round {values['round']}, not {round}")
    return reply.content, values


def delta_norm(delta: Trainable) -> float:
    """Return ‖δ‖₂ over all weights, learned step sizes aside."""
    return float(torch.stack([(d.double() ** 2).sum() for d in delta.w.values()]).sum().sqrt())


def _bounded(update: Update, options: FleetOptions) -> Update:
    """Return the update with δ·min(1, bound/‖δ‖), or raise Refused, as the norm rule says."""
    norm, bound = delta_norm(update.delta), options.norm_bound
    if bound is None or norm <= bound:
        return update
    if options.norm_rule == "reject":
        raise Refused(f"the delta's norm is {norm:.4g}, above {bound:.4g}")
    shortened = update.delta._replace(w={n: d * (bound / norm) for n, d in update.delta.w.items()})
    return replace(update, delta=shortened, clipped=norm)
