"""Tensors in Flower's records. What comes in is checked against what was expected before it counts; nothing is unpickled.

All tensors of a record travel as one array in the safetensors format: Flower fetches every array by requests of its own,
and checks nothing about it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anybit.errors import RunError
from anybit.files.safetensors import from_bytes, to_bytes
from anybit.fleet.flower import Array, ArrayRecord, RecordDict
from anybit.tensors import Tensors

KEY, FORMAT = "tensors", "safetensors"
HEADER_BYTES = 512
"""What a tensor's entry in the header may take, at most."""


class Refused(Exception):
    """An answer that does not count, and why."""


class Layout(NamedTuple):
    """What a tensor must be."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def layout(tensors: Tensors) -> dict[str, Layout]:
    """The layouts of tensors, by name."""
    return {name: Layout(t.dtype, tuple(t.shape)) for name, t in tensors.items()}


def to_record(tensors: Tensors) -> ArrayRecord:
    data = to_bytes(tensors, {})
    return ArrayRecord({KEY: Array("uint8", (len(data),), FORMAT, data)})


def payload_bytes(content: RecordDict) -> int:
    """What the arrays of a message weigh."""
    return sum(len(array.data) for record in content.array_records.values() for array in record.values())


def read_tensors(content: RecordDict, record: str, expected: Mapping[str, Layout]) -> dict[str, Tensor]:
    """The tensors of one record, in the order of `expected`: all names, shapes and types as expected, all values finite."""
    room = sum(one.size * one.dtype.itemsize + HEADER_BYTES for one in expected.values()) + HEADER_BYTES
    found = _unpacked(content, record, room)
    _check_names(record, found, expected)
    for name, (dtype, shape) in expected.items():
        tensor = found[name]
        if tuple(tensor.shape) != shape:
            raise Refused(f"{record} '{name}': shape {_brief(tuple(tensor.shape))} instead of {shape}")
        if tensor.dtype != dtype:
            raise Refused(f"{record} '{name}': {tensor.dtype} instead of {dtype}")
        if not bool(torch.isfinite(tensor).all()):
            raise Refused(f"{record} '{name}': values that are not finite")
    return {name: found[name] for name in expected}


def _unpacked(content: RecordDict, record: str, room: float) -> dict[str, Tensor]:
    arrays = content.array_records.get(record)
    if arrays is None or list(arrays) != [KEY]:
        raise Refused(f"no tensors '{record}'")
    data = arrays[KEY].data
    if len(data) > room:
        raise Refused(f"{record}: {len(data)} bytes, more than the {room:.0f} that the model can take")
    try:
        return from_bytes(data, record)[0]
    except RunError as error:
        raise Refused(_brief(error, 200)) from None


def _check_names(record: str, found: Iterable[str], expected: Iterable[str]) -> None:
    missing, unknown = set(expected) - set(found), set(found) - set(expected)
    if missing:
        raise Refused(f"{record}: '{min(missing)}' is missing" + (f", and {len(missing) - 1} more" if missing else ""))
    if unknown:
        raise Refused(f"{record}: '{_brief(min(unknown))}' is unknown")


def _brief(value: object, length: int = 60) -> str:
    text = str(value)
    return text if len(text) <= length else text[:length] + "…"


def read_values(content: RecordDict, record: str, expected: Mapping[str, type]) -> dict[str, Any]:
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
