"""Frozen and tied weights, embeddings, recurrent layers and attention: the engines agree, and so do scores and artifacts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import anybit
from anybit.api import Fitted
from anybit.errors import AnybitWarning, ModelError
from anybit.federated.variants import Variant
from anybit.quant.grid import BITS, Grid, limits, quantize
from anybit.quant.ranges import weight_steps
from anybit.training.run import Run


class Net(nn.Module):
    """A little of everything with weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8, padding_idx=0)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.lstm = nn.LSTM(8, 4, 2, batch_first=True, bidirectional=True, dropout=0.2)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.1, batch_first=True)
        self.same, self.head = nn.Linear(8, 8), nn.Linear(8, 11, bias=False)
        self.again, self.head.weight = self.same, self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.lstm(self.frozen(self.embed(x)))
        out: Tensor = self.head(self.again(torch.relu(self.same(self.encoder(y)))).mean(1))
        return out


def net() -> Net:
    torch.manual_seed(1)
    return Net()


def data() -> tuple[list[tuple[Any, Any]], tuple[Any, Any]]:
    x = np.random.default_rng(0).integers(0, 11, (44, 5))
    y = x[:, 0]
    return [(x[i:i + 8], y[i:i + 8]) for i in range(0, 32, 8)], (x[32:], y[32:])


def fit(engine: Any, variant: Variant | None = None, model: nn.Module | None = None, **settings: Any) -> Fitted:
    clients, test = data()
    return anybit.fit(model or net(), clients, test, variant or anybit.mqat(sites="WA"), rounds=2, cohort=3, engine=engine,
                      server=anybit.ServerOptions(lr=1e-3),
                      device="cpu", evaluation=anybit.EvaluationOptions(bits=(2, 8)), **settings)


@pytest.fixture(scope="module")
def fitted() -> Fitted:
    return fit("sequential")


@pytest.mark.parametrize("variant", [anybit.mqat(sites="WA"), anybit.carousel(), anybit.apqn(sites="WA"),
                                     anybit.kure(sites="WA")])
def test_engines_agree(variant: Variant) -> None:
    one, *others = (fit(engine, variant) for engine in ("sequential", "stacked", "processes"))
    for other in others:
        for (name, p), q in zip(one.model.named_parameters(), other.model.parameters(), strict=True):
            torch.testing.assert_close(q, p, atol=3e-6, rtol=0, msg=lambda text, name=name: f"{name}: {text}")


def test_engines_agree_on_learned_steps_of_frozen_weights() -> None:
    learned = anybit.RangeOptions(learned=True)
    one, other = (fit(engine, anybit.mqat(), ranges=learned) for engine in ("sequential", "stacked"))
    for site, steps in one.steps.steps.items():
        torch.testing.assert_close(other.steps.steps[site], steps, atol=1e-5, rtol=1e-4)


def test_frozen_weights_stay_and_tied_ones_stay_tied(fitted: Fitted) -> None:
    before, after = net(), fitted.model
    assert isinstance(after, Net)
    assert torch.equal(after.frozen.weight, before.frozen.weight)
    assert after.head.weight is after.embed.weight
    for trained in ("embed.weight", "lstm.weight_hh_l1_reverse", "encoder.self_attn.in_proj_weight", "same.weight"):
        assert not torch.equal(after.get_parameter(trained), before.get_parameter(trained)), trained
    assert torch.equal(after.embed.weight[0] != before.embed.weight[0], torch.ones(8, dtype=torch.bool)), \
        "as the head, the row of the padding has a gradient"


def test_evaluation_rounds_every_matrix_and_nothing_else(fitted: Fitted) -> None:
    model, (_, test) = fitted.model.eval(), data()
    score = anybit.evaluate(model, test, ["W2"], steps="minmax")["W2"]
    rounded = net().eval()
    rounded.load_state_dict(model.state_dict())
    with torch.no_grad():
        for p in rounded.parameters():
            if p.dim() > 1:
                grid = Grid(weight_steps(p, "minmax", "full")[BITS.index(2)], *limits(torch.tensor(2), "full"))
                p.copy_(quantize(p, grid))
        outputs = rounded(torch.from_numpy(test[0]))
    loss = nn.functional.cross_entropy(outputs, torch.from_numpy(test[1]))
    assert score.loss == pytest.approx(float(loss), abs=1e-5)


@pytest.mark.artifacts
def test_artifacts_agree(fitted: Fitted, tmp_path: Path) -> None:
    matrices = sum(p.numel() for p in fitted.model.parameters() if p.dim() > 1)
    with pytest.warns(AnybitWarning, match="it has weights and no graph"):
        archives = fitted.export(tmp_path, ["W2", "WA8"], "archive")
    artifacts = [*archives, *fitted.export(tmp_path, ["W2", "WA8"])]
    for artifact in artifacts:
        assert artifact.verdict.agreement == 1
        assert artifact.verdict.artifact == fitted.scores[artifact.width].metric
        assert sum(artifact.weights.values()) == matrices, "tied ones once"
    assert artifacts[-1].kernels["MatMulInteger"] > 20
    assert "Stays in float: 0.9 KB (`encoder.self_attn.in_proj_bias`, " in (tmp_path / "README.md").read_text()


def test_a_run_folder_holds_the_frozen_weights(tmp_path: Path) -> None:
    result = fit("sequential", path=tmp_path / "run")
    torch.manual_seed(2)
    loaded = Run.load(tmp_path / "run", model=Net()).model()
    for (name, p), q in zip(result.model.named_parameters(), loaded.parameters(), strict=True):
        assert torch.equal(p, q), name


def test_a_model_that_is_frozen_altogether_is_refused() -> None:
    with pytest.raises(ModelError, match="no parameter that requires a gradient"):
        fit("sequential", model=net().requires_grad_(False))
