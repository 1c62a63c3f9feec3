"""Randomness and state that would escape a training are named before its first round."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
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


@pytest.mark.parametrize("engine", ["auto", "sequential", "stacked"])
def test_examples_that_are_mixed_are_refused(engine: EngineName) -> None:
    """A device has one example at a time: what a batch's mean takes away would be everything."""
    with pytest.raises(ModelError, match=r"mixes the examples of a batch: alone, the first one has outputs that differ by"):
        fit(Passes(lambda model, x: x - x.mean(0)), engine)


def test_dropout_at_rest_is_said_once_and_frozen_batchnorm_is_not() -> None:
    with pytest.warns(anybit.AnybitWarning, match=r"trains without its dropout \('dropout'\); call") as said:
        fit(Passes(lambda model, x: model.dropout(x)).eval())
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", anybit.AnybitWarning)
        fit(Passes(lambda model, x: model.dropout(x)))
        fit(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).eval())
