"""Reading parquet files and folders of images into arrays. Needs the extra 'data'."""

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


Shape = tuple[int, int, int]
"""Channels (1 or 3), rows and columns of an image."""
Item = tuple[str, Any]
"""(place of an image, function that returns its bytes)."""


@dataclass(frozen=True)
class Table:
    """One part of a set: images (example, channel, row, column), other columns as stored, class names by column."""

    images: np.ndarray
    columns: dict[str, np.ndarray]
    names: dict[str, tuple[str, ...]]


def libraries() -> tuple[Any, Any]:
    """Import and return (datasets, pyarrow.parquet)."""
    try:
        import datasets
        import PIL.Image  # noqa: F401
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise MissingExtra(error.name or "datasets", "data", "preparing a data set") from None
    return datasets, parquet


def read_parquet(files: Sequence[Path], columns: Columns, shape: Shape | None, size: int) -> Table:
    """Read the named columns of parquet files in the hub's layout and decode the images."""
    handles, features = zip(*map(_open, files), strict=True)
    for file, handle in zip(files, handles, strict=True):
        for role, column in vars(columns).items():
            if column and column not in (present := handle.schema_arrow.names):
                raise DataError(f"{file} has no column '{column}' for {role}: {did_you_mean(column, present)}")
    rows = sum(handle.metadata.num_rows for handle in handles)
    if not rows:
        raise DataError(f"{files[0]} has no rows")
    values: dict[str, list[np.ndarray]] = {c: [] for c in (columns.label, columns.coarse, columns.id) if c}
    batches = (batch for file, handle in zip(files, handles, strict=True)
               for batch in _batches(file, handle, columns.image, values))
    images = _decode_all(batches, rows, shape, size)
    names = {c: tuple(features[0][c].names) for c in values if hasattr(features[0][c], "names")}
    return Table(images, {c: np.concatenate(v) for c, v in values.items()}, names)


def read_image_folder(root: Path, size: int) -> Table:
    """Read root/<class name>/<image>: the folder of an image is its class."""
    classes = sorted(p for p in root.iterdir() if p.is_dir())
    files = [sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES) for folder in classes]
    items: list[Item] = [(str(p), p.read_bytes) for group in files for p in group]
    if not items:
        raise DataError(f"{root} has neither parquet files nor images in folders named after their classes")
    labels = np.repeat(np.arange(len(classes)), [len(group) for group in files])
    images = _decode_all([items], len(items), None, size)
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
    return DataError(f"{file} cannot be read as parquet ({reason}): it is truncated or no parquet file; fetch it again")


def _batches(file: Path, handle: Any, image: str, values: dict[str, list[np.ndarray]]) -> Iterator[list[Item]]:
    """Yield the images batch by batch, and append the other columns to `values` on the way."""
    row = 0
    try:
        for batch in handle.iter_batches(_ROWS, columns=[image, *values]):
            for column, chunks in values.items():
                if batch.column(column).null_count:
                    raise DataError(f"{file}: column '{column}' has empty values")
                chunks.append(batch.column(column).to_numpy(zero_copy_only=False))
            yield [(f"{file} row {row + i}", partial(_stored, item)) for i, item in enumerate(batch.column(image))]
            row += batch.num_rows
    except (OSError, ValueError) as error:
        raise _unreadable(file, error) from None


def _stored(item: Any) -> bytes:
    """Return the bytes of an image, which the hub stores as {bytes, path} and others as plain binary."""
    value = item.as_py()
    content = value.get("bytes") if isinstance(value, dict) else value
    if not isinstance(content, bytes):
        raise ValueError("the column does not hold encoded images")
    return content


def _decode_all(batches: Iterable[list[Item]], rows: int, shape: Shape | None, size: int) -> np.ndarray:
    """Decode all images into one uint8 array. The first image sets the shape of all, unless `shape` is known."""
    batches = iter(batches)
    first = next(batches)
    resize, shape = shape is None and size > 0, shape or _first_shape(first[0], size)
    # Before memory is taken for as many images as a file claims to have.
    needed, memory = rows * math.prod(shape), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > 0.9 * memory:
        raise DataError(f"the images take {needed / 1e9:.1f} GB, and this machine has {memory / 1e9:.1f} GB of memory: use "
                        "--size for smaller ones, or fewer files")
    out, row = np.empty((rows, *shape), np.uint8), 0
    with ThreadPoolExecutor(_THREADS) as pool:
        for batch in itertools.chain([first], batches):
            for image in pool.map(partial(_decode, shape=shape, resize=resize), batch, chunksize=100):
                out[row] = image
                row += 1
    return out


def _first_shape(item: Item, size: int) -> Shape:
    from PIL import Image
    with _named(item[0]):
        image = Image.open(io.BytesIO(item[1]()))
    return (1 if image.mode in ("1", "L") else 3, size or image.height, size or image.width)


def _decode(item: Item, shape: Shape, resize: bool) -> np.ndarray:
    from PIL import Image
    where, content = item
    channels, rows, columns = shape
    with _named(where):
        stored = Image.open(io.BytesIO(content()))
        # Before a single pixel is unpacked: a small file can stand for a huge image.
        if not resize and (stored.height, stored.width) != (rows, columns):
            raise DataError(f"{where}: the image has {stored.height}×{stored.width} pixels, expected {rows}×{columns}: "
                            "resize all to one size with --size")
        if channels == 1 and stored.mode not in ("1", "L"):
            raise DataError(f"{where}: the image is {stored.mode}, but the first one is grey: store all images in one mode")
        image = stored.convert("L" if channels == 1 else "RGB")
        if resize:
            image = image.resize((columns, rows), Image.Resampling.BILINEAR)
        array = np.asarray(image)
    return array.reshape(1, rows, columns) if channels == 1 else array.transpose(2, 0, 1)


@contextmanager
def _named(where: str) -> Iterator[None]:
    """Turn errors of the image library into DataErrors that name the place of the image."""
    from PIL import Image
    try:
        yield
    except (OSError, ValueError, SyntaxError, MemoryError, Image.DecompressionBombError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise DataError(f"{where} is not a readable image ({reason})") from None
