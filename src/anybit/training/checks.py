"""Checks before the first round."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from anybit.config import Config
from anybit.data.examples import Data, Examples, check_binary, check_ids, check_labelled, check_labels, check_split
from anybit.data.on_demand import OnDemand
from anybit.errors import ConfigError, DataError, ModelError
from anybit.federated.metrics import (
    bce_with_logits,
    binary_accuracy,
    check_alone,
    check_gradient,
    check_no_nan,
    cross_entropy,
    meaning,
)
from anybit.federated.sampling import check_cohort
from anybit.federated.state import trainable_weights
from anybit.federated.variants import Variant
from anybit.inputs import Inputs, called, device_of, leaves, shapes
from anybit.quant.calibrate import activation_ranges
from anybit.quant.embedding import QuantizedEmbedding, QuantizedEmbeddingBag
from anybit.quant.sites import SiteOptions, prepare
from anybit.tensors import picked
from anybit.training.passes import check_apart, check_itself, check_repeatable, check_weights, outputs_of, taking
from anybit.training.task import Task

_FEW = 4
"""Examples on which loss and metric are tried: enough to tell a row from a batch."""


def check_clients(task: Task, config: Config) -> None:
    """Raise unless there are clients that a cohort can be drawn from."""
    check_split(task.split, len(task.data.train))
    check_cohort(config.places(len(task.split)), len(task.split))


def check_ranges(config: Config, variant: Variant) -> None:
    """Raise where step sizes are to be learned and none can be."""
    if config.ranges.learned and variant.transform is None:
        raise ConfigError(f"ranges.learned: variant '{variant.name}' quantizes nothing while training")
    if config.ranges.learned and config.ranges.follow and "A" not in variant.sites:
        raise ConfigError("ranges.learned: the step sizes of weights follow them, and activations are not rounded; "
                          "choose one of ranges.follow and ranges.learned")


def check_model(task: Task, config: Config) -> None:
    """Pass a few examples through the model, and look at the labels and at what loss and metric make of the outputs."""
    model, data = task.model, task.data
    check_numbers(task, config)
    first = picked(data.train.x, slice(1))
    with taking(model, first, replaced=False):
        one = pytree.tree_map(torch.clone, data.pipeline(first))  # what a forward pass changes must not be the data
    with taking(model, one):
        check_repeatable(model, config, one)
        activation_ranges(model, config.sites, trainable_weights(model), one)
        at_rest = prepare(model, options=config.sites).eval()
        outputs = outputs_of(at_rest, one, task.output)
        check_weights(at_rest, one, task.output)
        check_itself(model, one, outputs, task.output)
    check_moved(data)
    if task.loss is cross_entropy:
        _check_train(task, functools.partial(check_labels, outputs=outputs.shape))
        data.test.when_loaded(functools.partial(check_labels, outputs=_test_shape(task, at_rest, outputs)), "test data")
        data.test.when_loaded(check_labelled, "test data")
    for what, function in (("loss", task.loss), ("metric", task.metric)):
        if function in (bce_with_logits, binary_accuracy):
            _check_all(task, functools.partial(check_binary, of=f"{what} '{meaning(function).name}'"))
    check_functions(task, at_rest)


def check_moved(data: Data) -> None:
    """Raise where the pipeline would move the pixels of an image away from their targets."""
    moving = [name for name in ("crop", "padding", "flip") if getattr(data.pipeline, name)]
    if moving and data.train.y.dim() > 2:
        raise DataError(f"the pipeline's {' and '.join(moving)} would move the pixels of an image, and not its targets of "
                        f"shape {tuple(data.train.y.shape[1:])}: leave out what moves them, and augment both before")


def check_numbers(task: Task, config: Config) -> None:
    """Raise where whole numbers of the inputs have no row in the embedding that reads them."""
    if read := _read_by_embeddings(task, config):
        _check_all(task, functools.partial(check_ids, read=read))


@torch.no_grad()
def _test_shape(task: Task, at_rest: nn.Module, outputs: Tensor) -> torch.Size:
    """Return the shape of the outputs of a test example, which may be longer than the clients' are."""
    train, test = (task.data.pipeline(picked(examples.x, slice(1))) for examples in (task.data.train, task.data.test))
    if shapes(train) == shapes(test):
        return outputs.shape
    with taking(task.model, test, train):
        return outputs_of(at_rest, test, task.output).shape


def _check_all(task: Task, check: Callable[..., None]) -> None:
    """Check all examples, those of clients by the number that they have there."""
    _check_train(task, check)
    task.data.test.when_loaded(check, "test data")


def _check_train(task: Task, check: Callable[..., None]) -> None:
    train = task.data.train
    train.when_loaded(check if isinstance(train, OnDemand) else functools.partial(check, split=task.split), "training data")


@torch.no_grad()
def _read_by_embeddings(task: Task, config: Config) -> dict[str, tuple[str, int]]:
    """Return {input: (embedding, its rows)} of whole numbers that go into an embedding as they are.

    Tried with zeros, as a number without a row would end the pass; what fails for another reason is said elsewhere.
    """
    first = picked(task.data.train.x, slice(1))
    if not any(isinstance(module, (nn.Embedding, nn.EmbeddingBag)) for module in task.model.modules()):
        return {}
    zeros = pytree.tree_map(lambda leaf: leaf if leaf.is_floating_point() else torch.zeros_like(leaf), first)
    read, prepared = dict[str, tuple[str, int]](), prepare(task.model, options=config.sites).eval()

    def note(name: str, module: Any, arguments: tuple[Any, ...]) -> None:
        x, found = arguments[0] if arguments else None, (name, len(module.weight))
        for input_name, leaf in leaves(zeros).items():
            # All of an input: a column of it has the same address.
            if isinstance(x, Tensor) and x.data_ptr() == leaf.data_ptr() and x.shape == leaf.shape:
                read[input_name] = min(read.get(input_name, found), found, key=lambda each: each[1])

    for name, module in prepared.named_modules():
        if isinstance(module, (nn.Embedding, QuantizedEmbedding, QuantizedEmbeddingBag)):
            module.register_forward_pre_hook(functools.partial(note, name))
    with suppress(Exception):
        called(prepared.to(device_of(zeros)), zeros)
    return read


def check_outputs(model: nn.Module, sites: SiteOptions, one: Inputs, output: str | int | None,
                  labelled: Examples | None) -> None:
    """Pass one example through the model, and look at the labels if the loss needs some."""
    with taking(model, one):
        outputs = outputs_of(prepared := prepare(model, options=sites).eval(), one, output)
        check_weights(prepared, one, output)
        check_itself(model, one, outputs, output)
    if labelled is not None:
        check_labels(labelled, "test data", outputs.shape)
        check_labelled(labelled, "test data")


def check_functions(task: Task, model: nn.Module) -> None:
    """Raise unless loss and metric give one value per example, of that example alone, and the model leaves inputs alone."""
    for examples, what, function in ((task.data.train, "loss", task.loss), (task.data.test, "metric", task.metric)):
        few = torch.linspace(0, len(examples) - 1, min(_FEW, len(examples))).long().to(examples.y.device)
        batch = examples.rows(few)
        with taking(task.model, batch.x, task.data.train.x, replaced=False):
            inputs = task.data.pipeline(batch.x)
        with taking(task.model, inputs, task.data.pipeline(picked(task.data.train.x, slice(1)))):
            outputs = outputs_of(model, inputs, task.output)
        if len(outputs) != len(few):
            raise ModelError(f"the model gives outputs of shape {tuple(outputs.shape)} for {len(few)} examples: the first "
                             "dimension must be the example")
        for one in (slice(1), slice(-1, None)):  # the last, too: what a sum along dimension 0 adds to the first is nothing
            check_apart(outputs[one], outputs_of(model, picked(inputs, one), task.output))
        check_alone(function, what, outputs, batch.y)
        check_no_nan(function, what, outputs, batch.y)
        if what == "loss":
            check_gradient(function, outputs, batch.y)
