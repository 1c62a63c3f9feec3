"""Reading files from elsewhere: bounded in size and nesting, and whatever is wrong said in one line."""

from __future__ import annotations

import json
import os
import stat
import tomllib
from collections.abc import Mapping
from datetime import date, time
from pathlib import Path
from typing import Any

from anybit.errors import ConfigError, RunError

TEXT_LIMIT = 64 << 20
"""Bytes of a JSON or TOML file: parsed, it takes up to thirty times as much memory."""
NESTING = 50
"""Tables in tables: more than any file of anybit has, and far from Python's own limit."""


def _regular(path: str, flags: int) -> int:
    """Without waiting for the other end of a pipe."""
    handle = os.open(path, flags | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise RunError(f"{path} is not a regular file")
    return handle


def read_bytes(path: Path, limit: int | None = None) -> bytes:
    """A whole file. Only a regular one, and only up to a limit: a pipe or a device would never end."""
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
    """A JSON file, or a RunError that says what is wrong with it."""
    content = read_bytes(path, TEXT_LIMIT)
    try:
        return bounded(json.loads(content))
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is not readable as JSON ({error})") from None


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file, or a ConfigError that says what is wrong with it."""
    try:
        content = read_bytes(path, TEXT_LIMIT)
    except RunError as error:
        raise ConfigError(str(error)) from None
    try:
        table: dict[str, Any] = bounded(tomllib.loads(content.decode()))
        return table
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def bounded(value: Any, left: int = NESTING) -> Any:
    """`value`, unless it is nested so deeply that walking through it would end in Python's own limit.

    Dates, which TOML has and JSON has not, are refused too: a run could not write them down.
    """
    if left == 0:
        raise ValueError(f"it is nested more than {NESTING} deep")
    if isinstance(value, date | time):
        raise ValueError(f"{value} is a date or time, which no setting is: write it as text")
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    for part in parts:
        if isinstance(part, Mapping | list | date | time):
            bounded(part, left - 1)
    return value
