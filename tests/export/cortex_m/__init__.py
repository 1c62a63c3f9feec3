"""An emulated Cortex-M: compiles a C artifact for it, runs it in QEMU and counts instructions."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from anybit.export.c.host import Sections, sections

PROGRAMS = ("arm-none-eabi-gcc", "qemu-system-arm")
PACKAGES = "apt-get install --no-install-recommends gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm"
BOARDS = {"m3": ("mps2-an385", ("-mcpu=cortex-m3", "-mthumb")),
          "m4": ("mps2-an386", ("-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16")),
          "m7": ("mps2-an500", ("-mcpu=cortex-m7", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv5-d16"))}
"""{core: (QEMU's board, flags of the compiler)}."""


class Emulated(NamedTuple):
    outputs: Tensor
    instructions: list[int]
    """Per example."""
    size: Sections | None


def emulated(path: Path, examples: Tensor, shape: tuple[int, ...], core: str, folder: Path) -> Emulated:
    """Run an artifact on examples."""
    here, name = Path(__file__).parent, path.stem.replace(".", "_")
    board, flags = BOARDS[core]
    gcc = ["arm-none-eabi-gcc", *flags, "-O2", "-std=c99"]
    model, start, elf = folder / "model.o", folder / "start.o", folder / "model.elf"
    _call([*gcc, "-Wall", "-Wextra", "-Werror", "-pedantic", "-c", str(path), "-o", str(model)], folder)
    defines = [f"-DMODEL_HEADER=\"{path.with_suffix('.h')}\"", f"-DRUN=anybit_{name}_run",
               *(f"-D{key}=ANYBIT_{name.upper()}_{key}" for key in ("INPUT_SIZE", "OUTPUT_SIZE"))]
    _call([*gcc, *defines, "-c", str(here / "start.c"), "-o", str(start)], folder)
    _call([*gcc, "--specs=rdimon.specs", "--specs=nano.specs", "-nostartfiles", "-T", str(here / "mps2.ld"), str(start),
           str(model), "-lm", "-o", str(elf)], folder)
    examples.contiguous().numpy().tofile(folder / "inputs")
    shown = _call(["qemu-system-arm", "-M", board, "-nographic", "-icount", "shift=0", "-semihosting-config",
                   "enable=on,target=native", "-kernel", str(elf)], folder)
    found = torch.from_numpy(np.fromfile(folder / "outputs", np.float32)).reshape(len(examples), *shape)
    return Emulated(found, [int(line) for line in shown.split()], sections(model, "arm-none-eabi-size"))


def _call(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, f"{command[0]}: {done.stderr or done.stdout}"
    return done.stdout
