"""WebAssembly: the same C compiled for browsers, run in node on the test set and compared with the host's."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template

import numpy as np
import torch
from torch import Tensor

from anybit.errors import MissingProgram, ModelError
from anybit.export.c.export import CExporter
from anybit.export.c.host import call
from anybit.export.c.host import run as run_on_host
from anybit.export.c.program import named
from anybit.export.reference import reference
from anybit.export.verify import Verdict, verdict
from anybit.quant.grid import Width

PROGRAMS = ("clang", "wasm-ld", "node")
FLAGS = ("--target=wasm32", "-O2", "-std=c99", "-ffp-contract=off", "-fno-math-errno", "-mllvm", "-inline-threshold=30",
         "-Wall", "-Wextra", "-Werror", "-pedantic")
"""Few calls inline: kernels are called once per layer, and copies of them would be downloaded."""
SIMD = ("-msimd128",)
LINKED = ("--target=wasm32", "-nostdlib", "-Wl,--no-entry", "-Wl,--gc-sections", "-Wl,--strip-all",
          "-Wl,-z,stack-size=32768")
EXACT = {"sqrtf"}
"""Functions of libm that are instructions of WebAssembly: rounded correctly there and on the host."""


@dataclass(frozen=True)
class Module:
    """A width compiled for browsers, and what it gave on the test set."""

    width: Width
    content: bytes
    verdict: Verdict
    exact: bool
    """All outputs are the host's, bit by bit; else, with functions like expf, they are judged as those of any artifact."""


def check_programs() -> None:
    """Raise an error if a program that compiles or runs WebAssembly is missing."""
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        raise MissingProgram(f"--web compiles to WebAssembly and runs the result, but {', '.join(missing)} "
                             f"{'is' if len(missing) == 1 else 'are'} not installed: apt-get install "
                             "--no-install-recommends clang lld nodejs, or brew install llvm lld node")


def module(exporter: CExporter, width: Width) -> Module:
    """Compile a width of a subject and judge what it gives; nothing is left on disk."""
    subject = exporter.subject
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"model.{str(width).lower()}.c"
        program, text = exporter.written(path, width)
        content, shape = compiled(path), program.output.shape[1:]
        result, here = run(content, exporter.examples, shape), run_on_host(path, named(path), exporter.examples, shape)[0]
    plain, exact = reference(subject, width), set(text.functions) <= EXACT
    judged = verdict(subject, width, plain, plain, result)
    if exact and not torch.equal(result, here):
        judged = judged._replace(problem="its outputs in WebAssembly are not those of the C compiled on this machine")
    return Module(width, content, judged, exact)


def compiled(path: Path, simd: bool = True) -> bytes:
    """Compile a C artifact; its exports are input and output (addresses), their sizes, run and memory."""
    check_programs()
    with tempfile.TemporaryDirectory() as folder:
        here, name = Path(folder), named(path)
        for file in ("string.h", "math.h", "libc.c", "libm.c"):
            (here / file).write_text(_resource(file), encoding="ascii")
        (here / "main.c").write_text(Template(_resource("main.c")).substitute(
            header=path.with_suffix(".h").name, name=name, NAME=name.upper()), encoding="ascii")
        sources = {"model": path, **{part: here / f"{part}.c" for part in ("main", "libc", "libm")}}
        for part, source in sources.items():
            flags = (*FLAGS, *(SIMD if simd else ()), *(("-fno-builtin",) if part == "libc" else ()))
            call(["clang", *flags, f"-I{folder}", f"-I{path.parent}", "-c", str(source), "-o", str(here / f"{part}.o")])
        call(["clang", *LINKED, *(str(here / f"{part}.o") for part in sources), "-o", str(here / "model.wasm")])
        return (here / "model.wasm").read_bytes()


def run(content: bytes, examples: Tensor, outputs: tuple[int, ...]) -> Tensor:
    """Run a module in node on all examples."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        (here / "model.wasm").write_bytes(content)
        (here / "run.mjs").write_text(_resource("run.mjs"), encoding="utf-8")
        np.ascontiguousarray(examples.numpy(), np.float32).tofile(here / "inputs")
        call(["node", *(str(here / name) for name in ("run.mjs", "model.wasm", "inputs", "outputs"))])
        found = np.fromfile(here / "outputs", np.float32)
    if found.size != len(examples) * int(np.prod(outputs)):
        raise ModelError(f"the WebAssembly module gave {found.size} numbers for {len(examples)} examples")
    return torch.from_numpy(found.reshape(len(examples), *outputs))


def _resource(name: str) -> str:
    return files("anybit.export.c").joinpath("wasm", name).read_text(encoding="utf-8")
