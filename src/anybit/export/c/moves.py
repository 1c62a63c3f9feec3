"""Operations that move numbers: views, slices, permutations, concatenation, borders, shapes that are spread."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from anybit.errors import ModelError
from anybit.export.c.program import Program, Value, number

MOST = 4
"""Dimensions of the loops in C; those of length 1 do not count."""


def strides(shape: Sequence[int]) -> list[int]:
    """Return what one step in each dimension is in floats.

    >>> strides((2, 3, 4))
    [12, 4, 1]
    """
    return [math.prod(shape[i + 1:]) for i in range(len(shape))]


def same(program: Program, given: dict[str, Any], shape: tuple[int, ...], layer: str) -> Value:
    """Return the same numbers in another shape."""
    x = given.get("self", given.get("input"))
    assert isinstance(x, Value)
    return Value(x.buffer, shape, x.constant)


def _moved(program: Program, x: Value, size: Sequence[int], start: tuple[int, int],
           steps: tuple[Sequence[int], Sequence[int]], layer: str, shape: Sequence[int], into: Value | None = None) -> Value:
    """Add y[start + Σ i · step] = x[start + Σ i · step] for all i below `size`."""
    loops = [_array(row) for row in _four(size, *steps, layer=layer)]
    at = [f" + {n}" if n else "" for n in start]
    return program.call(f"{program.use('move')}({{0}}{at[0]}, {{y}}{at[1]}, {', '.join(loops)});", [x], shape, into=into)


def _four(size: Sequence[int], *steps: Sequence[int], layer: str) -> list[list[int]]:
    """Return sizes and steps of exactly four loops."""
    kept = [i for i, n in enumerate(size) if n > 1]
    if len(kept) > MOST:
        raise ModelError(f"layer '{layer}': the C export moves tensors of at most {MOST} dimensions beside the batch")
    missing = MOST - len(kept)
    return [[fill] * missing + [row[i] for i in kept] for fill, row in ((1, size), *((0, row) for row in steps))]


def _array(numbers: Sequence[int]) -> str:
    return f"(const int[]){{{{{', '.join(map(str, numbers))}}}}}"


def spread(program: Program, kernel: str, a: Value, b: Value, shape: tuple[int, ...], layer: str) -> Value:
    """Add an operation on two tensors that are repeated to one shape."""
    steps = [[0] * (len(shape) - len(v.shape)) + [0 if n == 1 else s for n, s in zip(v.shape, strides(v.shape), strict=True)]
             for v in (a, b)]
    loops = [_array(row) for row in _four(shape, *steps, layer=layer)]
    return program.call(f"{kernel}({{0}}, {{1}}, {{y}}, {', '.join(loops)});", [a, b], shape, True)


def permute(program: Program, given: dict[str, Any], shape: tuple[int, ...], layer: str) -> Value:
    x = given["self"]
    steps = [strides(x.shape)[d % len(shape)] for d in given["dims"]]
    if [d % len(shape) for d in given["dims"] if x.shape[d] > 1] == [d for d in range(len(shape)) if x.shape[d] > 1]:
        return same(program, given, shape, layer)
    return _moved(program, x, shape, (0, 0), (steps, strides(shape)), layer, shape)


def transpose(program: Program, given: dict[str, Any], shape: tuple[int, ...], layer: str) -> Value:
    dims, (a, b) = list(range(len(shape))), (given[name] % len(shape) for name in ("dim0", "dim1"))
    dims[a], dims[b] = dims[b], dims[a]
    return permute(program, {"self": given["self"], "dims": dims}, shape, layer)


def slices(program: Program, given: dict[str, Any], shape: tuple[int, ...], layer: str) -> Value:
    x, dim = given["self"], given["dim"] % len(shape)
    if x.shape == shape:
        return same(program, given, shape, layer)
    start, step = given["start"] or 0, list(strides(x.shape))
    start = max(start + x.shape[dim] if start < 0 else start, 0) * step[dim]
    step[dim] *= given["step"]
    return _moved(program, x, shape, (start, 0), (step, strides(shape)), layer, shape)


def select(program: Program, given: dict[str, Any], shape: tuple[int, ...], layer: str) -> Value:
    x = given["self"]
    dim, step = given["dim"] % len(x.shape), strides(x.shape)
    start = given["index"] % x.shape[dim] * step.pop(dim)
    return _moved(program, x, shape, (start, 0), (step, strides(shape)), layer, shape)


def expand(program: Program, given: dict[str, Any], shape: tuple[int, ...], layer: str) -> Value:
    x = given["self"]
    step = [0] * (len(shape) - len(x.shape)) + [0 if n == 1 else s for n, s in zip(x.shape, strides(x.shape), strict=True)]
    return _moved(program, x, shape, (0, 0), (step, strides(shape)), layer, shape)


def cat(program: Program, given: dict[str, Any], shape: tuple[int, ...], layer: str) -> Value:
    dim, start, into = given["dim"] % len(shape), 0, None
    for x in given["tensors"]:
        into = _moved(program, x, x.shape, (0, start), (strides(x.shape), strides(shape)), layer, shape, into)
        start += x.shape[dim] * strides(shape)[dim]
    assert into is not None
    return into


def pad(program: Program, given: dict[str, Any], shape: tuple[int, ...], layer: str) -> Value:
    """Add a border of a constant; negative borders are cut off."""
    x, border = given["self"], list(given["pad"])
    if given.get("mode", "constant") != "constant":
        raise ModelError(f"layer '{layer}': the C export has borders of a constant alone, not '{given['mode']}'; use "
                         "padding_mode='zeros'")
    if not any(border):
        return same(program, given, shape, layer)
    before = [0] * (len(shape) - len(border) // 2) + border[-2::-2]
    size = [min(n, n + b, m, m - b) for n, m, b in zip(x.shape, shape, before, strict=True)]
    to, source = (sum(max(sign * b, 0) * s for b, s in zip(before, strides(of), strict=True))
                  for sign, of in ((1, shape), (-1, x.shape)))
    value = number(given.get("value") or 0.0)
    into = program.call(f"{program.use('fill')}({{y}}, {math.prod(shape)}, {value});", [], shape)
    return _moved(program, x, size, (source, to), (strides(x.shape), strides(shape)), layer, shape, into)


def split(program: Program, given: dict[str, Any], shapes: Sequence[tuple[int, ...]], layer: str) -> list[Value]:
    """Add one slice per part of what torch splits or chunks."""
    dim, parts, start = given["dim"] % len(shapes[0]), [], 0
    for shape in shapes:
        parts.append(slices(program, {**given, "start": start, "step": 1}, shape, layer))
        start += shape[dim]
    return parts
