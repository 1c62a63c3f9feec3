"""Tensors in Flower's records. What comes in is checked against what was expected before it is read; nothing is unpickled.

Flower itself checks nothing: an array's declared shape and type may lie about its bytes, which are a file in numpy's own
format.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from anybit.fleet.flower import Array, ArrayRecord, RecordDict

Tensors = Mapping[str, Tensor]

HEADER_BYTES = 1024
"""The longest header of an array that is read."""


class Refused(Exception):
    """An answer that does not count, and why."""


class Layout(NamedTuple):
    """What an array must be."""

    dtype: type[np.generic]
    shape: tuple[int, ...]


def layout(tensors: Tensors) -> dict[str, Layout]:
    """The layout of float tensors, by name."""
    return {name: Layout(np.float32, tuple(t.shape)) for name, t in tensors.items()}


def to_record(tensors: Mapping[str, Tensor | np.ndarray]) -> ArrayRecord:
    arrays = {name: t.detach().cpu().numpy() if isinstance(t, Tensor) else t for name, t in tensors.items()}
    return ArrayRecord({name: Array(np.ascontiguousarray(array).reshape(array.shape)) for name, array in arrays.items()})


def payload_bytes(content: RecordDict) -> int:
    """What the arrays of a message weigh."""
    return sum(len(array.data) for record in content.array_records.values() for array in record.values())


def read_tensors(content: RecordDict, record: str, expected: Mapping[str, Layout]) -> dict[str, Tensor]:
    """The tensors of one record, in the order of `expected`: all names, shapes and types as expected, all values finite."""
    return {name: torch.from_numpy(array) for name, array in read_arrays(content, record, expected).items()}


def read_arrays(content: RecordDict, record: str, expected: Mapping[str, Layout]) -> dict[str, np.ndarray]:
    found = content.array_records.get(record)
    if found is None:
        raise Refused(f"no arrays '{record}'")
    _check_names(record, found, expected)
    return {name: _read_array(found[name], f"{record} '{name}'", expected[name]) for name in expected}


def _check_names(record: str, found: Iterable[str], expected: Iterable[str]) -> None:
    missing, unknown = set(expected) - set(found), set(found) - set(expected)
    if missing:
        raise Refused(f"{record}: '{min(missing)}' is missing" + (f", with {len(missing) - 1} more" if missing else ""))
    if unknown:
        raise Refused(f"{record}: '{min(unknown)[:80]}' is unknown")


def _read_array(array: Array, where: str, expected: Layout) -> np.ndarray:
    """Its bytes, once header and length say that they are what was expected."""
    stream = io.BytesIO(array.data)
    try:
        if np.lib.format.read_magic(stream) != (1, 0):
            raise Refused(f"{where}: an array format that numpy does not write for it")
        shape, columns_first, dtype = np.lib.format.read_array_header_1_0(stream, max_header_size=HEADER_BYTES)
    except (ValueError, TypeError, SyntaxError, EOFError, MemoryError, RecursionError):
        raise Refused(f"{where}: not an array") from None
    if shape != expected.shape:
        raise Refused(f"{where}: shape {_brief(shape)} instead of {expected.shape}")
    if dtype != np.dtype(expected.dtype) or columns_first:
        raise Refused(f"{where}: type {dtype}{' by columns' if columns_first else ''} instead of {np.dtype(expected.dtype)}")
    body = array.data[stream.tell():]
    if len(body) != math.prod(shape) * dtype.itemsize:
        raise Refused(f"{where}: {len(body)} bytes instead of {math.prod(shape) * dtype.itemsize}")
    values = np.frombuffer(body, dtype).reshape(shape).copy()
    if not np.isfinite(values).all():
        raise Refused(f"{where}: values that are not finite")
    return values


def _brief(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:60] + "…"


def read_numbers(content: RecordDict, record: str, expected: Mapping[str, type]) -> dict[str, Any]:
    """The values of one record, each of its type; numbers finite."""
    found = content.config_records.get(record)
    if found is None:
        raise Refused(f"no values '{record}'")
    values = {}
    for name, kind in expected.items():
        value = found.get(name)
        if kind is list:
            good = isinstance(value, list) and all(isinstance(v, float) and math.isfinite(v) for v in value)
        else:
            good = type(value) is kind and (kind is not float or math.isfinite(value))  # type: ignore[arg-type]
        if not good:
            raise Refused(f"{record}: {name} = {_brief(value)}, not {'finite numbers' if kind is list else kind.__name__}")
        values[name] = value
    return values

