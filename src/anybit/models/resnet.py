"""ResNet-20 (He et al.'s CIFAR network) and ResNet-18, with GroupNorm in place of BatchNorm."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from anybit.layers import GroupNormReLU, Subsample, as_read
from anybit.models.initial import Init, initialize

Shortcut = Literal["A", "B"]
Stem = Literal["3x3", "7x7"]


class Block(nn.Module):
    """conv – norm – ReLU – conv – norm, plus the shortcut, then ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int, shortcut: Shortcut,
                 round_shortcuts: bool = False) -> None:
        super().__init__()
        self.round_shortcuts = round_shortcuts
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = GroupNormReLU(groups, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = GroupNormReLU(groups, outputs)
        self.project: nn.Module | None = None
        if (grown := outputs - inputs) or stride > 1:
            # Option A: every other pixel, and new channels of zeros on both sides.
            self.project = Subsample(stride, grown // 2, grown - grown // 2) if shortcut == "A" else \
                nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(groups, outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv2(self.norm1(self.conv1(x)))
        carried = as_read(self.conv1, x) if self.round_shortcuts else x
        out: Tensor = self.norm2(y, carried if self.project is None else self.project(carried))
        return out


class ResNet(nn.Module):
    """A stem, stages of blocks that halve the image and have more channels, global average pooling, one linear.

    The stem is one 3×3 convolution, or ImageNet's 7×7 of stride 2 and a max-pool, which leave a sixteenth of the pixels.
    """

    def __init__(self, in_channels: int, classes: int, channels: tuple[int, ...], blocks: int, groups: int,
                 shortcut: Shortcut, init: Init, stem: Stem = "3x3", round_shortcuts: bool = False) -> None:
        super().__init__()
        size, stride, padding = (3, 1, 1) if stem == "3x3" else (7, 2, 3)
        self.stem = nn.Conv2d(in_channels, channels[0], size, stride, padding, bias=False)
        self.norm = GroupNormReLU(groups, channels[0])
        self.pool: nn.Module | None = None if stem == "3x3" else nn.MaxPool2d(3, 2, 1)
        inputs, stages = channels[0], []
        for stage, outputs in enumerate(channels):
            for block in range(blocks):
                stages.append(Block(inputs, outputs, 2 if stage and not block else 1, groups, shortcut, round_shortcuts))
                inputs = outputs
        self.blocks = nn.Sequential(*stages)
        self.head = nn.Linear(inputs, classes)
        initialize((layer for layer in self.modules() if isinstance(layer, nn.Conv2d)), self.head, init)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x))
        out: Tensor = self.head(self.blocks(x if self.pool is None else self.pool(x)).mean((2, 3)))
        return out


def resnet20(in_channels: int = 3, classes: int = 10, groups: int = 2, shortcut: Shortcut = "A",
             init: Init = "torch", round_shortcuts: bool = False) -> nn.Module:
    """Build ResNet-20 for small images: 3 stages × 3 blocks of 16, 32, 64 channels; 269,722 parameters for CIFAR-10.

    round_shortcuts: where activations are quantized, a block rounds its input for the shortcut, too, as if the tensor
    between two blocks had no more bits.
    """
    return ResNet(in_channels, classes, (16, 32, 64), 3, groups, shortcut, init, round_shortcuts=round_shortcuts)


def resnet18(in_channels: int = 3, classes: int = 200, groups: int = 2, init: Init = "torch",
             stem: Stem = "3x3") -> nn.Module:
    """Build ResNet-18: 4 stages × 2 blocks of 64…512 channels.

    stem: ImageNet's ("7x7" of stride 2, then a max-pool of stride 2), or "3x3" without pooling, which keeps the pixels of
    a small image for the first stage, at sixteen times the work.
    """
    return ResNet(in_channels, classes, (64, 128, 256, 512), 2, groups, "B", init, stem)
