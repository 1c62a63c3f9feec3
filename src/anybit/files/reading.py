"""Reading files from elsewhere: bounded in size and nesting, with errors of one line."""

from __future__ import annotations

import json
import os
import re
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
TOML_LIMIT = 1 << 19
"""Most bytes of a TOML file, which people write."""
KEY_PARTS = 16
"""Most parts of a dotted key, because the parser's time grows with their square."""
KEY_LENGTH = 1000
WHOLE_BITS = 128
"""Most bits of a whole number: Python cannot write one of many thousands as text."""

# Strings may lack their end, so that every character is looked at once, however wrong the file is.
_TOKEN = re.compile(r'''"""(?:\\.|[^\\"]|"(?!""))*+(?:"{3,5}+)?|\'{3}(?:[^\']|\'(?!\'\'))*+(?:\'{3,5}+)?|'''
                    r'''(?P<part>"(?:\\.|[^"\\\n])*+"?|\'[^\'\n]*+\'?|[\w-]++)|(?P<dot>[ \t]*+\.[ \t]*+)|#[^\n]*+|.''', re.S)
_SURROGATE = re.compile("[\ud800-\udfff]")


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
    return parse_json(read_bytes(path, TEXT_LIMIT), path)


def parse_json(content: bytes, path: Path) -> Any:
    """Parse the content of a JSON file, or raise a RunError that says what is wrong with it."""
    try:
        return bounded(json.loads(content))
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is not readable as JSON ({error})") from None


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file, or raise a ConfigError that says what is wrong with it."""
    try:
        return parse_toml(read_bytes(path, TOML_LIMIT).decode())
    except RunError as error:
        raise ConfigError(str(error)) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML; anything wrong with it is a ValueError or RecursionError, also what would take the parser too long."""
    parts, dotted = 0, False
    for token in _TOKEN.finditer(text):
        kind = token.lastgroup
        parts = parts + 1 if kind == "part" and dotted else 1 if kind == "part" else parts if kind == "dot" else 0
        dotted = kind == "dot"
        if parts > KEY_PARTS:
            raise ValueError(f"a key has more than {KEY_PARTS} parts (at character {token.start():,})")
    return cast(dict[str, Any], bounded(tomllib.loads(text)))


def bounded(value: Any, left: int = NESTING) -> Any:
    """Return `value`, or raise if walking through it, writing it or printing it could fail.

    That is nesting near Python's recursion limit, numbers and names without measure, halves of characters, and TOML's dates,
    which a run could not write as JSON.
    """
    if left == 0:
        raise ValueError(f"it is nested more than {NESTING} deep")
    if isinstance(value, str):
        if not value.isascii() and _SURROGATE.search(value):
            raise ValueError(f"the text {value[:60]!r} holds half a character")
    elif isinstance(value, int):
        if value.bit_length() > WHOLE_BITS:
            raise ValueError(f"a whole number has {value.bit_length():,} bits: at most {WHOLE_BITS}")
    elif isinstance(value, date | time):
        raise ValueError(f"{value} is a date or time: write it as text")
    elif isinstance(value, Mapping):
        for key, part in value.items():
            if len(key) > KEY_LENGTH:
                raise ValueError(f"the name '{key[:60]}…' has {len(key):,} characters: at most {KEY_LENGTH:,}")
            bounded(key)
            bounded(part, left - 1)
    elif isinstance(value, list):
        for part in value:
            bounded(part, left - 1)
    return value
