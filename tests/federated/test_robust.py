from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import anybit
from anybit.errors import ConfigError
from anybit.federated.algorithm import mean_delta
from anybit.federated.cohort import build_cohort
from anybit.federated.robust import combiner, median, trimmed_mean
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


def test_learned_steps_keep_the_mean_over_those_that_trained_at_them() -> None:
    split = [np.arange(3)] * 2
    cohort = build_cohort(1, 0, [0, 1], [Width(2, 32), Width(4, 32)], split, 3, 1)
    deltas = Trainable({"w": torch.tensor([[1.0], [3.0]])}, LogSteps({"a": torch.ones(2, 7)}, {}))
    weighting = torch.tensor([0.5, 0.5])
    parts = [(slice(i, i + 1), picked(deltas, slice(i, i + 1)), torch.ones(1, 3)) for i in range(2)]
    combined, losses = combiner(ServerOptions(mean="median"))(parts, cohort.width_bits, weighting)
    mean, _ = mean_delta(parts, cohort.width_bits, weighting)
    assert torch.equal(combined.log_steps.weights["a"], mean.log_steps.weights["a"])
    assert combined.w["w"].item() == 2
    assert losses.shape == (2, 3)
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
