from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anybit.export.packing import pack, packed_size, unpack


@given(bits=st.integers(2, 8), values=st.lists(st.integers(0, 255), min_size=1, max_size=70))
def test_a_stream_gives_back_its_numbers(bits: int, values: list[int]) -> None:
    codes = (np.array(values) % (1 << bits)).astype(np.uint8)
    stream = pack(codes, bits)
    assert stream.nbytes == packed_size(len(values), bits)
    assert (unpack(stream, bits, len(values)) == codes).all()


@pytest.mark.parametrize(("bits", "codes", "stream"), [
    (4, [1, 2, 15], [0x21, 0x0F]), (2, [1, 2, 3, 0, 1], [0b00111001, 1]), (8, [7, 255], [7, 255]),
    (6, [63, 0, 63, 1], [0b00111111, 0b11110000, 0b00000111])])
def test_the_documented_order(bits: int, codes: list[int], stream: list[int]) -> None:
    assert pack(np.array(codes, np.uint8), bits).tolist() == stream
