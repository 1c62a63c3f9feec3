"""Everything that can be known to be wrong before the first round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from anybit.config import Config
from anybit.data.examples import Data, check_labels, check_split
from anybit.errors import ConfigError, ModelError
from anybit.federated.objective import cross_entropy
from anybit.federated.sampling import check_cohort
from anybit.federated.variants import Variant
from anybit.federated.weights import trainable
from anybit.quant.calibrate import activation_ranges
from anybit.quant.sites import prepare
from anybit.training.task import Task


def check_clients(split: Sequence[np.ndarray], examples: int, cohort: int) -> None:
    """Clients that a cohort can be drawn from."""
    check_split(split, examples)
    check_cohort(cohort, len(split))


def check_ranges(config: Config, variant: Variant) -> None:
    """Steps are learned from rounding while training."""
    if config.ranges.learned and variant.transform is None:
        raise ConfigError(f"ranges.learned: variant '{variant.name}' quantizes nothing while training")


def check_model(task: Task, model: nn.Module, data: Data, config: Config) -> None:
    """One example through the model, and the labels; `model` and `data` are the task's, on the device of the run."""
    one = data.pipeline(data.train.x[:1])
    try:
        activation_ranges(model, config.sites, trainable(model), one)
        with torch.no_grad():
            outputs = prepare(model, options=config.sites).eval()(one)
    except RuntimeError as error:
        raise ModelError(f"the model does not take inputs of shape {tuple(one.shape)} "
                         f"({str(error).splitlines()[0]})") from error
    if task.loss is cross_entropy:
        check_labels(data.train, outputs.shape[1], "training data")
        check_labels(data.test, outputs.shape[1], "test data")
