"""Divergence, named: the client or the value at fault, and the setting to lower."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from anybit.config import Config
from anybit.errors import Diverged
from anybit.federated.cohort import Cohort
from anybit.federated.state import State
from anybit.quant.grid import Width
from anybit.quant.ranges import StepTable
from anybit.training.checkpoint import named


def mean_loss(losses: Tensor, cohort: Cohort, advice: Callable[[], str]) -> float:
    """Average over the real local steps of the cohort, all of which must be finite."""
    losses, real = losses.cpu(), cohort.rows.amax(2).cpu()
    if not bool(torch.isfinite(losses).all()):
        i, k = (int(n) for n in (~torch.isfinite(losses)).nonzero()[0])
        raise Diverged(f"the loss is {float(losses[i, k])} in round {cohort.round + 1}, client {cohort.clients[i]}, "
                       f"local step {k + 1}, width {Width(*cohort.width_bits[i, k].tolist())}: {advice()}")
    mean = float((losses * real).sum() / real.sum())
    # Finite losses can have a sum that is not, in float32.
    return mean if math.isfinite(mean) else float((losses.double() * real).sum() / real.sum())


def check_finite(state: State, round: int, advice: Callable[[], str]) -> None:
    """Raise unless what is kept or shown is finite: the last local step of a round can overflow after its loss was taken."""
    for name, value in named(state, StepTable({})).items():
        if not bool(torch.isfinite(value).all()):
            raise Diverged(f"'{name.partition('/')[2]}' is no longer finite after round {round}: {advice()}")


def what_to_lower(config: Config) -> str:
    client, server_lr = config.client, config.server.rate(config.rounds)
    clip = "set client.clip" if client.clip is None else f"lower client.clip (now {client.clip})"
    return f"lower client.lr (now {client.lr}) or server.lr (now {server_lr}), or {clip}, in a new run"
