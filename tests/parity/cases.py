"""What every engine must give the same deltas for: all variants and sites, on a network of everything that could break."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anybit.config import ClientOptions, Config
from anybit.data.examples import Data, Examples
from anybit.federated.variants import Variant, apqn, baseline, carousel, kure, mqat, qat, weight_decay_penalty
from anybit.quant.grid import SiteKinds
from anybit.training.course import Training
from anybit.training.task import Task
from tests.trainings import begun

SIZES = [1, 9, 4, 17]
SITES: tuple[SiteKinds, ...] = ("W", "A", "WA")


class Net(nn.Module):
    """Convolutions, a group norm, dropout, a residual, pooling and a linear layer: what could break under vmap."""

    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.pool = pool
        self.conv1, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4)
        self.conv2, self.drop = nn.Conv2d(4, 4, 3, padding=1), nn.Dropout(0.3)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.conv1(x)))
        x = torch.relu(x + self.drop(self.conv2(x)))
        out: Tensor = self.head(self.pool(x).mean((2, 3)))
        return out


def with_decay(variant: Variant) -> Variant:
    """The same variant with client weight decay on."""
    return replace(variant, penalties=(*variant.penalties, (0.01, weight_decay_penalty)))


VARIANTS = {
    "baseline": baseline(weight_decay=0.01), "baseline dropout": with_decay(baseline(dropout=0.5)),
    **{f"{make.__name__} {s}": with_decay(make(sites=s)) for make in (kure, apqn, qat, mqat) for s in SITES},
    **{f"qat2 {s}": with_decay(qat(2, s)) for s in SITES},
    **{f"mqat* {s}": with_decay(mqat(sites=s, fixed=True)) for s in SITES},
    **{f"carousel {s}": with_decay(carousel(sites=s)) for s in SITES},
    "carousel cap": with_decay(carousel(sites="WA", cap=True)), "carousel cohort": with_decay(carousel(widths="cohort")),
}


def training(variant: Variant, pool: nn.Module | None = None, clip: float | None = None, **settings: Any) -> Training:
    torch.manual_seed(5)
    draw = np.random.default_rng(0)
    total = sum(SIZES)
    data = Data(Examples(torch.from_numpy(draw.normal(size=(total, 1, 6, 6))),
                         torch.from_numpy(draw.integers(3, size=total))),
                Examples(torch.randn(4, 1, 6, 6).double(), torch.tensor([0, 1, 2, 0])))
    split = np.split(np.arange(total), np.cumsum(SIZES)[:-1])
    config = Config(cohort=len(SIZES), client=ClientOptions(lr=0.1, batch_size=4, epochs=2, clip=clip), **settings)
    return begun(Task(Net(pool or nn.AvgPool2d(2)).double(), variant, data, split), config)
