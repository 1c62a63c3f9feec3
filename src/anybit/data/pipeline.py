"""From stored examples to what the model sees, computed per batch on the training device."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from anybit.errors import DataError
from anybit.randomness import uniform

# Far above the numbers of a model's own sites, so that augmentation never shares draws with noise or dropout.
_SITE = 1 << 20


@dataclass(frozen=True)
class Pipeline:
    """uint8 to [0, 1], (x − mean)/std per channel, then a crop; random crop and flip while training.

    Calling it gives what evaluation sees (centre crop, nothing random); `augmented` gives what training sees. The zeros
    of `padding` lie around the *normalized* image, so they are the mean colour.
    """

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    crop: int = 0
    """Side of the square that is cut out; 0: the whole image."""
    padding: int = 0
    """Zeros on every side, from which the training crop may reach into the image."""
    flip: bool = False
    """Mirror half of the training images left to right."""
    constants: tuple[Tensor, Tensor] | None = field(default=None, compare=False, repr=False)
    """Mean and std as tensors on the training device: made once, because a capture cannot copy from the host."""

    def __post_init__(self) -> None:
        for name, value in (("crop", self.crop), ("padding", self.padding)):
            if value < 0:
                raise DataError(f"data.{name} = {value}: must be 0 (none) or above")

    def to(self, device: torch.device) -> Pipeline:
        if self.mean is None or self.std is None:
            return self
        return replace(self, constants=_constants(self.mean, self.std, device))

    def __call__(self, x: Tensor) -> Tensor:
        """What evaluation sees."""
        if not self.crop:
            return self._normalized(x)
        height, width = _sides(x)
        self._room(height, width)
        top = torch.full((x.shape[0],), (height - self.crop) // 2, device=x.device)
        left = torch.full((x.shape[0],), (width - self.crop) // 2, device=x.device)
        return self._cut(x, top, left, torch.zeros_like(top, dtype=torch.bool))

    def augmented(self, x: Tensor, key: Tensor, step: Tensor) -> Tensor:
        """What a client trains on. The draws of a row depend on (key, step, row) alone: padded batches see the same."""
        if not (self.crop or self.padding or self.flip):
            return self._normalized(x)
        height, width = _sides(x)
        draws = uniform(key, step, _SITE, (x.shape[0], 3))
        room = self._room(height, width)
        top, left = ((draws[:, i] * n).to(torch.int64) - self.padding for i, n in enumerate(room))
        return self._cut(x, top, left, (draws[:, 2] < 0.5) & self.flip)

    def _room(self, height: int, width: int) -> list[int]:
        """In how many places the crop can lie, down and across."""
        room = [side + 2 * self.padding - (self.crop or side) + 1 for side in (height, width)]
        if min(room) < 1:
            raise DataError(f"data.crop = {self.crop}: does not fit images of {height}×{width} with padding "
                            f"{self.padding}")
        return room

    def _normalized(self, x: Tensor) -> Tensor:
        if x.dtype == torch.uint8:
            x = x.to(torch.float32) / 255
        if self.mean is not None and self.std is not None:
            mean, std = self.constants or _constants(self.mean, self.std, x.device)
            shape = (-1, *[1] * (x.dim() - 2))
            x = (x - mean.reshape(shape)) / std.reshape(shape)
        return x

    def _cut(self, x: Tensor, top: Tensor, left: Tensor, mirror: Tensor) -> Tensor:
        """One window per image, mirrored where asked; what lies outside the image is 0.

        Pixels are gathered while they are bytes: the same numbers as normalize, pad, crop, flip, for less traffic.
        """
        height, width = _sides(x)
        rows = top[:, None] + torch.arange(self.crop or height, device=x.device)
        across = torch.arange(self.crop or width, device=x.device)
        columns = left[:, None] + torch.where(mirror[:, None], across.flip(0), across)
        inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
        place = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None, :]
        index = place.flatten(1)[:, None, :].expand(-1, x.shape[1], -1)
        window = x.flatten(2).gather(2, index).reshape(*x.shape[:2], rows.shape[1], columns.shape[1])
        return self._normalized(window) * inside[:, None]


def _constants(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    return torch.tensor(mean, device=device), torch.tensor(std, device=device)


def _sides(x: Tensor) -> tuple[int, int]:
    if x.dim() != 4:
        raise DataError("crop, padding and flip need images (example, channel, row, column), but the inputs have "
                        f"shape {tuple(x.shape)}")
    return x.shape[2], x.shape[3]
