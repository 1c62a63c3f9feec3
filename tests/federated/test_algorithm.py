from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from anybit.federated.algorithm import (
    ClientStep,
    LocalStep,
    Rates,
    RoundInputs,
    client_update,
    client_weighting,
    clipped,
    federated_round,
    mean_delta,
    sgd_step,
)
from anybit.federated.client import ClientOptions
from anybit.federated.cohort import Batch, Cohort, build_cohort
from anybit.federated.server import ServerOptions, pace, server
from anybit.federated.state import Given, LogSteps, State, Trainable
from anybit.quant.grid import BITS, Width
from anybit.tensors import picked
from tests.gathered import ENGINES, gathered

CPU = torch.device("cpu")


def cohort_of(sizes: list[int], widths: list[Width], batch_size: int = 2) -> Cohort:
    starts = np.cumsum([0, *sizes])
    split = [np.arange(a, b) for a, b in itertools.pairwise(starts)]
    return build_cohort(1, 0, range(len(sizes)), widths, split, ClientOptions(batch_size=batch_size))


def quadratic(w: Trainable, given: Given, xi: Batch) -> tuple[Tensor, Tensor]:
    """½(w − 1)²: gradient w − 1."""
    value = 0.5 * (w.w["w"] - 1) ** 2
    return value, value


def both_forms(mapped: Callable[..., Any]) -> ClientStep:
    """A client step that is the same alone."""
    def alone(given: Given) -> LocalStep[Trainable]:
        return lambda w, xi: mapped(w, given, xi)
    return ClientStep(mapped, alone)


half_step = both_forms(functools.partial(sgd_step, loss=quadratic, rates=Rates(0.5, 0.5)))
AT_ONE = pace(ServerOptions(lr=1.0), 0, 1)
ZERO, NOTHING, NONE = Trainable({"w": torch.tensor(0.0)}), Given({}), LogSteps({}, {})


def test_client_update_by_hand() -> None:
    cohort = cohort_of([4], [Width(32, 32)])
    delta, losses = client_update(ZERO, cohort.batches(0), half_step.alone(NOTHING))
    # two batches: 0 → 0.5 → 0.75
    assert float(delta.w["w"]) == pytest.approx(0.75)
    assert losses.tolist() == pytest.approx([0.5, 0.125])


def values(g: Trainable) -> dict[str, object]:
    return {n: x.tolist() for n, x in g.named().items()}


def test_a_gradient_is_shortened_as_a_whole() -> None:
    g = Trainable({"a": torch.tensor([3.0]), "b": torch.tensor([[0.0], [4.0]])})
    assert values(clipped(g, 1.0)) == {"a": [pytest.approx(0.6)], "b": [[0.0], [pytest.approx(0.8)]]}
    assert values(clipped(g, 5.0)) == values(clipped(g, None)) == {"a": [3.0], "b": [[0.0], [4.0]]}
    for value in (float("inf"), float("nan"), 3e38):
        assert values(clipped(Trainable({**g.w, "b": torch.tensor([value, 1.0])}), 1.0)) == {"a": [0.0], "b": [0.0, 0.0]}


def test_a_learned_step_is_bounded_by_itself_and_shortens_no_other() -> None:
    """Within ±1 whatever the weights' gradient is; left out with it where that is not finite."""
    g = Trainable({"a": torch.tensor([3.0, 4.0])}, LogSteps({"a": torch.tensor([-70.0, 0.5, 2.0])}, {}))
    assert values(clipped(g, None)) == values(clipped(g, 5.0)) == {"a": [3.0, 4.0], "log_step/a": [-1.0, 0.5, 1.0]}
    assert values(clipped(g, 1.0)) == {"a": [pytest.approx(0.6), pytest.approx(0.8)], "log_step/a": [-1.0, 0.5, 1.0]}
    lost = clipped(g._replace(w={"a": torch.tensor([float("nan")])}), 1.0)
    assert values(lost) == {"a": [0.0], "log_step/a": [0.0, 0.0, 0.0]}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_round_averages_uniformly_or_by_examples(engine: str) -> None:
    """Clients with 2 and 6 examples do 1 and 3 steps: deltas 0.5 and 0.875."""
    cohort = cohort_of([2, 6], [Width(32, 32)] * 2)
    sgd = server(ServerOptions("sgd"))
    for by_examples, expected in ((False, (0.5 + 0.875) / 2), (True, (2 * 0.5 + 6 * 0.875) / 8)):
        state = State(ZERO.w, NONE, ())
        inputs = RoundInputs(NOTHING, cohort, client_weighting(cohort, by_examples), AT_ONE)
        new, losses = federated_round(state, inputs, half_step, sgd, ENGINES[engine].map_clients)
        assert float(new.w["w"]) == pytest.approx(expected)
        assert losses.shape == (2, 3)
        assert losses[0].tolist() == pytest.approx([0.5, 0, 0])


def test_learned_steps_average_over_the_clients_that_trained_at_them() -> None:
    """Three clients at 2, 2 and 4 bits: Δ₂ moves by the mean of two, Δ₄ by the third alone, the others rest."""
    cohort = cohort_of([2, 2, 2], [Width(2, 32), Width(2, 32), Width(4, 32)])
    delta = torch.zeros(3, len(BITS))
    delta[0, BITS.index(2)], delta[1, BITS.index(2)], delta[2, BITS.index(4)] = 0.3, 0.5, 0.2
    # on an activation site nobody trained quantized
    deltas = Trainable({"w": torch.tensor([1.0, 2.0, 6.0])}, LogSteps({"layer": delta}, {"layer": delta}))
    mean, _ = mean_delta([(slice(0, 2), picked(deltas, slice(0, 2)), torch.zeros(2, 1)),
                          (slice(2, 3), picked(deltas, slice(2, 3)), torch.zeros(1, 1))],
                         cohort.width_bits, client_weighting(cohort))
    assert mean.log_steps.weights["layer"].tolist() == pytest.approx([0.4, 0, 0.2, 0, 0, 0, 0])
    assert mean.log_steps.activations["layer"].tolist() == pytest.approx([0.8, 0, 0.2, 0, 0, 0, 0]), "divided by nobody"
    assert float(mean.w["w"]) == pytest.approx(3)


def test_learned_steps_take_plain_server_steps() -> None:
    """Server Adam must not touch log Δ: its first step would be larger than Δ₈ itself."""
    cohort = cohort_of([2, 2], [Width(2, 32)] * 2)
    adam = server(ServerOptions("adam"))
    state = State(ZERO.w, LogSteps({"layer": torch.zeros(7)}, {}), adam.init(ZERO.w))

    def step(w: Trainable, given: Given, xi: Batch) -> tuple[Trainable, Tensor]:
        log_steps = {"layer": w.log_steps.weights["layer"] + torch.tensor([1e-6, 0, 0, 0, 0, 0, 0])}
        return Trainable({"w": w.w["w"] + 1e-6}, LogSteps(log_steps, {})), torch.zeros(())

    inputs = RoundInputs(NOTHING, cohort, client_weighting(cohort), AT_ONE)
    new, _ = federated_round(state, inputs, both_forms(step), adam, ENGINES["sequential"].map_clients)
    assert float(new.w["w"]) == pytest.approx(0.99, abs=0.011)
    assert new.log_steps.weights["layer"].tolist() == pytest.approx([1e-6, 0, 0, 0, 0, 0, 0])


def test_a_padded_step_changes_nothing() -> None:
    cohort = cohort_of([2], [Width(32, 32)])
    padded = replace(cohort, index=torch.zeros(1, 3, 2, dtype=torch.int64), width_bits=cohort.width_bits.expand(1, 3, 2),
                     rows=torch.tensor([[[1.0, 1], [0, 0], [0, 0]]]))
    for engine in ENGINES.values():
        deltas, _ = gathered(engine, half_step, ZERO, NOTHING, padded)
        assert deltas["w"].tolist() == pytest.approx([0.5])
