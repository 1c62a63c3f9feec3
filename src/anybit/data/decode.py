"""From parquet files or folders of images to arrays. Needs the extra 'data'."""

from __future__ import annotations

import io
import itertools
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from anybit.data.known import Columns
from anybit.errors import DataError, MissingExtra, did_you_mean

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff")
_ROWS = 1000
_THREADS = 4


@dataclass(frozen=True)
class Target:
    """What every image becomes: channels 1 or 3, rows × columns; resized if asked."""

    shape: tuple[int, int, int]
    resize: bool


@dataclass(frozen=True)
class Table:
    """One part of a set: images (example, channel, row, column) and its other columns as they are stored."""

    images: np.ndarray
    columns: dict[str, np.ndarray]
    names: dict[str, tuple[str, ...]]
    """Class names of the columns that declare them."""


def libraries() -> tuple[Any, Any]:
    """(datasets, pyarrow.parquet), imported when first needed."""
    try:
        import datasets
        import PIL.Image  # noqa: F401
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise MissingExtra(error.name or "datasets", "data", "preparing a data set") from None
    return datasets, parquet


def read_parquet(files: Sequence[Path], columns: Columns, shape: tuple[int, int, int] | None, size: int) -> Table:
    """The named columns of parquet files in the hub's layout, images decoded."""
    opened = [_open(file) for file in files]
    for file, (handle, _) in zip(files, opened, strict=True):
        _check_columns(file, columns, handle.schema_arrow.names)
    rows = sum(handle.metadata.num_rows for handle, _ in opened)
    if not rows:
        raise DataError(f"{files[0]} has no rows")
    others = [c for c in (columns.label, columns.coarse, columns.id) if c]
    values: dict[str, list[np.ndarray]] = {c: [] for c in others}
    batches = (batch for file, (handle, _) in zip(files, opened, strict=True)
               for batch in _batches(file, handle, columns.image, others, values))
    images = _decode_all(batches, rows, shape, size)
    features = opened[0][1]
    names = {c: tuple(features[c].names) for c in others if hasattr(features[c], "names")}
    return Table(images, {c: np.concatenate(v) for c, v in values.items()}, names)


def read_image_folder(root: Path, shape: tuple[int, int, int] | None, size: int) -> Table:
    """root/<class name>/<image>: the folder of an image is its class."""
    classes = sorted(p for p in root.iterdir() if p.is_dir())
    files = [sorted(p for p in place.iterdir() if p.suffix.lower() in SUFFIXES) for place in classes]
    every = [p for group in files for p in group]
    if not every:
        raise DataError(f"{root} has neither parquet files nor images in folders named after their classes")
    labels = np.repeat(np.arange(len(classes)), [len(group) for group in files])
    images = _decode_all([[(str(p), p.read_bytes) for p in every]], len(every), shape, size)
    return Table(images, {"label": labels}, {"label": tuple(p.name for p in classes)})


def _open(file: Path) -> tuple[Any, Any]:
    datasets, parquet = libraries()
    try:
        handle = parquet.ParquetFile(file)
        return handle, datasets.Features.from_arrow_schema(handle.schema_arrow)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _unreadable(file, error) from None


def _unreadable(file: Path, error: Exception) -> DataError:
    reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
    return DataError(f"{file} cannot be read as parquet ({reason}): it is truncated or something else; fetch it again")


def _check_columns(file: Path, columns: Columns, found: Sequence[str]) -> None:
    for role, column in vars(columns).items():
        if column and column not in found:
            raise DataError(f"{file} has no column '{column}' for {role}: {did_you_mean(column, found)}")


Item = tuple[str, Any]
"""(where the image is, a function that gives its bytes)."""


def _batches(file: Path, handle: Any, image: str, others: Sequence[str],
             values: dict[str, list[np.ndarray]]) -> Iterator[list[Item]]:
    """Images batch by batch; the other columns are collected into `values` on the way."""
    row = 0
    try:
        for batch in handle.iter_batches(_ROWS, columns=[image, *others]):
            for column in others:
                if batch.column(column).null_count:
                    raise DataError(f"{file}: column '{column}' has empty values")
                values[column].append(batch.column(column).to_numpy(zero_copy_only=False))
            yield [(f"{file} row {row + i}", partial(_stored, item)) for i, item in enumerate(batch.column(image))]
            row += batch.num_rows
    except (OSError, ValueError) as error:
        raise _unreadable(file, error) from None


def _stored(item: Any) -> bytes:
    """The hub stores an image as {bytes, path}; plain binary columns are taken too."""
    value = item.as_py()
    content = value.get("bytes") if isinstance(value, dict) else value
    if not isinstance(content, bytes):
        raise ValueError("the column does not hold encoded images")
    return content


def _decode_all(batches: Iterable[list[Item]], rows: int, shape: tuple[int, int, int] | None, size: int) -> np.ndarray:
    """All images in one uint8 array. The first image says what the others must be, unless `shape` is known."""
    batches = iter(batches)
    first = next(batches)
    target = _target(first[0], shape, size)
    _check_memory(rows * math.prod(target.shape))
    out, row = np.empty((rows, *target.shape), np.uint8), 0
    with ThreadPoolExecutor(_THREADS) as pool:
        for batch in itertools.chain([first], batches):
            for image in pool.map(partial(_decode, target=target), batch, chunksize=100):
                out[row] = image
                row += 1
    return out


def _check_memory(needed: int) -> None:
    """A file says how many images it has: what cannot fit is refused before it is tried."""
    present = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > 0.9 * present:
        raise DataError(f"the images take {needed / 1e9:.1f} GB, and this machine has {present / 1e9:.1f} GB of memory: use "
                        "--size for smaller ones, or fewer files")


def _target(item: Item, shape: tuple[int, int, int] | None, size: int) -> Target:
    from PIL import Image
    if shape is not None:
        return Target(shape, False)
    with _named(item[0]):
        image = Image.open(io.BytesIO(item[1]()))
    channels = 1 if image.mode in ("1", "L") else 3
    return Target((channels, size or image.height, size or image.width), bool(size))


def _decode(item: Item, target: Target) -> np.ndarray:
    from PIL import Image
    where, content = item
    channels, height, width = target.shape
    with _named(where):
        stored = Image.open(io.BytesIO(content()))
        # Before a single pixel is unpacked: a small file can stand for a huge image.
        if not target.resize and (stored.height, stored.width) != (height, width):
            raise DataError(f"{where}: the image has {stored.height}×{stored.width} pixels, expected {height}×{width}: "
                            "resize all to one size with --size")
        if channels == 1 and stored.mode not in ("1", "L"):
            raise DataError(f"{where}: the image is {stored.mode}, but the first one is grey: store all images alike")
        image = stored.convert("L" if channels == 1 else "RGB")
        if target.resize:
            image = image.resize((width, height), Image.Resampling.BILINEAR)
        array = np.asarray(image)
    return array.reshape(1, height, width) if channels == 1 else array.transpose(2, 0, 1)


@contextmanager
def _named(where: str) -> Iterator[None]:
    """Errors of the image library, with the place of the image."""
    from PIL import Image
    try:
        yield
    except (OSError, ValueError, SyntaxError, MemoryError, Image.DecompressionBombError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise DataError(f"{where} is not a readable image ({reason})") from None
