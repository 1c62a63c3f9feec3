"""Data sets by name. The arguments of a function are the settings of a recipe's [data] table.

normalize: mean 0 and standard deviation 1 per channel · crop, padding, flip: see Pipeline · holdout: number of training
images that are kept from the clients · evaluate: on the test set, or on those images (to choose hyperparameters).
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import torch

from anybit.data import cache
from anybit.data.cache import Prepared
from anybit.data.examples import Data, Examples, Pipeline, channel_statistics
from anybit.data.text import text
from anybit.errors import DataError, MissingExtra
from anybit.randomness import generator

_HELD_OUT = 360
_HOLD_OUT_SEED = 0
"""The same for every run seed, so that runs with different seeds compare."""

Part = Literal["test", "holdout"]


def digits() -> Data:
    """Load 1,797 handwritten digits, 8×8 pixels (UCI Optical Recognition, inside scikit-learn's wheel); hold out 360."""
    table = torch.from_numpy(_digits_table())
    images = (table[:, :-1] * (255 / 16)).round().to(torch.uint8).reshape(-1, 1, 8, 8)
    labels = table[:, -1].long()
    order = torch.from_numpy(generator(_HOLD_OUT_SEED, "digits hold-out").permutation(len(labels)))
    test, train = order[:_HELD_OUT], order[_HELD_OUT:]
    return Data(Examples(images[train], labels[train]), Examples(images[test], labels[test]),
                channel_statistics(images[train]), tuple("0123456789"))


@functools.cache
def _digits_table() -> np.ndarray:
    """Read 64 pixels and a label per row from the file in scikit-learn's wheel: importing it, with SciPy, takes seconds."""
    found = importlib.util.find_spec("sklearn")
    if found is None or found.origin is None:
        raise MissingExtra("scikit-learn", "digits", "the embedded data set 'digits'")
    file = Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if not file.is_file():  # a scikit-learn that keeps it elsewhere
        from sklearn.datasets import load_digits

        return np.column_stack(load_digits(return_X_y=True))
    return np.loadtxt(file, delimiter=",")


def cifar10(normalize: bool = True, crop: int = 0, padding: int = 0, flip: bool = False, holdout: int = 0,
            evaluate: Part = "test") -> Data:
    """Load 50,000 training and 10,000 test images of 10 classes, 3×32×32."""
    return _prepared("cifar10", _View(normalize, crop, padding, flip, holdout, evaluate))


def cifar100(normalize: bool = True, crop: int = 28, padding: int = 4, flip: bool = True, holdout: int = 0,
             evaluate: Part = "test") -> Data:
    """Load 50,000 training and 10,000 test images of 100 classes in 20 coarse ones, 3×32×32; augment as in the paper."""
    return _prepared("cifar100", _View(normalize, crop, padding, flip, holdout, evaluate))


def tinyimagenet(normalize: bool = True, crop: int = 0, padding: int = 0, flip: bool = False, holdout: int = 0,
                 evaluate: Part = "test") -> Data:
    """Load 100,000 training images of 200 classes, 3×64×64; the 10,000 validation images serve as test set."""
    return _prepared("tinyimagenet", _View(normalize, crop, padding, flip, holdout, evaluate))


def femnist(writers: int = 3500, normalize: bool = False, crop: int = 0, padding: int = 0, flip: bool = False,
            holdout: int = 0, evaluate: Part = "test") -> Data:
    """Load handwritten characters of 62 classes, 1×28×28, by writer.

    writers: only the ones with most images (the paper's 3,500), in training and test set alike; 0: all.
    """
    check_settings({"writers": writers, "crop": crop, "padding": padding})
    view = _View(normalize, crop, padding, flip, holdout, evaluate)
    prepared = cache.load("femnist")
    known = len(prepared.manifest.id_names)
    if writers > known:
        note = f" ({prepared.manifest.note})" if prepared.manifest.note else ""
        raise DataError(f"data.writers = {writers}: the prepared femnist has {known} writers{note}; 0 takes all")
    return _data(prepared, view, largest=writers)


def images(set: str, source: str = "", columns: Mapping[str, str] = MappingProxyType({}), normalize: bool = True,
           crop: int = 0, padding: int = 0, flip: bool = False, holdout: int = 0, evaluate: Part = "test") -> Data:
    """Load any image set that was prepared under the name `set`.

    source, columns: the hub id and column mapping ('image', 'label', 'coarse', 'id') from which 'anybit data prepare
    RECIPE' prepares it; a set that was prepared from something else is refused.
    """
    view = _View(normalize, crop, padding, flip, holdout, evaluate)
    prepared = cache.load(set, f"anybit data prepare {source} --name {set}" if source else "")
    manifest = prepared.manifest
    if source and source != manifest.source:
        raise DataError(f"data.source = '{source}': the prepared '{set}' comes from '{manifest.source}'; use another name")
    for role, column in columns.items():
        if manifest.columns.get(role) != column:
            raise DataError(f"data.columns.{role} = '{column}': '{set}' was prepared with {dict(manifest.columns)}; "
                            "prepare it again")
    return _data(prepared, view)


SOURCES: Mapping[str, Callable[..., Data]] = {
    source.__name__: source for source in (digits, cifar10, cifar100, femnist, tinyimagenet, images, text)}


@dataclass(frozen=True)
class _View:
    """Settings of a prepared set. Those that no set allows are refused before one is read."""

    normalize: bool = True
    crop: int = 0
    padding: int = 0
    flip: bool = False
    holdout: int = 0
    evaluate: Part = "test"

    def __post_init__(self) -> None:
        Pipeline(crop=self.crop, padding=self.padding)
        if self.holdout < 0:
            raise DataError(f"data.holdout = {self.holdout}: must be 0 (none) or above")
        if self.evaluate == "holdout" and not self.holdout:
            raise DataError("data.evaluate = 'holdout': say how many training images to hold out with data.holdout")


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raise for settings of anybit's sources that are wrong for any set."""
    _View(**{field.name: settings[field.name] for field in fields(_View) if field.name in settings})
    if settings.get("writers", 0) < 0:
        raise DataError(f"data.writers = {settings['writers']}: must be 0 (all) or above")


def _prepared(name: str, view: _View) -> Data:
    """Load a prepared set, after its view was checked."""
    return _data(cache.load(name), view)


def _data(prepared: Prepared, view: _View, largest: int = 0) -> Data:
    """Make data of a prepared set. Without a hold-out nothing is copied: the tensors are the mapped files."""
    manifest = prepared.manifest
    mean, std = (manifest.mean, manifest.std) if view.normalize else (None, None)
    pipeline = Pipeline(mean, std, view.crop, view.padding, view.flip)
    train, test = (_part(prepared, part, largest) for part in cache.PARTS)
    if view.holdout:
        count = len(train["labels"])
        if view.holdout >= count:
            raise DataError(f"data.holdout = {view.holdout}: must be between 0 and the {count} training images")
        order = generator(_HOLD_OUT_SEED, "hold-out").permutation(count)
        if view.evaluate == "holdout":
            test = {key: values[np.sort(order[:view.holdout])] for key, values in train.items()}
        train = {key: values[np.sort(order[view.holdout:])] for key, values in train.items()}
    return Data(_examples(train), _examples(test), pipeline, manifest.class_names, train.get("coarse"), train.get("ids"))


def _part(prepared: Prepared, part: str, largest: int) -> dict[str, np.ndarray]:
    arrays = {stem.removeprefix(f"{part}_"): np.asarray(a) for stem, a in prepared.arrays.items()
              if stem.startswith(f"{part}_")}
    if largest:
        # ids are numbered by size and sorted, so that every array starts with the largest
        end = int(np.searchsorted(arrays["ids"], largest))
        arrays = {key: values[:end] for key, values in arrays.items()}
    return arrays


def _examples(arrays: Mapping[str, np.ndarray]) -> Examples:
    return Examples(torch.from_numpy(arrays["images"]), torch.from_numpy(arrays["labels"]))
