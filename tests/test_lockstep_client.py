"""Runs side by side whose clients keep momentum and slow down over the rounds."""

from __future__ import annotations

from dataclasses import replace

import torch

from anybit.config import ClientOptions
from anybit.federated.variants import mqat, qat
from anybit.training.course import Training
from anybit.training.task import Trained
from tests.test_lockstep import side_by_side, training
from tests.trainings import to_end

OPTIONS = ClientOptions(lr=0.1, batch_size=4, momentum=0.9, prox=0.1, local_steps=3, schedule="cosine")


def begun(seed: int) -> Training:
    run = training(mqat() if seed == 1 else qat(3), seed)
    run.computation = replace(run.computation, config=replace(run.computation.config, client=OPTIONS))
    return run


def test_client_optimizers_and_schedules_side_by_side() -> None:
    together = side_by_side([begun(1), begun(2)])
    for i, seed in enumerate((1, 2)):
        alone, ours = to_end(begun(seed)), together[i]
        assert isinstance(ours, Trained)
        for name, p in alone.w.items():
            assert torch.allclose(ours.w[name], p, atol=1e-9), (seed, name)
