"""Packed integers: one contiguous bit stream, the same in archives and in ONNX graphs.

Value i occupies bits i·b … (i+1)·b − 1 of the stream; bit j of the stream is bit j mod 8 of byte ⌊j/8⌋, least
significant first. The last byte is filled with zeros.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.uint8]
"""Whole numbers 0 … 2^b − 1: a quantized tensor less the lowest point of its grid."""


def pack(codes: Codes, bits: int) -> Codes:
    """Return the bit stream of `codes`, ⌈n·bits/8⌉ bytes.

    >>> pack(np.array([1, 2, 3], np.uint8), 3).tolist()   # 001, 010, 011 → 11 010 001, 0000000 0
    [209, 0]
    """
    digits = np.unpackbits(codes.reshape(-1, 1), axis=1, count=bits, bitorder="little")
    return np.packbits(digits.reshape(-1), bitorder="little")


def unpack(stream: Codes, bits: int, count: int) -> Codes:
    """Return the first `count` numbers of a bit stream.

    >>> unpack(np.array([209, 0], np.uint8), 3, 3).tolist()
    [1, 2, 3]
    """
    digits = np.unpackbits(stream, count=count * bits, bitorder="little").reshape(count, bits)
    return np.packbits(digits, axis=1, bitorder="little").reshape(count)


def packed_size(count: int, bits: int) -> int:
    """Return the bytes of a stream."""
    return -(-count * bits // 8)
