"""Prepared data sets: one folder per set, with a manifest and arrays that numpy alone can map.

<home>/<name>/{train,test}_{images,labels,coarse,ids}.npy and manifest.json; home is $ANYBIT_DATA, or ~/.cache/anybit.
A set is written beside its place and renamed into it, so a folder that has a manifest was written to the end.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from anybit.errors import AnybitError, DataError
from anybit.files.reading import read_json
from anybit.files.writing import home, write_json
from anybit.schema import plain, read

FORMAT = 1
PARTS = ("train", "test")
_LARGEST = 1 << 40
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_FILE = re.compile(r"(train|test)_[^/]+\.npy")


@dataclass(frozen=True)
class FileFacts:
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """Description of a prepared set and its origin.

    source: hub id or folder name · revision: the hub's commit, or a digest of the local files · shape: channels, rows and
    columns of an image · mean, std: per channel, of the training images in [0, 1] · options: splits, folder and size of the
    source · id_names: owners of the examples, the one with most images first · seed: for a test set that was held out.
    """

    name: str
    source: str
    revision: str
    counts: Mapping[str, int]
    shape: tuple[int, ...]
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    columns: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    coarse_names: tuple[str, ...] = ()
    id_names: tuple[str, ...] = ()
    seed: int = 0
    note: str = ""
    format: int = FORMAT
    files: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Prepared:
    """A set in the cache, its arrays mapped into memory and named by file stem, e.g. train_images."""

    manifest: Manifest
    arrays: Mapping[str, np.ndarray]


def folder(name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise DataError(f"data set name '{name}': use letters, digits, '.', '_' and '-'")
    return home() / name


def load(name: str, prepare: str = "") -> Prepared:
    """Map a prepared set. Only `verify` compares checksums, because reading all bytes takes longer than mapping."""
    place, fix = folder(name), f"run '{prepare or f'anybit data prepare {name}'}'"
    if not place.exists():
        raise DataError(f"{name} is not prepared: {fix} (looked in {place.parent})")
    try:
        manifest = _manifest(place)
        arrays = {Path(file).stem: _map(place / file, facts, manifest) for file, facts in _files(manifest).items()}
    except (AnybitError, ValueError, OSError) as error:
        raise DataError(f"the prepared {name} is damaged ({error}): {fix} to rebuild it") from None
    return Prepared(manifest, arrays)


def verify(name: str) -> Manifest | None:
    """Return the manifest if every byte is as it was written, else None."""
    with suppress(DataError, OSError):
        manifest = load(name).manifest
        if all(file_digest(folder(name) / file).hexdigest() == facts.sha256 for file, facts in _files(manifest).items()):
            return manifest
    return None


def ls() -> list[Manifest]:
    """List the manifests of all prepared sets that can be loaded."""
    manifests = []
    for path in sorted(home().glob("*/manifest.json")):
        with suppress(DataError):
            manifests.append(load(path.parent.name).manifest)
    return manifests


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the lock under which one process at a time prepares a set; it ends with the process."""
    lock = folder(name).with_name(f".{name}.lock")
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        lock.touch()
    except OSError as error:
        raise DataError(f"{lock.parent} cannot be written ({error.strerror}): set ANYBIT_DATA to another folder") from None
    with open(lock, "r+") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def write(manifest: Manifest, arrays: Mapping[str, np.ndarray]) -> Manifest:
    """Store a complete set under its name, or nothing. The caller holds the lock."""
    place = folder(manifest.name)
    for stale in place.parent.glob(f".{manifest.name}.*.part"):
        shutil.rmtree(stale, ignore_errors=True)
    part = Path(tempfile.mkdtemp(prefix=f".{manifest.name}.", suffix=".part", dir=place.parent))
    try:
        files = {f"{stem}.npy": _save(part / f"{stem}.npy", array) for stem, array in sorted(arrays.items())}
        manifest = read(Manifest, {**plain(manifest), "files": plain(files)})
        write_json(part / "manifest.json", plain(manifest))
        part.chmod(0o755)
        if place.exists():
            place.rename(part / "old")
        part.rename(place)
        shutil.rmtree(place / "old", ignore_errors=True)
    except OSError as error:
        need = sum(array.nbytes for array in arrays.values()) / 1e6
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        why = f"the disk is full, {need:.0f} MB are needed" if full else error.strerror
        raise DataError(f"{manifest.name} cannot be written to {place.parent} ({why}): nothing was kept; free some "
                        "space or set ANYBIT_DATA to another folder") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return manifest


def _manifest(place: Path) -> Manifest:
    manifest: Manifest = read(Manifest, read_json(place / "manifest.json"))
    if manifest.format != FORMAT:
        raise DataError(f"its format is {manifest.format}, this anybit reads {FORMAT}")
    if len(manifest.shape) != 3 or not all(0 < side <= _LARGEST for side in manifest.shape):
        raise DataError(f"its images have shape {manifest.shape}")
    if not len(manifest.mean) == len(manifest.std) == manifest.shape[0] or not all(std > 0 for std in manifest.std):
        raise DataError(f"its mean {manifest.mean} and standard deviation {manifest.std} are not those of "
                        f"{manifest.shape[0]} channels")
    for part in PARTS:
        if type(count := manifest.counts.get(part)) is not int or not 0 < count <= _LARGEST:
            raise DataError(f"it has {count!r} {part} examples")
    return manifest


def _files(manifest: Manifest) -> dict[str, FileFacts]:
    files = {file: read(FileFacts, facts, file) for file, facts in manifest.files.items()}
    if strange := [file for file in files if not _FILE.fullmatch(file)]:
        raise DataError(f"its manifest names '{strange[0]}'")
    for file in (f"{part}_{kind}.npy" for part in PARTS for kind in ("images", "labels")):
        if file not in files:
            raise DataError(f"{file} is missing from its manifest")
    return files


def _map(path: Path, facts: FileFacts, manifest: Manifest) -> np.ndarray:
    """Map the array that the manifest describes. Its header is compared, never parsed, because it may be forged."""
    count, images = manifest.counts[path.stem.partition("_")[0]], path.stem.endswith("_images")
    shape, dtype = (count, *(manifest.shape if images else ())), np.dtype(np.uint8 if images else np.int64)
    header = _header(shape, dtype)
    needed, size = len(header) + math.prod(shape) * dtype.itemsize, path.stat().st_size
    if not size == facts.bytes == needed:
        raise DataError(f"{path.name} has {size} bytes; its manifest says {facts.bytes}, {dtype} {shape} needs {needed}")
    with open(path, "rb") as file:
        if file.read(len(header)) != header:
            raise DataError(f"{path.name} does not hold {dtype} {shape}, as its manifest says")
    # copy-on-write: nothing can change the file, and torch may wrap the memory without a warning
    return np.memmap(path, dtype, "c", len(header), shape)


def _header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """Return the header that numpy writes into a .npy file."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape})
    return header.getvalue()


def _save(path: Path, array: np.ndarray) -> FileFacts:
    """Write through a file handle: a full disk is then an error, where a memory map would end the process."""
    array = np.ascontiguousarray(array)
    header = _header(array.shape, array.dtype)
    body = array.reshape(-1).view(np.uint8)
    with open(path, "wb") as file:
        file.write(header)
        file.write(body.data)
        file.flush()
        os.fsync(file.fileno())
    path.chmod(0o644)
    digest = hashlib.sha256(header)
    digest.update(body.data)
    return FileFacts(len(header) + len(body), digest.hexdigest())


def file_digest(path: Path) -> Any:
    """Return the SHA-256 of a file, as hashlib's object."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256")
