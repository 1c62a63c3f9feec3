from __future__ import annotations

import functools
import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from anybit.federated.algorithm import (
    LOG_STEP,
    State,
    Tensors,
    client_update,
    client_weighting,
    clipped,
    federated_round,
    mean_delta,
    sgd_step,
)
from anybit.federated.cohort import Batch, Cohort, build_cohort
from anybit.federated.server import ServerOptions, server
from anybit.quant.grid import BITS, Width
from tests.gathered import ENGINES, gathered

CPU = torch.device("cpu")


def cohort_of(sizes: list[int], widths: list[Width], batch_size: int = 2) -> Cohort:
    starts = np.cumsum([0, *sizes])
    split = [np.arange(a, b) for a, b in itertools.pairwise(starts)]
    return build_cohort(1, 0, range(len(sizes)), widths, split, batch_size, 1)


def quadratic(w: object, steps: object, width: Tensor, xi: Batch) -> tuple[Tensor, Tensor]:
    """½(w − 1)²: gradient w − 1."""
    value = 0.5 * (w["w"] - 1) ** 2  # type: ignore[index]
    return value, value


half_step = functools.partial(sgd_step, loss=quadratic, lr={"w": 0.5})


def test_client_update_by_hand() -> None:
    cohort = cohort_of([4], [Width(32, 32)])
    delta, losses = client_update({"w": torch.tensor(0.0)}, {}, cohort.width_bits[0], cohort.batches(0), half_step)
    # two batches: 0 → 0.5 → 0.75
    assert float(delta["w"]) == pytest.approx(0.75)
    assert losses.tolist() == pytest.approx([0.5, 0.125])


def values(g: dict[str, torch.Tensor]) -> dict[str, object]:
    return {n: x.tolist() for n, x in g.items()}


def test_a_gradient_is_shortened_as_a_whole() -> None:
    g = {"a": torch.tensor([3.0]), "b": torch.tensor([[0.0], [4.0]])}
    assert values(clipped(g, 1.0)) == {"a": [pytest.approx(0.6)], "b": [[0.0], [pytest.approx(0.8)]]}
    assert values(clipped(g, 5.0)) == values(clipped(g, None)) == {"a": [3.0], "b": [[0.0], [4.0]]}
    for value in (float("inf"), float("nan"), 3e38):
        assert values(clipped({**g, "b": torch.tensor([value, 1.0])}, 1.0)) == {"a": [0.0], "b": [0.0, 0.0]}


def test_a_learned_step_is_bounded_by_itself_and_shortens_no_other() -> None:
    """Within ±1 whatever the weights' gradient is; left out with it where that is not finite."""
    g = {"a": torch.tensor([3.0, 4.0]), "log_step/a": torch.tensor([-70.0, 0.5, 2.0])}
    assert values(clipped(g, None)) == values(clipped(g, 5.0)) == {"a": [3.0, 4.0], "log_step/a": [-1.0, 0.5, 1.0]}
    assert values(clipped(g, 1.0)) == {"a": [pytest.approx(0.6), pytest.approx(0.8)], "log_step/a": [-1.0, 0.5, 1.0]}
    assert values(clipped({**g, "a": torch.tensor([float("nan")])}, 1.0)) == {"a": [0.0], "log_step/a": [0.0, 0.0, 0.0]}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_round_averages_uniformly_or_by_examples(engine: str) -> None:
    """Clients with 2 and 6 examples do 1 and 3 steps: deltas 0.5 and 0.875."""
    cohort = cohort_of([2, 6], [Width(32, 32)] * 2)
    sgd = server(ServerOptions("sgd", lr=1.0))
    for by_examples, expected in ((False, (0.5 + 0.875) / 2), (True, (2 * 0.5 + 6 * 0.875) / 8)):
        state = State({"w": torch.tensor(0.0)}, {})
        new, losses = federated_round(state, {}, cohort, half_step, sgd, ENGINES[engine].map_clients,
                                      client_weighting(cohort, by_examples))
        assert float(new.w["w"]) == pytest.approx(expected)
        assert losses.shape == (2, 3)
        assert losses[0].tolist() == pytest.approx([0.5, 0, 0])


def test_learned_steps_average_over_the_clients_that_trained_at_them() -> None:
    """Three clients at 2, 2 and 4 bits: Δ₂ moves by the mean of two, Δ₄ by the third alone, the others rest."""
    cohort = cohort_of([2, 2, 2], [Width(2, 32), Width(2, 32), Width(4, 32)])
    name = f"{LOG_STEP}layer.weight_quantizer"
    delta = torch.zeros(3, len(BITS))
    delta[0, BITS.index(2)], delta[1, BITS.index(2)], delta[2, BITS.index(4)] = 0.3, 0.5, 0.2
    deltas = {name: delta, "w": torch.tensor([1.0, 2.0, 6.0])}
    mean, _ = mean_delta([(slice(0, 2), {n: d[:2] for n, d in deltas.items()}, torch.zeros(2, 1)),
                          (slice(2, 3), {n: d[2:] for n, d in deltas.items()}, torch.zeros(1, 1))],
                         cohort.width_bits, client_weighting(cohort))
    assert mean[name].tolist() == pytest.approx([0.4, 0, 0.2, 0, 0, 0, 0])
    assert float(mean["w"]) == pytest.approx(3)
    # on an activation site nobody trained quantized
    site = f"{LOG_STEP}layer.input_quantizer"
    mean, _ = mean_delta([(slice(0, 3), {site: torch.zeros(3, 7)}, torch.zeros(3, 1))], cohort.width_bits,
                         client_weighting(cohort))
    assert mean[site].tolist() == [0] * 7


def test_learned_steps_take_plain_server_steps() -> None:
    """Server Adam must not touch log Δ: its first step would be larger than Δ₈ itself."""
    cohort = cohort_of([2, 2], [Width(2, 32)] * 2)
    name = f"{LOG_STEP}layer.weight_quantizer"
    state = State({"w": torch.tensor(0.0), name: torch.zeros(7)}, {})
    adam = server(ServerOptions("adam", lr=1.0))
    state = replace_optimizer(state, adam.init({"w": state.w["w"]}))

    def step(w: Tensors, steps: Tensors, width: Tensor, xi: Batch) -> tuple[dict[str, Tensor], Tensor]:
        return {"w": w["w"] + 1e-6, name: w[name] + torch.tensor([1e-6, 0, 0, 0, 0, 0, 0])}, torch.zeros(())

    new, _ = federated_round(state, {}, cohort, step, adam, ENGINES["sequential"].map_clients, client_weighting(cohort))
    assert float(new.w["w"]) == pytest.approx(0.99, abs=0.011)
    assert new.w[name].tolist() == pytest.approx([1e-6, 0, 0, 0, 0, 0, 0])


def replace_optimizer(state: State, optimizer: dict[str, Tensor]) -> State:
    return state._replace(optimizer=optimizer)


def test_a_padded_step_changes_nothing() -> None:
    cohort = cohort_of([2], [Width(32, 32)])
    padded = replace(cohort, index=torch.zeros(1, 3, 2, dtype=torch.int64), rows=torch.tensor([[[1.0, 1], [0, 0], [0, 0]]]))
    for engine in ENGINES.values():
        deltas, _ = gathered(engine, half_step, {"w": torch.tensor(0.0)}, {}, padded)
        assert deltas["w"].tolist() == pytest.approx([0.5])
