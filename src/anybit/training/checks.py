"""Checks before the first round."""

from __future__ import annotations

import functools

import torch

from anybit.config import Config
from anybit.data.examples import Examples, check_labels, check_split
from anybit.errors import ConfigError, ModelError
from anybit.federated.objective import cross_entropy
from anybit.federated.sampling import check_cohort
from anybit.federated.state import trainable_weights
from anybit.federated.variants import Variant
from anybit.quant.calibrate import activation_ranges
from anybit.quant.sites import prepare
from anybit.training.task import Task


def check_clients(task: Task, config: Config) -> None:
    """Raise unless there are clients that a cohort can be drawn from."""
    check_split(task.split, len(task.data.train))
    check_cohort(config.cohort, len(task.split))


def check_ranges(config: Config, variant: Variant) -> None:
    """Raise where step sizes are to be learned and nothing is rounded while training."""
    if config.ranges.learned and variant.transform is None:
        raise ConfigError(f"ranges.learned: variant '{variant.name}' quantizes nothing while training")


def check_model(task: Task, config: Config) -> None:
    """Pass one example through the model, and look at the labels."""
    model, data = task.model, task.data
    one = data.pipeline(data.train.x[:1])
    try:
        activation_ranges(model, config.sites, trainable_weights(model), one)
        with torch.no_grad():
            outputs = prepare(model, options=config.sites).eval()(one)
    except RuntimeError as error:
        raise ModelError(f"the model does not take inputs of shape {tuple(one.shape)} "
                         f"({str(error).splitlines()[0]})") from error
    if task.loss is cross_entropy:
        for examples, what in ((data.train, "training data"), (data.test, "test data")):
            examples.when_loaded(functools.partial(_check_labels, classes=outputs.shape[1]), what)


def _check_labels(examples: Examples, what: str, classes: int) -> None:
    check_labels(examples, classes, what)
