"""An answer is checked before it counts: who, which round, names, shapes, types, finiteness, size, norm."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from anybit.config import FleetOptions
from anybit.federated.state import Trainable
from anybit.fleet.exchange import Reply
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
    """The norm that was clipped to the bound."""


def check_update(reply: Reply, round: int, width: Width, like: Trainable, options: FleetOptions) -> Update:
    """Read the update in a reply, or raise Refused with the reason."""
    if reply.content is None:
        raise Refused(reply.error)
    values = read_values(reply.content, "answer", TRAINED)
    check_origin(values, reply.client, round)
    if values["width"] != str(width):
        raise Refused(f"trained at {values['width'][:20]} instead of {width}")
    if not 1 <= values["examples"] <= options.max_examples:
        raise Refused(f"claims {values['examples']} examples, outside 1…{options.max_examples}")
    if not 1 <= len(values["losses"]) <= MAX_STEPS:
        raise Refused(f"{len(values['losses'])} losses")
    update = Update(reply.client, width, values["examples"], _delta(reply, like, options.uplink_bits),
                    torch.tensor(values["losses"]), values["score"], values["seconds"], reply.bytes)
    return _bounded(update, options)


def check_origin(values: dict[str, object], client: int, round: int) -> None:
    if values["client"] != client:
        raise Refused(f"answers as client {values['client']}")
    if values["round"] != round:
        raise Refused(f"stale: an answer for round {values['round']}, not {round}")


def _delta(reply: Reply, like: Trainable, bits: int) -> Trainable:
    assert reply.content is not None
    if bits == FLOAT:
        return like.from_names(read_tensors(reply.content, "delta", layout(like.named())))
    return unrounded_delta(read_tensors(reply.content, "delta", rounded_layout(like, bits)), like, bits)


def delta_norm(delta: Trainable) -> float:
    """Return ‖δ‖₂ over all weights, learned step sizes aside."""
    return float(torch.stack([(d.double() ** 2).sum() for d in delta.w.values()]).sum().sqrt())


def _bounded(update: Update, options: FleetOptions) -> Update:
    """Return δ·min(1, bound/‖δ‖), or a refusal."""
    norm, bound = delta_norm(update.delta), options.norm_bound
    if bound is None or norm <= bound:
        return update
    if options.norm_rule == "reject":
        raise Refused(f"the delta's norm is {norm:.4g}, above {bound:.4g}")
    shortened = update.delta._replace(w={n: d * (bound / norm) for n, d in update.delta.w.items()})
    return replace(update, delta=shortened, clipped=norm)
