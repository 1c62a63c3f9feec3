from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import anybit
from anybit.errors import ConfigError
from anybit.federated.algorithm import mean_delta
from anybit.federated.client import ClientOptions
from anybit.federated.cohort import build_cohort
from anybit.federated.robust import combiner, geometric_weights, krum_weights, median, trimmed_mean
from anybit.federated.server import ServerOptions
from anybit.federated.state import LogSteps, Trainable
from anybit.quant.grid import Width
from anybit.tensors import picked

CPU = torch.device("cpu")


@pytest.mark.parametrize("count", [1, 2, 5, 6])
def test_median_and_trimmed_mean_are_numpys(count: int) -> None:
    x = torch.randn(count, 3, 4, generator=torch.Generator().manual_seed(count))
    np.testing.assert_allclose(median(x), np.median(x.numpy(), 0), atol=1e-7)
    cut = int(0.2 * count)
    expected = np.sort(x.numpy(), 0)[cut:count - cut].mean(0)
    np.testing.assert_allclose(trimmed_mean(x, 0.2), expected, atol=1e-6)


def test_one_liar_of_five_moves_the_mean_but_neither_median_nor_trimmed_mean() -> None:
    honest = torch.ones(5, 10) + 0.01 * torch.arange(5.0)[:, None]
    lied = honest.clone()
    lied[3] = 1e6
    assert trimmed_mean(lied, 0.2).max() < 1.05
    assert median(lied).max() < 1.05
    assert lied.mean(0).max() > 1e5


def learned(log_steps: torch.Tensor, widths: list[Width], mean: Any) -> torch.Tensor:
    """Combine log step sizes of clients that trained at these widths."""
    count = len(widths)
    cohort = build_cohort(1, 0, range(count), widths, [np.arange(3)] * count, ClientOptions(batch_size=3))
    deltas = Trainable({"w": torch.arange(float(count))[:, None]}, LogSteps({"a": log_steps}, {}))
    parts = [(slice(i, i + 1), picked(deltas, slice(i, i + 1)), torch.ones(1, 3)) for i in range(count)]
    combined, losses = combiner(ServerOptions(mean=mean))(parts, cohort.width_bits, torch.full((count,), 1 / count))
    assert combined.w["w"].item() == (count - 1) / 2
    assert losses.shape == (count, 3)
    return combined.log_steps.weights["a"]


def test_one_liar_about_learned_steps_moves_neither_median_nor_trimmed_mean() -> None:
    steps = torch.zeros(5, 7)
    steps[:, 2] = torch.tensor([0.1, 0.2, 0.3, 0.4, 200.0])
    widths = [Width(4, 32)] * 5
    assert learned(steps, widths, "median")[2].item() == pytest.approx(0.3)
    assert learned(steps, widths, "trimmed")[2].item() == pytest.approx(0.3)
    assert learned(steps, widths, "mean")[2].item() > 40


@pytest.mark.parametrize("mean", ["median", "trimmed"])
def test_learned_steps_are_combined_over_those_that_trained_at_them(mean: str) -> None:
    steps, widths = torch.zeros(4, 7, 2, 1), [Width(2, 32), Width(4, 32), Width(4, 32), Width(32, 32)]
    steps[0, 0], steps[1, 2], steps[2, 2] = 1.0, 2.0, 4.0
    expected = torch.zeros(7, 2, 1)
    expected[0], expected[2] = 1.0, 3.0
    assert torch.equal(learned(steps, widths, mean), expected)
    assert torch.equal(learned(steps, widths, "mean"), expected)
    assert combiner(ServerOptions()) is mean_delta


@pytest.mark.parametrize("mean", ["median", "trimmed"])
def test_worker_processes_give_the_bytes_of_one_after_another(mean: str, mlp: nn.Module, clients: list[Any],
                                                              held_out: Any) -> None:
    """Deltas of later clients come in the memory of earlier ones."""
    def weights(engine: Any) -> torch.Tensor:
        result = anybit.fit(mlp, clients * 3, held_out, rounds=3, cohort=15, engine=engine,
                            client=anybit.ClientOptions(lr=0.05, batch_size=8),
                            server=anybit.ServerOptions(mean=mean), compute=anybit.ComputeOptions(workers=2))  # type: ignore[arg-type]
        return torch.cat([p.detach().flatten() for p in result.model.parameters()])

    assert torch.equal(weights("processes"), weights("sequential"))


def test_a_run_with_a_poisoned_client_learns_only_with_a_robust_mean(
        mlp: nn.Module, clients: list[Any], held_out: Any) -> None:
    x, y = clients[-1]
    poisoned = [*clients[1:-1], (x * 50, 3 - y)]

    def accuracy(**server: Any) -> float:
        result = anybit.fit(mlp, poisoned, held_out, rounds=12, cohort=4, client=anybit.ClientOptions(lr=0.05, batch_size=8),
                            server=anybit.ServerOptions(optimizer="sgd", lr=1.0, **server))
        return result.scores["FP32"].metric

    assert accuracy(mean="median") > accuracy() + 10


def test_trim_is_checked() -> None:
    with pytest.raises(ConfigError, match=r"below 0\.5"):
        ServerOptions(trim=0.5)


def test_geometric_median_and_krum_by_hand() -> None:
    """The geometric median of an equilateral triangle is its centre, a far point hardly moves it, and Krum drops that."""
    triangle = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, 0.75 ** 0.5]], dtype=torch.float64)
    weights = geometric_weights(triangle @ triangle.T)
    torch.testing.assert_close(weights @ triangle, triangle.mean(0), rtol=0, atol=1e-9)
    points = torch.cat([triangle, torch.tensor([[1e5, -1e5]], dtype=torch.float64)])
    assert float((geometric_weights(points @ points.T) @ points - triangle.mean(0)).norm()) < 1
    assert krum_weights(points @ points.T, 0.25).tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])


@pytest.mark.parametrize("mean", ["geometric", "krum"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_clients_have_a_robust_mean_too(mean: str, count: int) -> None:
    delta = Trainable({"a": torch.ones(count, 2), "b": torch.zeros(count, 3)})
    combine = combiner(ServerOptions(mean=mean))  # type: ignore[arg-type]
    found, _ = combine([(slice(0, count), delta, torch.ones(count, 1))], torch.full((count, 1, 2), 32), torch.ones(count))
    torch.testing.assert_close(found.w["a"], torch.ones(2))
    assert torch.equal(found.w["b"], torch.zeros(3))
