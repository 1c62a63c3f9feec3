"""A program as text: one .c and one .h."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from string import Template

import numpy as np

from anybit.environment import version
from anybit.errors import printable
from anybit.export.c.arena import FLOAT_BYTES, plan
from anybit.export.c.program import Constant, Program, number, source

_LIBM = ("sqrtf", "expf", "expm1f", "logf", "tanhf", "erff")
_LINE = 118


@dataclass(frozen=True)
class Source:
    """The two files of a network, and what they take on a device."""

    code: str
    header: str
    weight_bytes: int
    """Bytes of all arrays in flash: weights, scales, biases, norms."""
    arena_bytes: int
    ram_bytes: int
    """The arena and one unpacked row."""


def write(program: Program, name: str, header: str) -> Source:
    """Write a program whose function is anybit_NAME_run, with its header under the given file name."""
    arena, subject = plan(program.steps, program.output), program.subject
    constants = [c for c in program.constants.values() if c.values is not None]
    weight_bytes = sum(c.values.nbytes for c in constants if c.values is not None)
    sha256 = hashlib.sha256(b"".join(c.values.tobytes() for c in constants if c.values is not None)).hexdigest()
    row_type = "int16_t" if program.wide else "int8_t"
    arena_bytes = arena.size * FLOAT_BYTES
    ram_bytes = arena_bytes + program.row * (2 if program.wide else 1)
    kernels = "\n".join(program.kernels.values())
    about = _comment(f"{subject.title} at {program.width}, written by anybit {version('anybit') or 'from its sources'}")
    libm = any(re.search(rf"\b{function}\(", kernels) for function in _LIBM)
    calls = (step.call.format(*map(arena.pointer, step.reads), y=arena.pointer(step.writes),
                              q=f"arena + {arena.scratch.get(i, 0)}") for i, step in enumerate(program.steps))
    code = source(
        "model", about=about, header=header, name=name, types=source("types"),
        includes="".join(f"#include <{file}.h>\n" for file, wanted in (
            ("float", "FLT_MAX" in kernels), ("math", libm), ("stddef", True), ("stdint", True)) if wanted),
        constants="\n".join(_defined(c) for c in program.constants.values()),
        memory=(f"static float arena[{arena.size}];\n" if arena.size else "")
        + (f"typedef {row_type} row_t;\nstatic row_t row[{program.row}];\n" if program.row else ""), kernels=kernels,
        calls="\n".join(f"    {line}" for call in calls for line in call.splitlines()))
    pipeline = subject.data.pipeline
    mean_std = ((("MEAN", pipeline.mean), ("STD", pipeline.std)) if pipeline.mean and pipeline.std else ())
    shape = tuple(subject.images.shape[1:])  # type: ignore[union-attr]
    fields = {
        "about": about, "name": name, "NAME": name.upper(), "width": str(program.width), "sha256": sha256,
        "INPUT": math.prod(shape), "input_shape": _numbers(shape), "OUTPUT": program.output.size,
        "output_shape": _numbers(program.output.shape[1:] or (1,)), "arena_bytes": arena_bytes, "ram_bytes": ram_bytes,
        "weight_bytes": weight_bytes, "version": version("anybit") or "", "libm": " and link with -lm" if libm else "",
        "normalization": "; scaled to [0, 1], then (x - MEAN) / STD per channel" if mean_std else "",
        "mean_std": "".join(f"#define ANYBIT_{name.upper()}_{key} {{{', '.join(map(number, values))}}}\n"
                            for key, values in mean_std)}
    text = files("anybit.export.c").joinpath("kernels", "model.h").read_text(encoding="utf-8")
    return Source(code, Template(text).substitute(fields), weight_bytes, arena_bytes, ram_bytes)


def _numbers(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))


def _comment(text: str) -> str:
    return printable(text).replace("*/", "* /").encode("ascii", "replace").decode()


def _defined(constant: Constant) -> str:
    if constant.values is None:
        return f"static const {constant.type} {constant.name} = {constant.text};"
    body = "\n".join(_lines(constant.values))
    return f"static const {constant.type} {constant.name}[{constant.values.size}] = {{\n{body}\n}};"


def _lines(values: np.ndarray) -> Iterator[str]:
    line = ""
    for value in values.reshape(-1).tolist():
        text = f"{number(value) if values.dtype == np.float32 else value},"
        if len(line) + len(text) >= _LINE:
            yield line
            line = ""
        line += text
    yield line
