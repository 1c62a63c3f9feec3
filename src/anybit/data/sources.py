"""Data sets by name."""

from __future__ import annotations

import numpy as np
import torch

from anybit.data.examples import Data, Examples, channel_statistics
from anybit.errors import MissingExtra
from anybit.randomness import generator

_HELD_OUT = 360
_HOLD_OUT_SEED = 0


def digits() -> Data:
    """1,797 handwritten digits, 8×8 pixels (UCI Optical Recognition, inside scikit-learn's wheel); 360 are held out.

    The hold-out is the same for every run seed, so that runs with different seeds compare.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise MissingExtra("scikit-learn", "digits", "the embedded data set 'digits'") from None
    raw = load_digits()
    images = torch.from_numpy(np.round(raw.images * (255 / 16)).astype(np.uint8)).unsqueeze(1)
    labels = torch.from_numpy(raw.target.astype(np.int64))
    order = torch.from_numpy(generator(_HOLD_OUT_SEED, "digits hold-out").permutation(len(labels)))
    test, train = order[:_HELD_OUT], order[_HELD_OUT:]
    return Data(Examples(images[train], labels[train]), Examples(images[test], labels[test]),
                channel_statistics(images[train]), tuple("0123456789"))
