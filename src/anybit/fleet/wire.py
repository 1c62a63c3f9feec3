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
from anybit.tensors import Tensors

KEY, FORMAT = "tensors", "safetensors"
HEADER_BYTES = 512
"""The most that a tensor's entry in the header may take."""


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


def read_tensors(content: RecordDict, record: str, expected: Mapping[str, Layout]) -> dict[str, Tensor]:
    """Read the tensors of a record, in the order of `expected`: names, shapes and types as expected, values finite."""
    room = sum(entry.size * entry.dtype.itemsize + HEADER_BYTES for entry in expected.values()) + HEADER_BYTES
    tensors = _unpacked(content, record, room)
    missing, unknown = expected.keys() - tensors.keys(), tensors.keys() - expected.keys()
    if missing:
        more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise Refused(f"{record}: '{min(missing)}' is missing{more}")
    if unknown:
        raise Refused(f"{record}: '{_brief(min(unknown))}' is unknown")
    for name, (dtype, shape) in expected.items():
        tensor = tensors[name]
        if tuple(tensor.shape) != shape:
            raise Refused(f"{record} '{name}': shape {_brief(tuple(tensor.shape))} instead of {shape}")
        if tensor.dtype != dtype:
            raise Refused(f"{record} '{name}': {tensor.dtype} instead of {dtype}")
        if not bool(torch.isfinite(tensor).all()):
            raise Refused(f"{record} '{name}': values that are not finite")
    return {name: tensors[name] for name in expected}


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


def _brief(value: object, length: int = 60) -> str:
    text = str(value)
    return text if len(text) <= length else text[:length] + "…"


def read_values(content: RecordDict, record: str, expected: Mapping[str, type]) -> dict[str, Any]:
    """Read the values of a record, each of its expected type, numbers finite."""
    received = content.config_records.get(record)
    if received is None:
        raise Refused(f"no values '{record}'")
    values = {}
    for name, kind in expected.items():
        value = received.get(name)
        if kind is list:
            good = isinstance(value, list) and all(isinstance(v, float) and math.isfinite(v) for v in value)
        else:
            good = type(value) is kind and (kind is not float or math.isfinite(value))  # type: ignore[arg-type]
        if not good:
            raise Refused(f"{record}: {name} = {_brief(value)}, not {'finite numbers' if kind is list else kind.__name__}")
        values[name] = value
    return values
