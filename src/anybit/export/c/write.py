"""A program as text: one .c and one .h."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from string import Template

import numpy as np
from torch import Tensor

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
    functions: tuple[str, ...]
    """Functions of libm that it calls."""
    layers: tuple[tuple[str, int], ...]
    """(name, bytes of the arena that it needs) of every layer, in the order of the calls."""


def write(program: Program, name: str, header: str) -> Source:
    """Write a program whose function is anybit_NAME_run, with its header under the given file name."""
    arena = plan(program.steps, program.output)
    arrays = [constant.values for constant in program.constants.values() if constant.values is not None]
    arena_bytes = arena.size * FLOAT_BYTES
    sizes = {"arena_bytes": arena_bytes, "ram_bytes": arena_bytes + program.row * (2 if program.wide else 1),
             "weight_bytes": sum(values.nbytes for values in arrays)}
    kernels = "\n".join(program.kernels.values())
    functions = tuple(function for function in _LIBM if re.search(rf"\b{function}\(", kernels))
    about = _comment(f"{program.subject.title} at {program.width}, written by anybit "
                     f"{version('anybit') or 'from its sources'}")
    calls = [step.call.format(*map(arena.pointer, step.reads), y=arena.pointer(step.writes),
                              q=f"arena + {arena.scratch.get(i, 0)}") for i, step in enumerate(program.steps)]
    layers, lines = list[tuple[str, int]](), list[str]()
    for layer, numbers in itertools.groupby(range(len(calls)), key=lambda i: program.steps[i].layer):
        steps = list(numbers)
        lines += [line for i in steps for line in calls[i].splitlines()] + [f"DONE({len(layers)})"]
        layers.append((layer, max(arena.alive[i] for i in steps) * FLOAT_BYTES))
    code = source("model", about=about, header=header, name=name, types=source("types"),
                  includes=_includes(kernels, bool(functions)),
                  constants="\n".join(_defined(c) for c in program.constants.values()),
                  memory=_memory(program, arena.size), kernels=kernels,
                  calls="\n".join(f"    {line}" for line in lines))
    sha256 = hashlib.sha256(b"".join(values.tobytes() for values in arrays)).hexdigest()
    text = _header(program, name, {"about": about, "sha256": sha256, **sizes,
                                   "libm": " and link with -lm" if functions else ""})
    return Source(code, text, **sizes, functions=functions, layers=tuple(layers))


def _includes(kernels: str, libm: bool) -> str:
    needed = {"float": "FLT_MAX" in kernels, "math": libm, "stddef": True, "stdint": True, "string": "memcpy" in kernels}
    return "".join(f"#include <{name}.h>\n" for name, wanted in needed.items() if wanted) + \
        (source("simd") if any(word in kernels for word in ("__wasm_simd128__", "MANY", "LANES")) else "")


def _memory(program: Program, floats: int) -> str:
    bits = 16 if program.wide else 8
    row = f"#define ROW_BITS {bits}\ntypedef int{bits}_t row_t;\nstatic row_t row[{program.row}];\n"
    lanes = (f"#if defined(MANY)\nstatic float planes[{program.planes}];\nstatic int starts[{program.taps}];\n"
             "#endif\n")
    # Lanes may read beyond the last input of a convolution, whose place in the arena may be the last.
    tiles = (f"#if defined(LANES) && ROW_BITS == 8\n#define TILES\n#define BEHIND (LANES / 4)\n"
             f"#if defined(DPBUSD)\n#define WIDE\nstatic int8_t tiles[{16 * program.tile}];\n"
             f"static int offsets[{program.tile // 4}];\n"
             f"#else\nstatic int8_t tiles[{4 * program.tile}];\n#endif\n#else\n#define BEHIND 0\n#endif\n")
    behind = " + BEHIND" if program.tile else ""
    return (row if program.row else "") + (tiles if program.tile else "") + \
        (f"static float arena[{floats}{behind}];\n" if floats else "") + (lanes if program.planes else "")


def _header(program: Program, name: str, known: Mapping[str, object]) -> str:
    data, images = program.subject.data.pipeline, program.subject.images
    assert isinstance(images, Tensor)
    constants = {"MEAN": data.mean, "STD": data.std} if data.mean and data.std else {}
    fields = {
        "name": name, "NAME": name.upper(), "width": str(program.width), "version": version("anybit") or "",
        "INPUT": images[0].numel(), "input_shape": _numbers(images.shape[1:]), "OUTPUT": program.output.size,
        "output_shape": _numbers(program.output.shape[1:] or (1,)),
        "normalization": "; scaled to [0, 1], then (x - MEAN) / STD per channel" if constants
                         else "; scaled to [0, 1] (bytes / 255)" if program.subject.from_bytes else "",
        "mean_std": "".join(f"#define ANYBIT_{name.upper()}_{key} {{{', '.join(map(number, values))}}}\n"
                            for key, values in constants.items())}
    text = files("anybit.export.c").joinpath("kernels", "model.h").read_text(encoding="utf-8")
    return Template(text).substitute({**fields, **known})


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
