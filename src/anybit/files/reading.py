"""Reading files from elsewhere: bounded in size and nesting, with errors of one line."""

from __future__ import annotations

import json
import os
import stat
import tomllib
from collections.abc import Mapping
from datetime import date, time
from pathlib import Path
from typing import Any, cast

from anybit.errors import ConfigError, RunError

TEXT_LIMIT = 64 << 20
"""Most bytes of a JSON or TOML file, because it takes up to thirty times as much memory when parsed."""
NESTING = 50
"""Deepest nesting of tables: more than any file of anybit has, and far from Python's limit."""


def _regular(path: str, flags: int) -> int:
    handle = os.open(path, flags | os.O_NONBLOCK)  # a pipe would wait for its other end
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise RunError(f"{path} is not a regular file")
    return handle


def read_bytes(path: Path, limit: int | None = None) -> bytes:
    """Read a regular file of at most `limit` bytes: a pipe or a device would never end."""
    try:
        with open(path, "rb", opener=_regular) as file:
            size = os.fstat(file.fileno()).st_size
            if limit is not None and size > limit:
                raise RunError(f"{path} has {size:,} bytes: such a file has at most {limit:,}")
            return file.read(size)
    except FileNotFoundError:
        raise RunError(f"{path} does not exist") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read ({getattr(error, 'strerror', None) or error})") from None


def read_json(path: Path) -> Any:
    """Read a JSON file, or raise a RunError that says what is wrong with it."""
    content = read_bytes(path, TEXT_LIMIT)
    try:
        return bounded(json.loads(content))
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is not readable as JSON ({error})") from None


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file, or raise a ConfigError that says what is wrong with it."""
    try:
        return cast(dict[str, Any], bounded(tomllib.loads(read_bytes(path, TEXT_LIMIT).decode())))
    except RunError as error:
        raise ConfigError(str(error)) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def bounded(value: Any, left: int = NESTING) -> Any:
    """Return `value`, or raise if it is nested so deeply that a walk through it would reach Python's recursion limit.

    TOML's dates are refused too, because a run could not write them as JSON.
    """
    if left == 0:
        raise ValueError(f"it is nested more than {NESTING} deep")
    if isinstance(value, date | time):
        raise ValueError(f"{value} is a date or time: write it as text")
    for part in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        if isinstance(part, Mapping | list | date | time):
            bounded(part, left - 1)
    return value
