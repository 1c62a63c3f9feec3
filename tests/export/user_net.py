"""A user's own model: convolution, frozen BatchNorm, depthwise, residual, linear on sequences and on vectors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

TINY = {"model": {"name": "tests.export.user_net:net"}, "data": {"name": "digits"}, "rounds": 12, "cohort": 4,
        "split": {"name": "dirichlet", "clients": 8}, "client": {"batch_size": 32, "lr": 0.1}, "server": {"lr": 0.02},
        "evaluation": {"every": 12, "bits": [32, 4], "sites": ["WA"], "steps": ["table"]}, "device": "cpu"}
"""A run of seconds."""


class Net(nn.Module):
    """1×8×8 → 10 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8).eval()
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
        self.mix, self.head = nn.Linear(8, 12), nn.Linear(16 * 12, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.conv(x)))
        x = torch.max_pool2d(x + self.depthwise(x), 2)
        x = torch.relu(self.mix(x.flatten(2).transpose(1, 2)))
        out: Tensor = self.head(x.flatten(1))
        return out


def net() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = Net()
        model.norm.running_mean = torch.rand(8) - 0.5
        model.norm.running_var = torch.rand(8) + 0.5
    return model


class Upside(nn.Module):
    """With a transposed convolution, for which no runtime has an integer kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up, self.head = nn.Conv2d(1, 4, 2, 2), nn.ConvTranspose2d(4, 2, 2, 2), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.up(torch.relu(self.down(x))).flatten(1))
        return out
