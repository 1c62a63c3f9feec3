"""The metric of a model on the examples of every client."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from anybit.engines.base import Engine
from anybit.quant.grid import Width
from anybit.quant.ranges import StepTable
from anybit.tensors import Tensors
from anybit.training.evaluation import Evaluator


def per_client(evaluator: Evaluator, w: Tensors, table: StepTable, width: Width, split: Sequence[np.ndarray]) -> np.ndarray:
    """Return the mean metric over each client's own training examples, which are not augmented."""
    values: list[Tensor] = []

    @functools.wraps(evaluator.metric)
    def kept(outputs: Tensor, targets: Tensor) -> Tensor:
        values.append(evaluator.metric(outputs, targets))
        return values[-1]

    data = replace(evaluator.data, test=evaluator.data.train)
    replace(evaluator, data=data, metric=kept, engine=Engine()).score(w, table, [width])
    each = torch.cat(values).double().cpu().numpy()
    return np.array([each[index].mean() for index in split])
