"""What comes out of a model: the tensor that is trained, and one loss per example of it."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import anybit
from anybit.errors import ConfigError, DataError, ModelError
from anybit.federated.metrics import accuracy, cross_entropy
from anybit.inputs import selected

A, B = torch.zeros(1), torch.ones(1)


@dataclass
class Answer:
    logits: Tensor | None = None
    other: Tensor | None = None


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


@pytest.mark.parametrize(("outputs", "output", "found"), [
    (A, None, A), ({"x": A, "logits": B}, None, B), (OrderedDict(a=A), None, A), (Answer(B, A), None, B),
    (Answer(other=A), None, A), ((A,), None, A), ((A, (B, B)), None, A), ({"x": A, "logits": B}, "x", A),
    ((A, B), 1, B), ([A, B], -1, B), (Pair(A, B), "second", B), (Answer(A, B), 1, B)])
def test_one_rule_selects_the_output(outputs: Any, output: str | int | None, found: Tensor) -> None:
    assert selected(outputs, output) is found


@pytest.mark.parametrize(("outputs", "output", "message"), [
    ({"a": A, "b": B}, None, "a dict with 'a', 'b': say which is the output, as in output='a'"),
    ((None, A, B), None, "a tuple of 3 elements: say which is the output, as in output=1"),
    ({"a": A, "b": None}, "b", "output='b' is no tensor of it, as in output='a'"),
    ((A, B), 2, "output=2 is no tensor"), (A, "logits", "a single tensor; leave output out"),
    ({"a": 1}, None, "none of which is a tensor"), (None, None, "a NoneType: it must return")])
def test_what_cannot_be_selected_is_said_with_the_fix(outputs: Any, output: str | int | None, message: str) -> None:
    with pytest.raises(ModelError) as raised:
        selected(outputs, output)
    assert message in str(raised.value)


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.left, self.right = nn.Linear(4, 6), nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.relu(self.body(x))
        return self.left(hidden), self.right(hidden)


def data(total: int = 30) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    return draw.normal(size=(total, 4)).astype(np.float32), draw.integers(3, size=total)


def test_a_named_output_is_trained_evaluated_and_written(tmp_path: Path) -> None:
    (x, y), model = data(), Heads()
    settings: dict[str, Any] = {"rounds": 1, "cohort": 2, "sites": anybit.SiteOptions(full_precision=("left",))}
    fitted = anybit.fit(model, [(x[:10], y[:10]), (x[10:20], y[10:20])], (x[20:], y[20:]), output=1, path=tmp_path / "run",
                        **settings)
    assert json.loads((tmp_path / "run/config.json").read_text())["output"] == 1
    trained = dict(fitted.model.named_parameters())
    assert torch.equal(trained["left.weight"], model.left.weight), "the other head has no gradient"
    assert not torch.equal(trained["right.weight"], model.right.weight)
    with torch.no_grad():
        right = fitted.model(torch.from_numpy(x[20:]))[1]
    loss = float(nn.functional.cross_entropy(right, torch.from_numpy(y[20:])))
    assert fitted.scores["FP32"].loss == pytest.approx(loss)
    assert anybit.evaluate(fitted.model, (x[20:], y[20:]), ["FP32"], output=1,
                           sites=settings["sites"])["FP32"].loss == pytest.approx(loss)
    with pytest.raises(ModelError, match="say which is the output, as in output=0"):
        anybit.evaluate(fitted.model, (x, y), ["FP32"], sites=settings["sites"])


def test_cross_entropy_and_accuracy_are_means_over_positions() -> None:
    """Two positions: p(target) = ½ and ¾, the first wrong by argmax's choice of the smaller index; one ignored."""
    outputs = torch.tensor([[[0.0, 0.0, 9.0], [0.0, float(np.log(3)), 0.0]]])
    targets = torch.tensor([[1, 1, -100]])
    assert cross_entropy(outputs, targets).tolist() == pytest.approx([(np.log(2) + np.log(4 / 3)) / 2])
    assert accuracy(outputs, targets).tolist() == pytest.approx([50.0])
    assert cross_entropy(outputs, torch.full((1, 3), -100)).tolist() == [0.0]


class Tagger(nn.Module):
    """A label for each of 5 positions: (example, class, position)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(4, 6), nn.Linear(6, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embed(ids)).transpose(1, 2)  # type: ignore[no-any-return]


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_sequences_train_with_the_default_loss(engine: Any) -> None:
    torch.manual_seed(0)
    ids = np.random.default_rng(0).integers(4, size=(40, 5))
    tags = (ids >= 2).astype(np.int64)
    tags[:, 4] = -100
    fitted = anybit.fit(Tagger(), [(ids[:16], tags[:16]), (ids[16:32], tags[16:32])], (ids[32:], tags[32:]), rounds=25,
                        cohort=2, engine=engine, client=anybit.ClientOptions(lr=0.5, batch_size=8),
                        server=anybit.ServerOptions(lr=0.1))
    assert fitted.scores["FP32"].metric == 100.0
    with pytest.raises(DataError, match=r"per example and position; .* shape \(1, 2, 5\), targets \(40, 4\)"):
        anybit.fit(Tagger(), [(ids, tags[:, :4])], (ids, tags[:, :4]), cohort=1)
    with pytest.raises(DataError, match="example 0 has label 2"):
        anybit.fit(Tagger(), [(ids, np.full((40, 5), 2))], (ids, tags), cohort=1)


def test_a_loss_per_position_is_refused_with_the_fix() -> None:
    def per_position(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    ids = np.zeros((4, 5), np.int64)
    with pytest.raises(ConfigError, match=r"returned shape \(4, 5\) .* take the mean over the other dimensions"):
        anybit.fit(Tagger(), [(ids, ids)], (ids, ids), rounds=1, cohort=1, loss=per_position,
                   client=anybit.ClientOptions(batch_size=4))


def test_the_default_loss_wants_classes() -> None:
    model = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))
    with pytest.raises(DataError, match=r"needs one whole-number label .* loss='mse' \(outputs have shape \(1,\)"):
        anybit.fit(model, [data()], data(), rounds=1, cohort=1)
