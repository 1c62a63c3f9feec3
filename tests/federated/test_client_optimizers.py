"""Client optimizers: by hand, beside torch's, in every engine, and padded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from anybit.config import ClientOptions, RangeOptions
from anybit.errors import ConfigError
from anybit.federated.algorithm import optimizer_step
from anybit.federated.client import begun
from anybit.federated.cohort import Batch
from anybit.federated.state import Given, LogSteps, Trainable
from anybit.federated.variants import mqat
from tests.federated.test_algorithm import NOTHING, ZERO, quadratic
from tests.gathered import ENGINES, gathered
from tests.parity.cases import training


def batch(k: int, real: float = 1.0) -> Batch:
    return Batch(torch.zeros(1, dtype=torch.int64), torch.tensor([real]), torch.tensor(real), torch.tensor(0),
                 torch.tensor(k), torch.tensor([32, 32]))


def course(options: ClientOptions, steps: int = 3, given: Given = NOTHING) -> list[float]:
    """w after every local step on ½(w − 1)² from w = 0."""
    state, out = begun(ZERO, options), []
    for k in range(steps):
        state, _ = optimizer_step(state, given, batch(k), quadratic, options)
        out.append(float(state.trained.w["w"]))
    return out


@pytest.mark.parametrize(("options", "expected"), [
    # m ← 0.5·m + w − 1: −1, −1, −0.5
    (ClientOptions(lr=0.5, momentum=0.5), [0.5, 1.0, 1.25]),
    # along g + μ·m: 1.5 → 0.75; g = −0.25, m = −0.75, −0.625 → 1.0625
    (ClientOptions(lr=0.5, momentum=0.5, nesterov=True), [0.75, 1.0625]),
    # g = w − 1 + w: −1, 0, 0
    (ClientOptions(lr=0.5, weight_decay=1.0), [0.5, 0.5, 0.5]),
    # g = w − 1 + 2·(w − 0): −1, −0.25
    (ClientOptions(lr=0.25, prox=2.0), [0.25, 0.3125]),
    # m̂/√v̂ = −1 in the first step of AdamW, whatever the gradient; the decay of w = 0 is none
    (ClientOptions(optimizer="adamw", lr=0.25, weight_decay=0.5, eps=1e-12), [0.25]),
])
def test_by_hand(options: ClientOptions, expected: list[float]) -> None:
    assert course(options, len(expected)) == pytest.approx(expected)


def test_the_pace_is_a_factor_of_both_rates() -> None:
    half = Given({}, pace=(torch.tensor(0.5, dtype=torch.float64),))
    assert course(ClientOptions(lr=1.0, schedule="cosine"), 2, half) == pytest.approx([0.5, 0.75])
    log_steps = LogSteps({"a": torch.zeros(2)}, {})
    options = ClientOptions(step_lr=0.1, schedule="cosine")

    def loss(w: Trainable, given: Given, xi: Batch) -> tuple[Tensor, Tensor]:
        return w.log_steps.weights["a"].sum(), w.w["w"]

    state, _ = optimizer_step(begun(ZERO._replace(log_steps=log_steps), options), half, batch(0), loss, options)
    assert state.trained.log_steps.weights["a"].tolist() == pytest.approx([-0.05, -0.05])


TORCH: dict[str, tuple[ClientOptions, Any]] = {
    "momentum": (ClientOptions(lr=0.1, momentum=0.9), lambda w: torch.optim.SGD(w, 0.1, 0.9)),
    "nesterov, decay": (ClientOptions(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
                        lambda w: torch.optim.SGD(w, 0.1, 0.9, nesterov=True, weight_decay=0.1)),
    "L2": (ClientOptions(lr=0.1, weight_decay=0.1), lambda w: torch.optim.SGD(w, 0.1, weight_decay=0.1)),
    "adamw": (ClientOptions(optimizer="adamw", lr=0.02, weight_decay=0.1, beta1=0.8, beta2=0.95, eps=1e-6),
              lambda w: torch.optim.AdamW(w, 0.02, (0.8, 0.95), 1e-6, 0.1)),
}


@pytest.mark.parametrize("name", TORCH)
def test_as_torch(name: str) -> None:
    options, make = TORCH[name]
    torch.manual_seed(1)
    target, start = torch.randn(4, 3).double(), torch.randn(4, 3).double()

    def loss(w: Trainable, given: Given, xi: Batch) -> tuple[Tensor, Tensor]:
        value = ((w.w["w"] - target) ** 2 * (1 + xi.local_step)).sum()
        return value, value

    theirs = start.clone().requires_grad_()
    optimizer, state = make([theirs]), begun(Trainable({"w": start}), options)
    for k in range(7):
        optimizer.zero_grad()
        loss(Trainable({"w": theirs}), NOTHING, batch(k))[0].backward()
        optimizer.step()
        state, _ = optimizer_step(state, NOTHING, batch(k), loss, options)
        assert torch.allclose(state.trained.w["w"], theirs.detach(), atol=1e-12), k


@pytest.mark.parametrize("options", [ClientOptions(momentum=0.9, weight_decay=0.1, prox=0.1),
                                     ClientOptions(optimizer="adamw")])
def test_a_padded_step_changes_nothing(options: ClientOptions) -> None:
    state, _ = optimizer_step(begun(ZERO, options), NOTHING, batch(0), quadratic, options)
    after, _ = optimizer_step(state, NOTHING, batch(1, real=0.0), quadratic, options)
    assert after == state


OPTIONS = {
    "momentum": {"momentum": 0.9}, "nesterov": {"momentum": 0.5, "nesterov": True, "weight_decay": 0.1},
    "adamw": {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.1}, "prox": {"prox": 1.0, "clip": 0.5},
    "local steps": {"local_steps": 5, "epochs": 1}, "schedule": {"schedule": "cosine"},
    "together": {"local_steps": 3, "epochs": 1, "momentum": 0.5, "prox": 0.1, "schedule": "linear"},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_engines_agree(name: str) -> None:
    """On clients of one to five batches an epoch, at mixed widths, with learned step sizes; and the setting matters."""
    changed = {}
    for settings in ({}, OPTIONS[name]):
        run = training(mqat(sites="WA", start="lsq"), ranges=RangeOptions(learned=True), rounds=4)
        config = replace(run.computation.config, client=replace(run.computation.config.client, **settings))
        computation = replace(run.computation, config=config)
        given, cohort = computation.paced(computation.given(run.table), 3), computation.cohort(3)
        step = computation.client_step(run.table)
        results = {e: gathered(engine, step, run.state.trainable, given, cohort) for e, engine in ENGINES.items()}
        reference, losses = results.pop("sequential")
        for engine, (deltas, other) in results.items():
            assert torch.allclose(losses, other.to(losses.dtype), atol=1e-6), engine
            for n, delta in reference.items():
                assert torch.allclose(delta, deltas[n], atol=1e-9), (engine, n)
        changed[bool(settings)] = reference["conv2.weight"]
    assert not torch.allclose(changed[True], changed[False], atol=1e-4)


@pytest.mark.parametrize(("settings", "message"), [
    ({"momentum": 1.0}, "momentum = 1.0: must be at least 0 and below 1"), ({"prox": -1.0}, "prox = -1.0"),
    ({"optimizer": "adamw", "momentum": 0.9}, "AdamW has beta1"), ({"nesterov": True}, "nesterov: needs momentum"),
    ({"local_steps": 3, "epochs": 2}, "set one of the two"), ({"local_steps": 0}, "local_steps = 0: must be at least 1"),
])
def test_settings_that_do_not_go_together(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ClientOptions(**settings)
