"""Tensors in files: the safetensors format, read and written with torch and numpy alone, never unpickled.

8 bytes little-endian header length, a JSON header {name: {dtype, shape, data_offsets}}, then the raw bytes. The
metadata's `sha256` is that of the whole file, header included, with zeros in its own place, so that any damage is noticed.
Files of earlier versions have no `sha256_of`, and a `sha256` of their tensors alone.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anybit.errors import RunError
from anybit.files.reading import bounded, read_bytes
from anybit.files.writing import write_bytes

_DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "I64": np.int64, "I32": np.int32, "I16": np.int16,
           "I8": np.int8, "U8": np.uint8, "BOOL": np.bool_}
_NAMES = {np.dtype(v): k for k, v in _DTYPES.items()}
_DIGEST = "sha256"
_COVERED = "sha256_of"
"""What the digest covers. A file without it counts as an earlier version's; a flipped bit in either name is noticed."""
_FILE = "file"
_ZEROS = b"0" * 64
Loaded = tuple[dict[str, Tensor], dict[str, str]]
"""(tensors, metadata)."""
_HEADER_LIMIT = 100_000_000
_DIMENSIONS = 64


def save(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors and text metadata."""
    write_bytes(path, to_bytes(tensors, metadata))


def to_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """Return a file's content, with the tensors in sorted order: equal content gives equal bytes."""
    offset, body = 0, []
    # The digest comes first, so that the first zeros are its own.
    facts = {_DIGEST: _ZEROS.decode(), _COVERED: _FILE}
    header: dict[str, Any] = {"__metadata__": {**facts, **metadata, **facts}}
    for name in sorted(tensors):
        array = tensors[name].detach().cpu().numpy()
        raw = array.tobytes()
        header[name] = {"dtype": _NAMES[array.dtype], "shape": list(array.shape),
                        "data_offsets": [offset, offset + len(raw)]}
        offset += len(raw)
        body.append(raw)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    digest = hashlib.sha256(head)
    for raw in body:
        digest.update(raw)
    return b"".join((head.replace(_ZEROS, digest.hexdigest().encode(), 1), *body))


def load(path: Path) -> Loaded:
    """Read (tensors, metadata), with every length checked against the file before anything is allocated."""
    return from_bytes(read_bytes(path), str(path))


def from_bytes(content: bytes, where: str) -> Loaded:
    """Return the tensors and metadata that `to_bytes` wrote, or raise a RunError that says what is wrong `where`."""
    try:
        return _parse(memoryview(content))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise RunError(f"{where} is damaged ({error})") from None


def _parse(content: memoryview) -> Loaded:
    size = int.from_bytes(content[:8], "little")
    if len(content) < 8 or size > len(content) - 8:
        raise ValueError("it ends inside its header")
    if size > _HEADER_LIMIT:
        raise ValueError(f"its header has {size:,} bytes")
    header = bounded(json.loads(bytes(content[8:8 + size])))
    metadata, body = header.pop("__metadata__", {}), content[8 + size:]
    if not all(isinstance(text, str) for text in metadata.values()):
        raise ValueError("its metadata is not text")
    whole = _COVERED in metadata
    tensors, digest, expected = {}, hashlib.sha256(_head(content[:8 + size], metadata) if whole else b""), 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"][0]):
        dtype, shape, (start, end) = np.dtype(_DTYPES[entry["dtype"]]), entry["shape"], entry["data_offsets"]
        if len(shape) > _DIMENSIONS or any(type(n) is not int or not 0 <= n < 2**63 for n in (*shape, start, end)):
            raise ValueError(f"tensor '{name}' has an impossible size")
        if start != expected or end - start != math.prod(shape) * dtype.itemsize or end > len(body):
            raise ValueError(f"tensor '{name}' does not fit the file")
        expected = end
        digest.update(body[start:end])
        array = np.frombuffer(body[start:end], dtype).reshape(shape)
        if dtype == np.bool_ and array.view(np.uint8).max(initial=0) > 1:
            raise ValueError(f"tensor '{name}' holds truth values that are neither 0 nor 1")
        tensors[name] = torch.from_numpy(array.copy())
    if expected != len(body):
        raise ValueError("it has bytes that belong to no tensor")
    if metadata.get(_DIGEST, None if whole else digest.hexdigest()) != digest.hexdigest():
        raise ValueError("its SHA-256 does not match")
    return tensors, metadata


def _head(head: memoryview, metadata: Mapping[str, str]) -> bytes:
    """Return length and header as they were hashed: before the digest took the place of the zeros."""
    if metadata[_COVERED] != _FILE:
        raise ValueError(f"its SHA-256 is of '{metadata[_COVERED]}'")
    return bytes(head).replace(metadata.get(_DIGEST, "").encode(), _ZEROS, 1)
