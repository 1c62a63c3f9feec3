"""Size and time of C artifacts as WebAssembly: ResNet-20 on 8×8 images, as in the tests, with SIMD instructions and without.

    python -m benchmarks.wasm results/devices/wasm.csv           # needs clang, lld and node

Milliseconds are processor time per image in node, medians of turns in which both builds of all widths take part. Weights are
untrained, as no figure here depends on them; all outputs on the test set must be those of the C on this machine, bit by bit.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import tempfile
from pathlib import Path

import torch

from anybit.export.c.export import CExporter
from anybit.export.c.host import run as run_on_host
from anybit.export.c.program import named
from anybit.export.c.webassembly import compiled
from anybit.export.c.webassembly import run as run_in_node
from anybit.quant.grid import Width
from tests.export.test_c import made

WIDTHS = ("FP32", "W8", "W6", "W4", "W3", "W2", "W8A8", "W4A8", "W2A8")
BUILDS = {"portable": False, "simd": True}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--turns", type=int, default=31)
    given = parser.parse_args()
    exporter = CExporter(made("resnet20", "full"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = [file for width in WIDTHS for file in built(exporter, width, folder)]
        timed = subprocess.run(["node", "--no-liftoff", str(Path(__file__).with_suffix(".mjs")), str(given.turns),
                                *map(str, files)], capture_output=True, text=True, check=True).stdout
        sizes = [file.stat().st_size for file in files]
    times = json.loads(timed)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    with given.out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["width", "bytes_portable", "bytes_simd", "ms_portable", "ms_simd", "ratio"])
        for i, width in enumerate(WIDTHS):
            portable, simd = times[2 * i:2 * i + 2]
            writer.writerow([width, *sizes[2 * i:2 * i + 2], f"{portable:.3f}", f"{simd:.3f}", f"{portable / simd:.2f}"])


def built(exporter: CExporter, width: str, folder: Path) -> list[Path]:
    """Compile a width in both ways, compare what they give with the host, and return the files."""
    path = folder / f"model.{width.lower()}.c"
    program, _ = exporter.written(path, Width.parse(width))
    here = run_on_host(path, named(path), exporter.examples, program.output.shape[1:])[0]
    files = []
    for build, simd in BUILDS.items():
        files.append(folder / f"{width}.{build}.wasm")
        files[-1].write_bytes(compiled(path, simd))
        if not torch.equal(run_in_node(files[-1].read_bytes(), exporter.examples, program.output.shape[1:]), here):
            raise SystemExit(f"{width}, {build}: the outputs are not the host's")
    return files


if __name__ == "__main__":
    main()
