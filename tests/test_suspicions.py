"""What is no error and hardly meant: inputs that nobody scaled, probabilities as outputs, trainings that end at chance."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import anybit

DRAW = np.random.default_rng(0)
BYTES = DRAW.integers(0, 256, size=(24, 1, 4, 4)).astype(np.uint8)
Y = np.arange(24) % 3
NOTHING, FLAG = np.zeros((30, 4), np.float32), np.eye(3, 4, dtype=np.float32)[np.arange(30) % 3]


def fit(x: Any, y: Any = Y, model: nn.Module | None = None, rounds: int = 1, test: Any = None, **given: Any) -> list[str]:
    """Return the warnings of a training."""
    model = model or nn.Sequential(nn.Flatten(), nn.Linear(x[0].size, 3))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        anybit.fit(model, [(x, y)], test or (x, y), rounds=rounds, **given)
    return [str(warning.message) for warning in said if issubclass(warning.category, anybit.AnybitWarning)]


class Scaling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(1) / 255)


class Twice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.expand(-1, -1, 2)


def test_floats_that_look_like_bytes_are_said_once_before_training() -> None:
    said = fit(BYTES.astype(np.float32))
    assert said == ["inputs look like 0…255: divide them by 255, or give uint8, which is scaled"]
    assert fit(BYTES.reshape(24, 16).astype(np.float32)) == said
    assert "root mean square" in fit(1000 * DRAW.normal(size=(24, 16)).astype(np.float32))[0]


@pytest.mark.parametrize(("x", "given"), [
    (BYTES, {}), (BYTES / np.float32(255), {}), (BYTES.astype(np.float32), {"model": Scaling()}),
    (BYTES.astype(np.float32), {"pipeline": anybit.Pipeline((127.0,), (74.0,))}),
    (DRAW.integers(0, 17, size=(24, 16)).astype(np.float32), {})])
def test_scaled_inputs_are_not_spoken_of(x: np.ndarray, given: dict[str, Any]) -> None:
    assert fit(x, **given) == []


def test_probabilities_are_no_logits() -> None:
    """Of a row, of every token, and not where they are meant: log-softmax, another loss, a single output."""
    def ending(*last: nn.Module) -> dict[str, Any]:
        return {"model": nn.Sequential(nn.Linear(4, 3), *last)}

    few, labels = DRAW.normal(size=(24, 4)).astype(np.float32), Y
    said = ["the model's outputs are probabilities (none is negative, and they sum to 1), which cross-entropy takes for "
            "logits: it learns slowly; leave the softmax out"]
    assert fit(few, labels, **ending(nn.Softmax(1))) == said
    assert fit(few, np.stack([labels, labels], 1) % 3, **ending(nn.Softmax(1), nn.Unflatten(1, (3, 1)), Twice())) == said
    assert fit(few, labels, **ending(nn.LogSoftmax(1))) == []
    assert fit(few, labels, **ending(nn.Sigmoid())) == []
    assert fit(few, np.eye(3, dtype=np.float32)[labels], loss="mse", **ending(nn.Softmax(1))) == []


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.other = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.body(x).relu()
        return self.head(z), self.other(z)


def test_a_head_that_the_loss_does_not_see_is_named() -> None:
    few = DRAW.normal(size=(24, 4)).astype(np.float32)
    assert fit(few, model=Heads(), output=0) == [
        "the loss does not depend on 'other.weight' and 1 more: what is not trained keeps its initial values, and ONNX "
        "refuses to round it; drop it from the model, or name it in full_precision"]
    frozen = Heads()
    frozen.other.requires_grad_(False)
    assert fit(few, model=frozen, output=0) == []
    assert fit(few, model=Heads(), output=0, sites=anybit.SiteOptions(full_precision=("other",))) == []


class Auxiliary(Heads):
    """A second head that only training adds."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        one, other = super().forward(x)
        return one + other.sum(1, keepdim=True) if self.training else one


def test_a_head_that_training_alone_uses_is_not_spoken_of() -> None:
    few = DRAW.normal(size=(24, 4)).astype(np.float32)
    assert fit(few, model=Auxiliary()) == []
    assert len(fit(few, model=Auxiliary().eval())) == 1, "clients train in the mode in which the model is given"


class Idle(Heads):
    """Parameters beside the layers, and a second name of a layer that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.alias = nn.Parameter(torch.ones(4)), self.other


def test_what_is_named_in_full_precision_is_not_spoken_of() -> None:
    """Parameters by their own names, and layers by another one."""
    few = DRAW.normal(size=(24, 4)).astype(np.float32)
    assert "'token' and 2 more" in fit(few, model=Idle(), output=0)[0]
    assert "'other.bias':" in fit(few, model=Idle(), output=0, sites=anybit.SiteOptions(
        full_precision=("token", "other.weight")))[0]
    assert fit(few, model=Idle(), output=0, sites=anybit.SiteOptions(full_precision=("token", "alias"))) == []


def test_a_training_that_ends_at_chance_names_the_usual_causes() -> None:
    said = fit(NOTHING, np.arange(30) % 3, rounds=20)
    assert len(said) == 1
    assert said[0].startswith("after 20 rounds the accuracy is at best 33.33 ")
    assert "the most frequent class alone gives 33.33: nothing is learned; the usual causes are " in said[0]
    assert "client.lr (now 0.05) or server.lr (now 0.01) too high or too low" in said[0]
    (said,) = fit(NOTHING, np.arange(30) % 3, rounds=20, server=anybit.ServerOptions(lr=0.01))
    assert "server.lr (now 0.01 from the first round on; server.warmup=10 lets it rise) too high" in said


def test_clients_that_learned_something_else_point_at_the_test_set() -> None:
    """The test set numbers its labels in another order."""
    torch.manual_seed(0)
    labels = np.arange(30) % 3
    said = fit(FLAG, labels, test=(FLAG, (labels + 1) % 3), rounds=40, server=anybit.ServerOptions(lr=0.1),
               variant=anybit.baseline())
    assert len(said) == 1
    assert "so look at the test set" in said[0]


def test_short_trials_and_models_that_learn_are_not_spoken_of() -> None:
    assert fit(NOTHING, np.arange(30) % 3, rounds=19) == []
    torch.manual_seed(0)
    assert fit(FLAG, np.arange(30) % 3, rounds=20, server=anybit.ServerOptions(lr=0.1)) == []
    assert fit(NOTHING, np.ones(30, np.float32), rounds=20, loss="mse", model=nn.Sequential(nn.Linear(4, 1))) == []


@pytest.mark.parametrize(("batches", "size", "said"), [("full", 22, True), ("full", 11, False), ("full", 24, False),
                                                       ("full", 30, False), ("even", 22, False), (None, 22, False)])
def test_a_last_batch_of_a_few_examples_is_said(batches: Any, size: int, said: bool) -> None:
    """Of 24 examples 22 and 2 · 11, 11 and 2 · 24 · fewer than a batch."""
    warned = fit(FLAG[[0] * 24], client=anybit.ClientOptions(batch_size=size, batches=batches))
    assert [line for line in warned if "client.batches=even" in line] == (
        ["1 of 1 clients have last batches of 2 examples or fewer, which move the weights as far as 22 do: "
         "client.batches=even makes batches of one size"] if said else [])
