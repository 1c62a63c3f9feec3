"""LeNet-5 as in Caffe, whose accuracy matches the paper's."""

from __future__ import annotations

from torch import nn

from anybit.models.initial import Init, initialize


def lenet5(in_channels: int = 3, image_size: int = 32, classes: int = 10, init: Init = "torch") -> nn.Module:
    """Build conv 5×5 20 – ReLU – pool – conv 5×5 50 – ReLU – pool – fc 500 – ReLU – fc; 657,080 parameters for 3×32×32."""
    side = ((image_size - 4) // 2 - 4) // 2
    if side < 1:
        raise ValueError(f"image_size = {image_size} is too small for LeNet-5: at least 16")
    first, second = nn.Conv2d(in_channels, 20, 5), nn.Conv2d(20, 50, 5)
    hidden, head = nn.Linear(50 * side * side, 500), nn.Linear(500, classes)
    model = nn.Sequential(first, nn.ReLU(), nn.MaxPool2d(2), second, nn.ReLU(), nn.MaxPool2d(2),
                          nn.Flatten(), hidden, nn.ReLU(), head)
    initialize((first, second, hidden), head, init)
    return model
