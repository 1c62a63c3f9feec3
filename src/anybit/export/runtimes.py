"""What released runtimes make of ONNX artifacts, as `make test-runtimes` measured it.

`python -m tools.runtimes` runs every width and opset in released runtimes and writes results/devices/runtimes.csv; a test
holds the versions here to that file.
"""

from __future__ import annotations

from collections.abc import Collection

from anybit.export.nbits import STORAGE as BLOCKS

ONNXRUNTIME = {18: {"plain": "1.16.3"}, 21: {"plain": "1.18.1", "native uint4": "1.23.2"},
               25: {"plain": "1.24.4", "native uint4": "1.24.4", "native uint2": "1.24.4"}}
"""{opset: {storage of weights: the first release of ONNX Runtime that is right}}; plain: bytes and streams."""
ONLY_HERE = "MatMulNBits is an operator of ONNX Runtime alone"
NATIVE_2 = "OpenVINO 2026.4.1 does not load native uint2"


def minimum_onnxruntime(opset: int, storage: Collection[str]) -> str:
    """Return the oldest release that is known to run such weights; empty where none was tried.

    An opset that was not tried itself needs what the next tried one does: releases go on loading older opsets.
    """
    tried = next((versions for known, versions in ONNXRUNTIME.items() if known >= opset), None)
    if tried is None or any(BLOCKS in kind for kind in storage):
        return ""
    return max((tried.get(kind, tried["plain"]) for kind in ("plain", *storage)), key=_order)


def known_wrong(storage: Collection[str]) -> list[str]:
    """Return what is known of other runtimes that do not compute such weights."""
    found = {ONLY_HERE: any(BLOCKS in kind for kind in storage), NATIVE_2: "native uint2" in storage}
    return [words for words, applies in found.items() if applies]


def _order(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]
