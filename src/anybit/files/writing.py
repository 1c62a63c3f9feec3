"""Writing complete files or none, with errors of one line."""

from __future__ import annotations

import fnmatch
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anybit.errors import RunError


def home() -> Path:
    """Return the folder for what outlasts a run: prepared data sets, compiled kernels, measured engines."""
    given = os.environ.get("ANYBIT_DATA")
    return Path(given) if given else Path.home() / ".cache" / "anybit"


@contextmanager
def writing(path: Path, fix: str) -> Iterator[None]:
    """Turn errors of the disk (full, read-only, broken) into one line that names the file and the fix."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{path} cannot be written ({error.strerror or error}): {fix}") from None


def write_bytes(path: Path, content: bytes) -> None:
    """Write a complete file or nothing: temporary file in the same folder, sync, rename."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
        sync_folder(path.parent)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def sync_folder(path: Path) -> None:
    """Make new names in a folder survive a power cut, which syncing a file does not."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def stale(folder: Path) -> list[Path]:
    """List the temporary files of writers that were killed."""
    return [p for p in folder.glob(".*") if is_temporary(p.name) and p.is_file()]


def is_temporary(name: str) -> bool:
    """Tell whether `write_bytes` gives such names to files until they are whole."""
    return fnmatch.fnmatchcase(name, ".*.????????")


def to_json(value: Any) -> bytes:
    """Return the content of a JSON file."""
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


def write_json(path: Path, value: Any) -> None:
    write_bytes(path, to_json(value))
