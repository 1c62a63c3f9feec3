"""Randomness and state that would escape a training are named before its first round."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import anybit
from anybit.config import EngineName
from anybit.errors import ModelError


class Passes(nn.Module):
    """A model with something between its layers."""

    def __init__(self, between: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.between = nn.Linear(3, 8), nn.Linear(8, 2), between
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.between(self, self.first(x).relu()))
        return out


def fit(model: nn.Module, engine: EngineName = "sequential") -> anybit.Fitted:
    x, y = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32), np.arange(12) % 2
    return anybit.fit(model, [(x[:6], y[:6]), (x[6:], y[6:])], (x, y), rounds=1, cohort=2, engine=engine)


def counted(model: Any, x: Tensor) -> Tensor:
    model.seen += len(x)
    return x


@pytest.mark.parametrize("engine", ["auto", "sequential", "stacked"])
@pytest.mark.parametrize("between", [
    lambda model, x: F.dropout(x, 0.5, training=model.training), lambda model, x: x + torch.rand_like(x),
    lambda model, x: x * random.random(), lambda model, x: x * np.random.rand()])
def test_draws_of_its_own_are_refused(between: Callable[[Any, Tensor], Tensor], engine: EngineName) -> None:
    torch.manual_seed(3)
    model, before = Passes(between), torch.get_rng_state()
    with pytest.raises(ModelError, match=r"draws its own random numbers.*use nn.Dropout as a module"):
        fit(model, engine)
    assert torch.equal(torch.get_rng_state(), before), "the caller's draws go on as if nothing had happened"


@pytest.mark.parametrize("engine", ["auto", "sequential", "stacked"])
def test_a_buffer_that_forward_changes_is_named(engine: EngineName) -> None:
    with pytest.raises(ModelError, match="forward changes its buffer 'seen'"):
        fit(Passes(counted), engine)


@pytest.mark.parametrize("engine", ["auto", "sequential", "stacked"])
def test_an_input_that_forward_changes_is_refused_before_it_is_anybodys_data(engine: EngineName) -> None:
    class Standardized(Passes):
        def forward(self, x: Tensor) -> Tensor:
            x -= 0.3
            return super().forward(x)

    x, y = np.ones((8, 3), np.float32), np.arange(8) % 2
    with pytest.raises(ModelError, match=r"forward changes its input in place .*: write x = x - …"):
        anybit.fit(Standardized(lambda model, x: x), [(x, y)], (x, y), rounds=1, engine=engine)
    assert (x == 1).all()


@pytest.mark.parametrize("write", [
    lambda model, x: x.clamp_(-1, 1), lambda model, x: x[:, 1:].relu_(), lambda model, x: x.data.sub_(0.3),
    lambda model, x: x if model.training else x.relu_()], ids=["clamp", "relu of a part", "data", "in evaluation alone"])
def test_a_write_that_leaves_the_first_example_as_it_is_is_seen(write: Callable[[nn.Module, Tensor], Tensor]) -> None:
    class Writing(Passes):
        def forward(self, x: Tensor) -> Tensor:
            write(self, x)
            return super().forward(x)

    x, y = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32), np.arange(8) % 2
    x[0] = 0.5
    before, model = x.copy(), Writing(lambda model, x: x)
    with pytest.raises(ModelError, match=r"forward changes its input in place .*, or clone it first"):
        anybit.fit(model, [(x, y)], (x, y), rounds=1)
    with pytest.raises(ModelError, match="forward changes its input in place"):
        anybit.evaluate(model.eval(), (x, y), ["FP32"])
    assert (x == before).all()


def test_inputs_of_inference_mode_have_no_versions_and_are_taken() -> None:
    with torch.inference_mode():
        model, x = nn.Sequential(nn.Linear(3, 2)), torch.zeros(4, 3)
        assert anybit.evaluate(model, (x, torch.zeros(4, dtype=torch.int64)), ["FP32"])
    assert anybit.evaluate(model, (x, torch.zeros(4, dtype=torch.int64)), ["FP32"])


@pytest.mark.parametrize("engine", ["auto", "sequential", "stacked"])
@pytest.mark.parametrize("mixed", [lambda x: x - x.mean(0), lambda x: x.cumsum(0), lambda x: x - x[:1]],
                         ids=["mean", "sum of those before", "the first one"])
def test_examples_that_are_mixed_are_refused(mixed: Callable[[Tensor], Tensor], engine: EngineName) -> None:
    """A device has one example at a time: what a batch's mean takes away would be everything."""
    with pytest.raises(ModelError, match=r"mixes the examples of a batch: alone, an example has outputs that differ by"):
        fit(Passes(lambda model, x: mixed(x)), engine)


@pytest.mark.parametrize("batch_first", [False, True])
def test_a_recurrent_layer_that_takes_the_batch_for_time_is_refused(batch_first: bool) -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = nn.GRU(3, 8, batch_first=batch_first), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.layer(x)[0][:, -1])
            return out

    torch.manual_seed(0)
    x, y = np.random.default_rng(0).normal(size=(12, 5, 3)).astype(np.float32), np.arange(12) % 2
    with nullcontext() if batch_first else pytest.raises(ModelError, match="an RNN without batch_first=True"):
        anybit.fit(Recurrent(), [(x, y)], (x, y), rounds=1)


def test_dropout_at_rest_is_said_once_and_frozen_batchnorm_is_not() -> None:
    with pytest.warns(anybit.AnybitWarning, match=r"trains without its dropout \('dropout'\); call") as said:
        fit(Passes(lambda model, x: model.dropout(x)).eval())
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", anybit.AnybitWarning)
        fit(Passes(lambda model, x: model.dropout(x)))
        fit(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).eval())
