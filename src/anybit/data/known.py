"""Known data sets: their place on the hub, their columns, and facts to check."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anybit.errors import DataError

TOLERANCE = 1e-4
"""Published channel means have four decimals."""


@dataclass(frozen=True)
class Columns:
    """Names of the columns; '' where a set has none."""

    image: str = "image"
    label: str = "label"
    coarse: str = ""
    id: str = ""


@dataclass(frozen=True)
class Facts:
    """Facts about a complete copy of a known set.

    test: 0 where the test set is held out from the training images · balanced: every class has as many images, in training
    and test set alike · subsets: a part of the set (without some writers) is still useful, and noted instead of refused.
    """

    train: int
    test: int
    shape: tuple[int, int, int]
    classes: int
    balanced: bool = True
    mean: tuple[float, ...] | None = None
    coarse_classes: int = 0
    subsets: bool = False


@dataclass(frozen=True)
class Source:
    """An image data set on the hub, or in a folder.

    id: hub id, or the path of a folder · train, test: names of the splits; '': hold out a test set · folder: the files'
    folder inside the set's, e.g. its configuration; '': anywhere · size: resize images to this many rows and columns; 0:
    they must all be of one size already.
    """

    id: str
    columns: Columns = Columns()
    train: str = "train"
    test: str = "test"
    folder: str = ""
    size: int = 0
    facts: Facts | None = None

    @property
    def is_folder(self) -> bool:
        return Path(self.id).is_dir()

    def column_names(self) -> dict[str, str]:
        """Return the columns as a manifest lists them."""
        return {key: value for key, value in vars(self.columns).items() if value}

    def options(self) -> dict[str, str | int]:
        """Return the other settings as a manifest lists them."""
        return {"train": self.train, "test": self.test, "folder": self.folder, "size": self.size}


KNOWN = {
    "cifar10": Source("uoft-cs/cifar10", Columns("img"), folder="plain_text",
                      facts=Facts(50_000, 10_000, (3, 32, 32), 10, mean=(0.4914, 0.4822, 0.4465))),
    "cifar100": Source("uoft-cs/cifar100", Columns("img", "fine_label", "coarse_label"), folder="cifar100",
                       facts=Facts(50_000, 10_000, (3, 32, 32), 100, mean=(0.5071, 0.4865, 0.4409), coarse_classes=20)),
    "tinyimagenet": Source("zh-plus/tiny-imagenet", Columns(), test="valid", folder="data",
                           facts=Facts(100_000, 10_000, (3, 64, 64), 200)),
    "femnist": Source("flwrlabs/femnist", Columns(label="character", id="writer_id"), test="", folder="data",
                      facts=Facts(814_277, 0, (1, 28, 28), 62, balanced=False, subsets=True)),
}


def source(name: str, columns: Columns = Columns(), train: str = "train", test: str = "test", folder: str = "",
           size: int = 0) -> Source:
    """Return a known set by name, or any set by hub id or folder."""
    described = Source(name, columns, train, test, folder, size)
    if name not in KNOWN:
        return described
    if described != Source(name):
        raise DataError(f"{name} is a known data set with fixed columns: give its hub id '{KNOWN[name].id}' to read it in "
                        "another way")
    return KNOWN[name]


def check_facts(name: str, facts: Facts, labels: dict[str, np.ndarray], coarse_classes: int,
                mean: tuple[float, ...]) -> str:
    """Raise if a set is not what is known of it; return a note on images that may be missing."""
    counts = {f"{part} images": len(y) for part, y in labels.items()}
    expected = {"train images": facts.train, "test images": facts.test}
    if not facts.test:
        counts, expected = {"images": sum(counts.values())}, {"images": facts.train}
    if counts != expected:
        wrong = ", ".join(f"{counts[kind]:,} of {n:,} {kind}" for kind, n in expected.items() if counts[kind] != n)
        if facts.subsets:
            return f"a part of the set: {wrong}"
        raise DataError(f"{name}: found {wrong}: the files are not complete, fetch them again")
    for part, y in labels.items() if facts.balanced else ():
        count = np.bincount(y, minlength=facts.classes)
        if len(count) != facts.classes or count.min() != count.max():
            raise DataError(f"{name}: class {int(count.argmin())} has {int(count.min())} {part} images and class "
                            f"{int(count.argmax())} has {int(count.max())}, but should have as many: these are other files")
    if facts.coarse_classes != coarse_classes:
        raise DataError(f"{name}: found {coarse_classes} coarse classes, but it has {facts.coarse_classes}")
    if facts.mean is not None and np.abs(np.subtract(mean, facts.mean)).max() > TOLERANCE:
        measured, known = ("/".join(f"{m:.4f}" for m in means) for means in (mean, facts.mean))
        raise DataError(f"{name}: the training images have mean {measured}, but should have {known}: these are other images")
    return ""
