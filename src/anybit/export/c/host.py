"""The host's C compiler: compiles an artifact, runs it on examples and measures its size."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from anybit.errors import MissingProgram, ModelError, option
from anybit.export.c.program import source

FLAGS = ("-O2", "-std=c99", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-pedantic")
COMPILERS = ("cc", "gcc", "clang")


class Sections(NamedTuple):
    """Bytes of a compiled artifact, as `size` counts them."""

    flash: int
    """Code and constants."""
    ram: int


def compiler() -> list[str]:
    """Return the command of the C compiler: $CC, or the first of cc, gcc and clang."""
    chosen = shlex.split(os.environ.get("CC", "")) or [name for name in COMPILERS if shutil.which(name)][:1]
    if not chosen or shutil.which(chosen[0]) is None:
        raise MissingProgram(f"verifying a C artifact needs a C compiler ({', '.join(COMPILERS)}): apt-get install gcc "
                             "libc6-dev, or xcode-select --install; "
                             f"{option('no_verify', python=option('runtime', 'onnx'))} needs none")
    return chosen


class Ran(NamedTuple):
    """What an artifact gave on this machine."""

    outputs: Tensor
    size: Sections | None
    microseconds: list[float]
    """Processor time per example of every layer; empty where it was not asked for."""


def run(path: Path, name: str, examples: Tensor, outputs: tuple[int, ...], layers: int = 0) -> Ran:
    """Compile an artifact with all warnings as errors and run it on all examples. layers: how many of them to time."""
    command = compiler()
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        main, model, program = here / "main.c", here / "model.o", here / "program"
        main.write_text(source("host", header=path.with_suffix(".h").name, name=name, NAME=name.upper(),
                               layers=str(max(layers, 1))), encoding="ascii")
        include = f"-I{path.parent}"
        call([*command, *FLAGS, include, "-c", str(path), "-o", str(model)])
        # Its size is that of the file as it is; told when a layer is done, it is compiled anew.
        timed = ["-DANYBIT_MARK=anybit_mark", str(path)] if layers else [str(model)]
        call([*command, *FLAGS, include, str(main), *timed, "-lm", "-o", str(program)])
        np.ascontiguousarray(examples.numpy(), np.float32).tofile(here / "inputs")
        spent = [float(line) for line in call([str(program), str(here / "inputs"), str(here / "outputs")]).split()]
        found = np.fromfile(here / "outputs", np.float32)
        if found.size != len(examples) * int(np.prod(outputs)):
            raise ModelError(f"{path}: the compiled program gave {found.size} numbers for {len(examples)} examples")
        return Ran(torch.from_numpy(found.reshape(len(examples), *outputs)), sections(model), spent[:layers])


def sections(compiled: Path, tool: str = "size") -> Sections | None:
    """Return the size of a compiled file; none if there is no tool to measure it."""
    if shutil.which(tool) is None:
        return None
    text, data, bss = (int(n) for n in call([tool, "-B", str(compiled)]).splitlines()[1].split()[:3])
    return Sections(text + data, data + bss)


def call(command: list[str]) -> str:
    """Run a program of the system and return what it prints; raise its first line of complaint."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()[:1]
        raise ModelError(f"{Path(command[0]).name} failed on the C artifact (exit code {done.returncode}): "
                         f"{lines[0] if lines else 'no message'}")
    return done.stdout
