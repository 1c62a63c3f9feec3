"""A network as a list of calls of C kernels on float tensors, before it is written as C."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from anybit.errors import ModelError
from anybit.export.subject import QuantizedWeight, Subject
from anybit.quant.grid import Width

INPUT = "input"
"""The buffer that the caller gives; no kernel writes to it."""
TYPES = {"uint8": "uint8_t", "float32": "float"}


@dataclass(frozen=True)
class Value:
    """A tensor of one example, batch dimension included: a buffer of floats or, where `constant`, an array in flash."""

    buffer: str
    shape: tuple[int, ...]
    constant: bool = False

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Step:
    """One call of a kernel. In its text {0}, {1}, … stand for what it reads, {y} for what it writes, {q} for its scratch."""

    call: str
    reads: tuple[Value, ...]
    writes: Value
    in_place: bool = False
    """The output may lie where an input of the same size does that nobody reads later."""
    scratch: int = 0
    """Bytes that the call alone needs."""
    layer: str = ""
    """The module that it belongs to."""


@dataclass(frozen=True)
class Constant:
    """An array in flash, or a structure of numbers, whose text is then given."""

    name: str
    type: str
    values: np.ndarray | None = None
    text: str = ""


@dataclass(frozen=True)
class Layer:
    """What the report says of a convolution or linear layer."""

    name: str
    macs: int
    weight_bytes: int
    integer: bool


@dataclass
class Program:
    """The calls of a network at one width, while it is made and when it is complete."""

    subject: Subject
    width: Width
    weights: Mapping[str, QuantizedWeight] = field(default_factory=dict)
    """{parameter: its integers} of every weight that the width quantizes."""
    steps: list[Step] = field(default_factory=list)
    constants: dict[str, Constant] = field(default_factory=dict)
    kernels: dict[str, str] = field(default_factory=dict)
    """{name of a kernel: its text}, in the order of definition."""
    layers: list[Layer] = field(default_factory=list)
    in_float: dict[str, str] = field(default_factory=dict)
    """{layer: why it is computed in float though the width quantizes activations}."""
    row: int = 0
    """The most numbers of a packed row, what is unpacked at a time; a multiple of 4."""
    wide: bool = False
    """A row needs 16 bits per number: an unsigned grid of 8 bits."""
    planes: int = 0
    """The most floats that a convolution in lanes takes beside the arena."""
    taps: int = 0
    """The most weights of a channel in such a convolution."""
    tile: int = 0
    """The most bytes of a row of a convolution by integers in lanes."""
    output: Value = Value(INPUT, ())
    number: int = 0

    def array(self, values: np.ndarray, name: str) -> str:
        """Add an array of bytes or floats; return its name in C."""
        if values.dtype == np.float32 and not np.isfinite(values).all():
            raise ModelError(f"'{name}' is not finite: C has no constant for it")
        return self._constant(name, TYPES[values.dtype.name], values)

    def structure(self, kind: str, name: str, fields: Sequence[object]) -> str:
        """Add a structure of numbers; return a pointer to it in C."""
        return "&" + self._constant(name, kind, None, "{" + ", ".join(map(str, fields)) + "}")

    def _constant(self, name: str, kind: str, values: np.ndarray | None, text: str = "") -> str:
        for known in self.constants.values():
            if known.type == kind and known.text == text and _same(known.values, values):
                return known.name
        name = "k_" + "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
        while name in self.constants:
            name = f"{name}_{len(self.constants)}"
        self.constants[name] = Constant(name, kind, values, text)
        return name

    def use(self, name: str, template: str = "", **fields: str) -> str:
        """Have a kernel defined; return its name."""
        if name not in self.kernels:
            self.kernels[name] = source(template or name, name=name, **fields)
        return name

    def call(self, text: str, reads: Sequence[Value], shape: Sequence[int], in_place: bool = False, scratch: int = 0,
             into: Value | None = None) -> Value:
        """Add a call; return what it writes: a new buffer, or `into`."""
        self.number += into is None
        value = into or Value(f"b{self.number}", tuple(shape))
        self.steps.append(Step(text, tuple(reads), value, in_place, scratch))
        return value


Lowering = Callable[[Program, dict[str, Any], tuple[int, ...], str], Value]
"""(program, arguments by name with tensors as values, shape of the result, layer) → the result."""


def _same(left: np.ndarray | None, right: np.ndarray | None) -> bool:
    return left is right if left is None or right is None else left.size == right.size and left.tobytes() == right.tobytes()


def source(template: str, **fields: str) -> str:
    """Return the text of a template, with its fields filled in."""
    text = files("anybit.export.c").joinpath("kernels", f"{template}.c").read_text(encoding="utf-8")
    return Template(text).substitute(fields)


def named(path: Path) -> str:
    """Return the name of a network in C: of model.w2a8.c it is model_w2a8."""
    return path.stem.replace(".", "_")


def number(value: float) -> str:
    """Write a float32 so that C reads the same one; infinity, for which C has no number, as the largest one.

    >>> number(0.5), number(3), number(1e-5)
    ('0.5f', '3.0f', '9.99999975e-06f')
    """
    largest = np.finfo(np.float32).max
    text = f"{float(np.clip(np.float32(value), -largest, largest)):.9g}"
    return text + ("f" if "." in text or "e" in text else ".0f")
