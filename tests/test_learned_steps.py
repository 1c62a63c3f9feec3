"""Learned steps: as fast as LSQ's at the start, bounded in one local step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from anybit.config import ClientOptions, Config, RangeOptions
from anybit.data.examples import Data, Examples
from anybit.engines.sequential import Sequential
from anybit.federated.state import trained_table
from anybit.federated.variants import qat
from anybit.quant.grid import BITS
from anybit.training.course import Training
from anybit.training.task import Task
from tests.gathered import deltas_of
from tests.trainings import begun

SITE, BITS_3, RATE = "0.weight_quantizer", BITS.index(3), 0.01


def output(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss whose gradient is 1: the output itself."""
    return outputs[:, 0]


def one_client(x: float, scale: float = 1.0, kind: torch.dtype = torch.float64) -> Training:
    """One image (x, x), weights 0.6 and −0.4. At 3 bits Δ = 1/7: 0.6 is clipped to 3Δ, −0.4 = −2.8Δ is rounded to −3Δ."""
    layer = nn.Linear(2, 1, bias=False).to(kind)
    with torch.no_grad():
        layer.weight.copy_(scale * torch.tensor([[0.6, -0.4]], dtype=kind))
    images = Examples(torch.full((1, 2), x, dtype=kind), torch.zeros(1, dtype=torch.int64))
    config = Config(cohort=1, client=ClientOptions(lr=0.1, batch_size=1, step_lr=RATE), ranges=RangeOptions(learned=True))
    task = Task(nn.Sequential(layer), qat(3), Data(images, images), [np.arange(1)], output, output)
    return begun(task, config)


def moved(run: Training) -> Tensor:
    deltas, _ = deltas_of(Sequential(), run, run.computation.cohort(0))
    return deltas[f"log_step/{SITE}"][0]


def test_a_local_step_moves_a_step_as_lsq_does() -> None:
    run = one_client(0.1)
    step = float(run.table.steps[SITE][BITS_3])
    assert step == pytest.approx(1 / 7)
    # ∂L/∂Δ = 0.1·(3 − 3 + 2.8), g = 1/√(2 weights · 3 levels): δΔ = −η·g·∂L/∂Δ, of which s = log Δ is δΔ/Δ
    expected = -RATE * 6 ** -0.5 * 0.1 * (3 - 0.2) / step
    found = moved(run)
    assert float(found[BITS_3]) == pytest.approx(expected, rel=1e-6)
    assert [i for i, value in enumerate(found.tolist()) if value] == [BITS_3]


def test_a_local_step_changes_a_step_by_its_learning_rate_at_most() -> None:
    assert float(moved(one_client(100.0))[BITS_3]) == pytest.approx(-RATE)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_weights_of_any_size_move_no_step_out_of_sight(scale: float) -> None:
    """Δ² leaves float32 at both ends."""
    assert bool(moved(one_client(1.0, scale, torch.float32)).isfinite().all())


def test_the_table_follows_the_logarithm() -> None:
    run = one_client(0.1)
    doubled = trained_table(run.table, run.state.w, {SITE: torch.full((len(BITS),), 2.0).log()})
    assert doubled.steps[SITE].tolist() == pytest.approx((2 * run.table.steps[SITE]).tolist())
