from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.warm import Warm

Anybit = Callable[..., subprocess.CompletedProcess[str]]

TINY = ["model.name=tiny_models:tiny", "--import", "tiny_models", "rounds=6", "evaluation.every=3", "checkpoint_every=2",
        "client.batch_size=32", "evaluation.sites=[\"W\"]"]
"""A run of a second: the quickstart with a small model of the user's own."""

MODELS = '''
import torch
from torch import nn


def tiny(hidden: int = 8) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 10)

    def forward(self, x):
        return self.head(self.norm(self.conv(x)).mean((2, 3)))


class Idle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head, self.spare = nn.Linear(64, 10), nn.Linear(3, 3)

    def forward(self, x):
        return self.head(x.flatten(1))


def narrow() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4))


def lone_nan():
    from anybit.data.examples import Data, as_examples
    x = torch.zeros(20, 1, 8, 8)
    x[3, 0, 1, 1] = torch.nan
    y = torch.arange(20) % 10
    return Data(as_examples(x, y, "training data"), as_examples(x[:2], y[:2], "test data"))


def empty_client(labels, seed, clients: int = 3):
    import numpy as np
    return [np.arange(10), np.arange(0), np.arange(10, 20)]
'''


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder of the user's, with code of their own."""
    (tmp_path / "tiny_models.py").write_text(MODELS)
    return tmp_path


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "anybit", *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "200"}


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    started = Warm(environment())
    yield started
    started.close()


@pytest.fixture
def anybit(home: Path, warm: Warm) -> Anybit:
    """Run the command in the user's folder and wait for it."""
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return warm.run(arguments, home, environment())
    return run
