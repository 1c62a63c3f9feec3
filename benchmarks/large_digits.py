"""The embedded digits, enlarged to 24×24 pixels: LeNet-5 needs at least 16.

anybit run quickstart/mqat model.name=lenet5 model.image_size=24 data.name=large_digits:large_digits \
    --import large_digits   (in this folder)
"""

from __future__ import annotations

from dataclasses import replace

from anybit.data.examples import Data, Examples
from anybit.data.sources import digits


def large_digits(times: int = 3) -> Data:
    """Every pixel repeated `times` × `times`."""
    data = digits()
    train, test = (Examples(part.images.repeat_interleave(times, 2).repeat_interleave(times, 3), part.y)
                   for part in (data.train, data.test))
    return replace(data, train=train, test=test)
