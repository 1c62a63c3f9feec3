"""Parts that models of other libraries have: their own linear layers, stochastic depth, scales, decisions by values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import anybit
from anybit.errors import ModelError
from anybit.quant.modules import KeyedDropout
from anybit.quant.sites import prepare, quantizers


class Same(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight, self.bias)


class Cut(nn.Linear):
    """Differs for large outputs only."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).clamp(-50, 50)


class Adapted(nn.Linear):
    """Gives the same as long as its second matrix is 0."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.more = nn.Parameter(torch.zeros(4, 4))

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + F.linear(input, self.more)


class DropPath(nn.Module):
    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x: Tensor) -> Tensor:
        raise AssertionError("it is replaced")


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer_scale, self.head = nn.Parameter(torch.ones(1, 4)), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x * self.layer_scale)
        return out


class Deciding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x if (x > 0).all() else x.abs())
        return out


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(1, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.embed(x[..., None])[:, None]
        out: Tensor = self.head(F.scaled_dot_product_attention(y, y, y)[:, 0].mean(1))
        return out


def fit(model: nn.Module, engine: Any) -> anybit.Fitted:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(24, 4)).astype(np.float32), draw.integers(3, size=24)
    return anybit.fit(model, [(x[:8], y[:8]), (x[8:16], y[8:16])], (x[16:], y[16:]), rounds=1, engine=engine, device="cpu",
                      server=anybit.ServerOptions("sgd"), evaluation=anybit.EvaluationOptions(bits=(2,)))


def test_a_linear_layer_with_its_own_code_counts_if_it_computes_the_same() -> None:
    assert list(quantizers(prepare(nn.Sequential(Same(4, 3))), "weights")) == ["0.weight_quantizer"]


@pytest.mark.parametrize("layer", [Cut(4, 3), Adapted()])
def test_a_linear_layer_that_computes_otherwise_is_refused(layer: nn.Module) -> None:
    with pytest.raises(ModelError, match="with its own code"):
        prepare(nn.Sequential(layer))


def test_stochastic_depth_drops_whole_examples_by_key() -> None:
    dropped = prepare(nn.Sequential(nn.Linear(2, 2), DropPath(0.25)))[1]  # type: ignore[index]
    assert isinstance(dropped, KeyedDropout)
    y = dropped(torch.ones(400, 3, 5))
    assert y.unique().tolist() == pytest.approx([0, 4 / 3])
    assert torch.equal(y, y[:, :1, :1].expand_as(y))
    assert 60 < int((y[:, 0, 0] == 0).sum()) < 140
    assert torch.equal(dropped.eval()(y), y)


def test_a_vector_with_further_dimensions_stays_in_float_unnamed() -> None:
    assert fit(Scaled(), "sequential").scores


def test_a_model_that_decides_by_values_is_refused_by_the_stacked_engine_alone() -> None:
    with pytest.raises(ModelError, match=r"'if mask.all\(\)'\): use engine 'sequential' or 'processes'"):
        fit(Deciding(), "stacked")
    assert fit(Deciding(), "auto").scores


def test_fused_attention_of_stacked_clients_agrees_without_a_warning() -> None:
    torch.manual_seed(0)
    model = Attending()
    one, other = (fit(model, engine).model for engine in ("sequential", "stacked"))
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(q, p, atol=1e-6, rtol=0)
