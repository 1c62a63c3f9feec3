"""The input and the output of a training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anybit.data.examples import Data
from anybit.federated.metrics import PerExample, accuracy, cross_entropy
from anybit.federated.own import Course, Sampler
from anybit.federated.server import ServerOptimizer
from anybit.federated.variants import Variant
from anybit.quant.ranges import StepTable


@dataclass(frozen=True)
class Task:
    """The objects behind a config."""

    model: nn.Module
    variant: Variant
    data: Data
    split: Sequence[np.ndarray]
    loss: PerExample = cross_entropy
    metric: PerExample = accuracy
    output: str | int | None = None
    """Key or position of the model's output, where it returns several; none: "logits", or the only tensor."""
    server: ServerOptimizer | None = None
    """Server optimizer of the user's own."""
    sampler: Sampler | None = None
    """Draws the cohorts in place of the sampling policy."""
    schedule: Course | None = None
    """Course of the server's learning rate in place of anybit's."""
    client_ids: Sequence[Any] | None = None
    """The owner of each client's data, where there are names for them; in no file, for they may be people's."""

    def to(self, device: torch.device) -> Task:
        """Bring the model and the data to a device."""
        return replace(self, model=self.model.to(device), data=self.data.to(device))


@dataclass(frozen=True)
class Trained:
    """The end of a training."""

    w: dict[str, Tensor]
    table: StepTable
    evaluation: dict[str, Any]
    metrics: list[dict[str, Any]]
