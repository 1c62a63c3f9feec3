"""The work that everybody does: 10 clients × 500 images of CIFAR's shape, batch 64, one local epoch, SGD 0.05.

The variables CLIENTS and IMAGES make it another number.

Rounds are started by a line on stdin and answered by a line of JSON on stdout, so that one orchestrator can let all
contestants take turns on the same machine.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

CLIENTS, IMAGES = int(os.environ.get("CLIENTS", "10")), int(os.environ.get("IMAGES", "500"))
BATCH, LR = 64, 0.05
_OUT = os.dup(1)


def data() -> tuple[np.ndarray, np.ndarray]:
    """(images (client, image, 3, 32, 32), labels (client, image)): random, the time does not depend on them."""
    draw = np.random.default_rng(0)
    return (draw.normal(size=(CLIENTS, IMAGES, 3, 32, 32)).astype(np.float32),
            draw.integers(10, size=(CLIENTS, IMAGES)).astype(np.int64))


def torch_model(name: str) -> Any:
    """lenet (6-16-120-84), lenet5 (the recipes', 20-50-500) or resnet20 (GroupNorm)."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    if name == "lenet":
        return nn.Sequential(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(),
                             nn.MaxPool2d(2), nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(),
                             nn.Linear(84, 10))
    from anybit import models

    return {"lenet5": models.lenet5, "resnet20": models.resnet20}[name]()


def quiet() -> None:
    """Keep stdout for the answers: whatever a framework prints goes to stderr."""
    os.dup2(2, 1)


def rounds() -> Iterator[None]:
    """One step per line that the orchestrator sends."""
    for _ in sys.stdin:
        yield


def say(**facts: Any) -> None:
    os.write(_OUT, (json.dumps(facts) + "\n").encode())


class Timer:
    """start() and done(samples) around a round."""

    def start(self) -> None:
        self.began = time.perf_counter()

    def done(self, samples: int) -> None:
        say(seconds=time.perf_counter() - self.began, samples=samples)


def torch_epoch(model: Any, x: Any, y: Any, channels_last: bool = False) -> int:
    """One local epoch as everybody writes it in PyTorch; returns the samples trained."""
    import torch

    optimizer, samples = torch.optim.SGD(model.parameters(), LR), 0
    for index in torch.randperm(len(x)).split(BATCH):
        batch = x[index].contiguous(memory_format=torch.channels_last) if channels_last else x[index]
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(batch), y[index]).backward()
        optimizer.step()
        samples += len(index)
    return samples
