"""Tiles that fit: a convolution compiled for a GPU that is not there says how much shared memory it asks for."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.kernels, pytest.mark.usefixtures("interpreter")]

COMPILED = """
import sys
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from anybit.kernels.convolution import _convolve_kernel
generation, wide = map(int, sys.argv[1:])
sizes = dict(H=64, W=64, OH=32, OW=32, I=3, O=64, K=7, STRIDE=2, PAD=3, MANY=16, BM=128, BJ=wide, BO=64)
kinds = dict(x="*fp32", w="*fp32", y="*fp32", pixels="i32") | dict.fromkeys(sizes, "constexpr")
source = ASTSource(_convolve_kernel, signature=kinds, constexprs=sizes)
print(compile(source, target=GPUTarget("cuda", generation, 32), options={"num_warps": 4}).metadata.shared)
"""
BYTES = (128 + 64) * 4
"""One index of the sum: 128 pixels and 64 output channels in float32."""


def asked_for(generation: int, wide: int) -> int:
    """The bytes that ResNet-18's stem asks for; in a process of its own, as this one may have Triton's interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    ran = subprocess.run([sys.executable, "-c", COMPILED, str(generation), str(wide)], check=True, capture_output=True,
                         text=True, env=environment)
    return int(ran.stdout)


@pytest.mark.parametrize(("generation", "room"), [(90, 232_448), (89, 101_376)], ids=["H200", "RTX 4090"])
def test_the_stem_of_resnet18_fits_in_float32(generation: int, room: int) -> None:
    from anybit.kernels.tiles import fitting, tile

    wide = tile(7 * 7 * 3, 128)
    assert asked_for(generation, wide) > room
    assert asked_for(generation, fitting(wide, 7 * 7 * 3, BYTES, room)) <= room


def test_a_tile_that_fits_stays() -> None:
    from anybit.kernels.tiles import fitting

    assert fitting(128, 75, BYTES, 232_448) == 128  # one piece: nothing is loaded ahead
    assert fitting(128, 147, BYTES, 3 * 128 * BYTES) == 128
    assert fitting(128, 147, BYTES, 3 * 128 * BYTES - 1) == 64
    assert fitting(16, 147, BYTES, 0) == 16
