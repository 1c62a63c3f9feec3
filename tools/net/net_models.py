"""A network of everything that engines treat differently: convolutions, norms with and without ReLU, pools, dropout."""

from __future__ import annotations

from torch import nn


def small(channels: int = 6) -> nn.Module:
    """Two convolutions and a linear layer for 8×8 images of one channel."""
    return nn.Sequential(nn.Conv2d(1, channels, 3, padding=1), nn.GroupNorm(2, channels), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.1),
                         nn.Flatten(), nn.Linear(channels * 4, 10))
