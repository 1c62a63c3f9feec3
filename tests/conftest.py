"""What the tests share: one thread each (they run side by side), and small things to train."""

from __future__ import annotations

import itertools
import os

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from torch import nn

torch.set_num_threads(1)
# Autograd starts here, plainly: one that was made to start threads does not survive the forks of the processes engine.
torch.ones(1, requires_grad=True).sum().backward()  # type: ignore[no-untyped-call]
# Nothing is timed: machines differ, and are shared.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Name a failure at once: the summary is lost where the tests are cut."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        print(f"\n{report.nodeid} failed ({report.when})", flush=True)


@pytest.fixture
def blobs() -> tuple[np.ndarray, np.ndarray]:
    """240 points in 8 dimensions around 4 centres: learnable in seconds, with real structure."""
    draw = np.random.default_rng(7)
    labels = draw.integers(4, size=240)
    centres = draw.normal(size=(4, 8)) * 2
    return (centres[labels] + draw.normal(size=(240, 8))).astype(np.float32), labels


@pytest.fixture
def mlp() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


@pytest.fixture
def clients(blobs: tuple[np.ndarray, np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Five clients of 1, 20, 40, 59 and 60 points."""
    x, y = blobs
    edges = [0, 1, 21, 61, 120, 180]
    return [(x[a:b], y[a:b]) for a, b in itertools.pairwise(edges)]


@pytest.fixture
def held_out(blobs: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    return blobs[0][180:], blobs[1][180:]
