"""What is known of data sets before they are read: their place on the hub, their columns, and facts to check."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anybit.errors import DataError

TOLERANCE = 1e-4
"""Published channel means have four decimals."""


@dataclass(frozen=True)
class Columns:
    """Which column holds what; '' where a set has none."""

    image: str = "image"
    label: str = "label"
    coarse: str = ""
    id: str = ""


@dataclass(frozen=True)
class Facts:
    """What a complete copy of a known set looks like."""

    train: int
    test: int
    """0: the set has one part, from which a test set is held out."""
    shape: tuple[int, int, int]
    classes: int
    balanced: bool = True
    """Every class has the same number of images, in training and test set alike."""
    mean: tuple[float, ...] | None = None
    coarse_classes: int = 0
    subsets: bool = False
    """A part of the set is still useful (whole writers are missing); it is noted, not refused."""


@dataclass(frozen=True)
class Source:
    """An image data set on the hub, or in a folder."""

    id: str
    """Hub id, or the path of a folder."""
    columns: Columns = Columns()
    train: str = "train"
    test: str = "test"
    """Names of the splits; a test of '' is held out from the training images."""
    folder: str = ""
    """Where the files lie inside the set's folder, e.g. its configuration; '': anywhere."""
    size: int = 0
    """Resize images to this many rows and columns; 0: they must all be of one size already."""
    facts: Facts | None = None

    @property
    def is_folder(self) -> bool:
        return Path(self.id).is_dir()

    def column_names(self) -> dict[str, str]:
        """As written into a manifest."""
        return {key: value for key, value in vars(self.columns).items() if value}

    def options(self) -> dict[str, str | int]:
        """As written into a manifest."""
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
    """A known set by name, or any other by hub id or folder."""
    other = Source(name, columns, train, test, folder, size)
    if name not in KNOWN:
        return other
    if other != Source(name):
        raise DataError(f"{name} is a known data set with columns of its own: give its hub id '{KNOWN[name].id}' to "
                        "read it in another way")
    return KNOWN[name]


def check_facts(name: str, facts: Facts, labels: dict[str, np.ndarray], coarse_classes: int,
                mean: tuple[float, ...]) -> str:
    """Compare what was read with what is known; the images' shape was checked while decoding.

    Returns a note on what is missing but tolerated.
    """
    counts = {f"{part} images": len(y) for part, y in labels.items()}
    expected = {"train images": facts.train, "test images": facts.test}
    if not facts.test:
        counts, expected = {"images": sum(counts.values())}, {"images": facts.train}
    if counts != expected:
        wrong = ", ".join(f"{counts[what]:,} of {n:,} {what}" for what, n in expected.items() if counts[what] != n)
        if facts.subsets:
            return f"a part of the set: {wrong}"
        raise DataError(f"{name}: found {wrong}: the files are not complete, fetch them again")
    for part, y in labels.items() if facts.balanced else ():
        count = np.bincount(y, minlength=facts.classes)
        if len(count) != facts.classes or count.min() != count.max():
            raise DataError(f"{name}: class {int(count.argmin())} has {int(count.min())} {part} images and class "
                            f"{int(count.argmax())} has {int(count.max())}, but should have as many: these are other "
                            "files")
    if facts.coarse_classes != coarse_classes:
        raise DataError(f"{name}: found {coarse_classes} coarse classes, but it has {facts.coarse_classes}")
    if facts.mean is not None and np.abs(np.subtract(mean, facts.mean)).max() > TOLERANCE:
        found = "/".join(f"{m:.4f}" for m in mean)
        known = "/".join(f"{m:.4f}" for m in facts.mean)
        raise DataError(f"{name}: the training images have mean {found}, but should have {known}: these are other "
                        "images")
    return ""
