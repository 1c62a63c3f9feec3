"""What a training takes and gives: the task, whoever watches, the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor, nn

from anybit.data.examples import Data
from anybit.federated.objective import PerExample, accuracy, cross_entropy
from anybit.federated.variants import Variant
from anybit.quant.ranges import StepTable


@dataclass(frozen=True)
class Task:
    """What is trained: the objects behind a config."""

    model: nn.Module
    variant: Variant
    data: Data
    split: Sequence[np.ndarray]
    loss: PerExample = cross_entropy
    metric: PerExample = accuracy


@dataclass
class Progress:
    """What happened in a round, for whoever watches."""

    round: int
    rounds: int
    loss: float
    evaluation: dict[str, Any] | None
    seconds: float


@dataclass
class Watch:
    """How the outside follows and stops a run."""

    on_round: Callable[[Progress], None] = lambda progress: None
    on_message: Callable[[str], None] = lambda text: None
    stop: bool = field(default=False)
    """Set to end the run after the current round, with a checkpoint."""


@dataclass(frozen=True)
class Trained:
    """What a run gives."""

    w: dict[str, Tensor]
    table: StepTable
    evaluation: dict[str, Any]
    metrics: list[dict[str, Any]]
