"""Tensors in Flower's records, checked against what was expected before they count; nothing is unpickled.

All tensors of a record travel as one array in the safetensors format: Flower fetches every array by separate requests,
and checks nothing about it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anybit.errors import RunError
from anybit.files.safetensors import from_bytes, to_bytes
from anybit.fleet.flower import Array, ArrayRecord, RecordDict
from anybit.fleet.text import brief
from anybit.tensors import Tensors

KEY, FORMAT = "tensors", "safetensors"
HEADER_BYTES = 512
"""The most that a tensor's entry in the header may take."""
VALUES = "answer"
"""The record of an answer's plain values."""
VALUES_BYTES = 4096
"""The most that plain values may take, lists aside."""
MAX_STEPS = 100_000
"""The most local steps whose losses are read."""
LARGEST = 1e20
"""The largest number that is believed: sums of many such, and their squares, are finite in float32 or float64."""


class Refused(Exception):
    """An answer does not count, for the reason given."""


class Layout(NamedTuple):
    """The type and shape that a tensor must have."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def layout(tensors: Tensors) -> dict[str, Layout]:
    """Return the layouts of tensors, by name."""
    return {name: Layout(t.dtype, tuple(t.shape)) for name, t in tensors.items()}


def to_record(tensors: Tensors) -> ArrayRecord:
    data = to_bytes(tensors, {})
    return ArrayRecord({KEY: Array("uint8", (len(data),), FORMAT, data)})


def payload_bytes(content: RecordDict) -> int:
    """Count the bytes of a message's arrays."""
    return sum(len(array.data) for record in content.array_records.values() for array in record.values())


def check_content(content: RecordDict, values: Mapping[str, type], arrays: Mapping[str, Mapping[str, Layout]]) -> None:
    """Raise Refused unless an answer has these records and no others, all together no larger than they can honestly be."""
    most = VALUES_BYTES + sum(_room(expected) for expected in arrays.values())
    most += 8 * MAX_STEPS * sum(kind is list for kind in values.values())
    if (size := content_bytes(content)) > most:
        raise Refused(f"{size} bytes, more than the {most} that an answer can take")
    if unknown := set(content) - {VALUES, *arrays}:
        raise Refused(f"record '{brief(min(unknown))}' is unknown")


def content_bytes(content: RecordDict) -> int:
    """Count the bytes of a message: names, values and arrays of all its records."""
    return sum(len(name) + sum(len(key) + _value_bytes(value) for key, value in record.items())
               for name, record in content.items())


def _value_bytes(value: Any) -> int:
    if isinstance(value, Array):
        return len(value.data) + len(value.dtype) + len(value.stype) + 8 * len(value.shape)
    if isinstance(value, list):
        return sum(map(_value_bytes, value))
    return len(value) if isinstance(value, str | bytes) else 8


def _room(expected: Mapping[str, Layout]) -> int:
    """Return the most bytes that tensors of this layout can take."""
    return sum(entry.size * entry.dtype.itemsize + HEADER_BYTES for entry in expected.values()) + HEADER_BYTES


def read_tensors(content: RecordDict, record: str, expected: Mapping[str, Layout]) -> dict[str, Tensor]:
    """Read the tensors of a record, in the order of `expected`: names, shapes and types as expected, values finite."""
    tensors = _unpacked(content, record, _room(expected))
    missing, unknown = expected.keys() - tensors.keys(), tensors.keys() - expected.keys()
    if missing:
        more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise Refused(f"{record}: '{min(missing)}' is missing{more}")
    if unknown:
        raise Refused(f"{record}: '{brief(min(unknown))}' is unknown")
    for name, (dtype, shape) in expected.items():
        tensor = tensors[name]
        if tuple(tensor.shape) != shape:
            raise Refused(f"{record} '{name}': shape {brief(tuple(tensor.shape))} instead of {shape}")
        if tensor.dtype != dtype:
            raise Refused(f"{record} '{name}': {tensor.dtype} instead of {dtype}")
        if not bool(torch.isfinite(tensor).all()):
            raise Refused(f"{record} '{name}': values that are not finite")
    return {name: tensors[name] for name in expected}


def _unpacked(content: RecordDict, record: str, room: int) -> dict[str, Tensor]:
    arrays = content.array_records.get(record)
    if arrays is None or list(arrays) != [KEY]:
        raise Refused(f"no tensors '{record}'")
    data = arrays[KEY].data
    if len(data) > room:
        raise Refused(f"{record}: {len(data)} bytes, more than the {room} that the model can take")
    try:
        return from_bytes(data, record)[0]
    except RunError as error:
        raise Refused(brief(error, 200)) from None


def read_values(content: RecordDict, expected: Mapping[str, type]) -> dict[str, Any]:
    """Read the plain values of an answer, each of its expected type, numbers finite and not huge."""
    received = content.config_records.get(VALUES)
    if received is None:
        raise Refused(f"no values '{VALUES}'")
    if unknown := set(received) - expected.keys():
        raise Refused(f"{VALUES}: '{brief(min(unknown))}' is unknown")
    values = {}
    for name, kind in expected.items():
        value = received.get(name)
        if kind is list:
            good = isinstance(value, list) and all(isinstance(v, float) and _believed(v) for v in value)
        else:
            good = type(value) is kind and (kind is not float or _believed(value))  # type: ignore[arg-type]
        if not good:
            wanted = "finite numbers" if kind is list else kind.__name__
            raise Refused(f"{VALUES}: {name} = {brief(value)}, not {wanted}")
        values[name] = value
    return values


def _believed(value: float) -> bool:
    return math.isfinite(value) and abs(value) <= LARGEST
