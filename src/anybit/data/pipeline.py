"""The way from stored examples to the inputs of a model, computed per batch on the training device."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Integral
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from anybit.errors import DataError
from anybit.inputs import AnyInputs, described, leaves, mapped
from anybit.randomness import uniform

# Far above the numbers of a model's own sites, so that augmentation never shares draws with noise or dropout.
_SITE = 1 << 20


@dataclass(frozen=True)
class Pipeline:
    """uint8 to [0, 1], (x − mean)/std per channel, then a crop; random crop and flip while training.

    Of several inputs only the images pass through it: uint8 of 3 dimensions and more, floats of 4.
    Calling it gives the inputs of an evaluation (centre crop, nothing random); `augmented` gives those of training.
    crop: side of the square that is cut out; 0: the whole image · padding: zeros around the *normalized* image, so of the
    mean colour, into which the training crop may reach · flip: mirror half of the training images left to right ·
    constants: mean and std on the training device, made once, because a capture cannot copy from the host.
    """

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    crop: int = 0
    padding: int = 0
    flip: bool = False
    constants: tuple[Tensor, Tensor] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if (self.mean is None) != (self.std is None):
            raise DataError("data.mean and data.std: give both, or none")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if values is not None and not all(_is_number(v) and (name == "mean" or v > 0) for v in values):
                raise DataError(f"data.{name} = {list(values)}: must be a number per channel"
                                + (" above 0" if name == "std" else ""))
        for name, value in (("crop", self.crop), ("padding", self.padding)):
            if isinstance(value, bool) or not isinstance(value, Integral) or value < 0:
                raise DataError(f"data.{name} = {value}: must be 0 (none) or above")
        if not isinstance(self.flip, bool | np.bool_):
            raise DataError(f"data.flip = {self.flip!r}: must be true or false")

    def to(self, device: torch.device) -> Pipeline:
        if self.mean is None or self.std is None:
            return self
        return replace(self, constants=_constants(self.mean, self.std, device))

    def __call__(self, inputs: AnyInputs) -> AnyInputs:
        """Return the inputs of an evaluation."""
        return self._of_images(inputs, self._plain)

    def augmented(self, inputs: AnyInputs, key: Tensor, step: Tensor) -> AnyInputs:
        """Return the inputs of training. Row draws depend on (key, step, row) alone: padded batches see the same."""
        return self._of_images(inputs, lambda x: self._augmented(x, key, step))

    def _of_images(self, inputs: AnyInputs, function: Callable[[Tensor], Tensor]) -> AnyInputs:
        if isinstance(inputs, Tensor):
            return cast(AnyInputs, function(inputs))
        if self != Pipeline() and not any(is_image(x) for x in leaves(inputs).values()):
            raise DataError(f"the pipeline prepares images, but none of the inputs is one ({described(inputs)})")
        return mapped(inputs, lambda x: function(x) if is_image(x) else x)

    def _plain(self, x: Tensor) -> Tensor:
        if not self.crop:
            return self._normalized(x)
        self._room(x)
        top, left = (torch.full((x.shape[0],), (side - self.crop) // 2, device=x.device) for side in x.shape[2:])
        return self._cut(x, top, left, torch.zeros_like(top, dtype=torch.bool))

    def _augmented(self, x: Tensor, key: Tensor, step: Tensor) -> Tensor:
        if not (self.crop or self.padding or self.flip):
            return self._normalized(x)
        room = self._room(x)
        draws = uniform(key, step, _SITE, (x.shape[0], 3))
        top, left = ((draws[:, i] * n).to(torch.int64) - self.padding for i, n in enumerate(room))
        return self._cut(x, top, left, (draws[:, 2] < 0.5) & self.flip)

    def _room(self, x: Tensor) -> list[int]:
        """Count the places of a crop, down and across."""
        if x.dim() != 4:
            raise DataError("crop, padding and flip need images (example, channel, row, column), but the inputs have "
                            f"shape {tuple(x.shape)}")
        room = [side + 2 * self.padding - (self.crop or side) + 1 for side in x.shape[2:]]
        if min(room) < 1:
            raise DataError(f"data.crop = {self.crop}: does not fit images of {x.shape[2]}×{x.shape[3]} with padding "
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
        """Cut a window out of each image, mirrored where asked, with 0 for places outside the image.

        Pixels are gathered while they are bytes: the same numbers as normalize, pad, crop, flip, for less traffic.
        """
        rows, columns = x.shape[2:]
        row = top[:, None] + torch.arange(self.crop or rows, device=x.device)
        across = torch.arange(self.crop or columns, device=x.device)
        column = left[:, None] + torch.where(mirror[:, None], across.flip(0), across)
        inside = ((row >= 0) & (row < rows))[:, :, None] & ((column >= 0) & (column < columns))[:, None, :]
        place = row.clamp(0, rows - 1)[:, :, None] * columns + column.clamp(0, columns - 1)[:, None, :]
        index = place.flatten(1)[:, None, :].expand(-1, x.shape[1], -1)
        window = x.flatten(2).gather(2, index).reshape(*x.shape[:2], row.shape[1], column.shape[1])
        return self._normalized(window) * inside[:, None]


def is_image(x: Tensor) -> bool:
    """Tell if one of several inputs is an image: bytes of (example, …, row, column), or floats with a channel, too."""
    return x.dim() >= 3 if x.dtype == torch.uint8 else x.is_floating_point() and x.dim() == 4


def _is_number(value: Any) -> bool:
    """Tell if this is a finite number, of Python, NumPy or torch."""
    return not isinstance(value, str) and hasattr(value, "__float__") and math.isfinite(float(value))


def _constants(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    as_floats = partial(torch.as_tensor, dtype=torch.float32, device=device)
    return as_floats(mean), as_floats(std)
