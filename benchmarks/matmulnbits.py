"""Latency, load time and memory of linear layers as MatMulNBits, beside float32 and weights that are unpacked at load.

    python -m benchmarks.matmulnbits results/devices/matmulnbits.csv

A multilayer perceptron, 64 → SIZE → SIZE → 10, at batch 1 and 32, one thread, calls in turns; memory is the peak of load and
inference beyond that of the runtime without a model. Weights are untrained, as no figure here depends on them.
"""

from __future__ import annotations

import argparse
import csv
import shutil
import tempfile
from pathlib import Path

from torch import nn

from anybit.export.bench import costs
from anybit.export.exporting import Exporter, Operators, Options
from anybit.quant.grid import Width
from anybit.quant.sites import SiteOptions
from tests.export.test_c import subject_of

FILES: tuple[tuple[str, Operators], ...] = (
    ("FP32", "standard"), ("W8", "standard"), ("WA8", "standard"), ("W4", "standard"), ("W4", "matmulnbits"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1024, 2048])
    given = parser.parse_args()
    rows = [row for size in given.sizes for row in measured(size)]
    with given.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def measured(size: int) -> list[dict[str, object]]:
    """Export the network in every way and return a row of figures for each."""
    layers = nn.Linear(64, size), nn.ReLU(), nn.Linear(size, size), nn.ReLU(), nn.Linear(size, 10)
    subject = subject_of(nn.Sequential(nn.Flatten(), *layers), SiteOptions())
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for width, operators in FILES:
            exporter = Exporter(subject, Path(folder) / operators, Options(operators=operators))
            artifact = exporter.export(Width.parse(width))
            if artifact.rejected:
                raise SystemExit(f"{width}, {operators}: {artifact.verdict.problem}")
            paths.append(Path(folder) / f"{width}.{operators}.onnx")
            shutil.copy(exporter.folder / artifact.file, paths[-1])
        found = costs(paths)
        return [{"size": size, "width": width, "operators": operators, "bytes": path.stat().st_size,
                 "load_ms": round(cost.load_ms, 1), "peak_mib": round(cost.peak_mib, 1),
                 **{f"batch_{n}_ms": round(spent.median, 3) for n, spent in cost.batches.items()}}
                for (width, operators), path in zip(FILES, paths, strict=True) for cost in [found[path.name]]]


if __name__ == "__main__":
    main()
