"""A user's own network for the digits, in the manner of MobileNet: inverted residuals, depthwise convolutions, gates.

anybit run carousel/digits model.name=mobile_digits:mobile_digits --import mobile_digits   (in this folder)
"""

from __future__ import annotations

from torch import Tensor, nn


def _layer(inputs: int, outputs: int, size: int = 1, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False),
                         nn.GroupNorm(4, outputs))


class Gate(nn.Module):
    """Squeeze and excitation: every channel times a number in [0, 1] that the means of all channels give."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.means, self.squeeze, self.excite = nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, hidden, 1), \
            nn.Conv2d(hidden, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * nn.functional.hardsigmoid(self.excite(nn.functional.relu(self.squeeze(self.means(x)))))


class Inverted(nn.Module):
    """1×1 convolution to more channels – depthwise 3×3 – gate – 1×1 back, plus the input where shapes allow."""

    def __init__(self, inputs: int, outputs: int, stride: int, growth: int = 4) -> None:
        super().__init__()
        wide = growth * inputs
        self.body = nn.Sequential(_layer(inputs, wide), nn.Hardswish(), _layer(wide, wide, 3, stride, wide), nn.Hardswish(),
                                  Gate(wide, inputs), _layer(wide, outputs))
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return x + y if self.residual else y


def mobile_digits(in_channels: int = 1, classes: int = 10) -> nn.Module:
    """Build a stem, four inverted residuals of 16, 24, 24 and 40 channels, and one linear layer."""
    return nn.Sequential(_layer(in_channels, 16, 3), nn.Hardswish(), Inverted(16, 16, 1), Inverted(16, 24, 2),
                         Inverted(24, 24, 1), Inverted(24, 40, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(40, classes))
