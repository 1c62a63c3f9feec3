"""What a lower width buys in C: flash, RAM, instructions on emulated Cortex-M4 and M7, time and accuracy on this machine.

    python -m benchmarks.cortex_m results/devices/cortex-m.csv --runs RUNS   # needs arm-none-eabi-gcc and qemu

RUNS holds a run per network; those that are missing are trained there by the commands below, shortly, since no figure but
the accuracy depends on the weights. On this machine an artifact runs on all test images (or the first --images) and must
score what the evaluation scores. In QEMU 8 images must give the host's outputs bit by bit, and where activations are
integers all images of the digits must get the host's answers. Instructions are not cycles. Rows that the file has are kept,
unless --again.
"""

from __future__ import annotations

import argparse
import csv
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anybit.export.c.export import CExporter
from anybit.export.c.host import run as run_on_host
from anybit.export.c.program import named
from anybit.export.reference import metric, reference
from anybit.export.subject import from_run
from anybit.inputs import called
from anybit.quant.grid import Width
from anybit.training.run import Run
from tests.export.cortex_m import emulated

WIDTHS = ("W8", "W4", "W3", "W2", "W8A8", "W4A8", "W2A8")
CORES = ("m4", "m7")
QUICK = ("evaluation.bits=[8,2]", 'evaluation.steps=["table"]', 'evaluation.sites=["W"]')
NETWORKS = {
    "lenet5-digits": ("carousel/digits", "rounds=60", "model.name=lenet5", "model.in_channels=1", "model.image_size=24",
                      "data.name=large_digits:large_digits", "server.lr=3e-3", "ranges.follow=false"),
    "resnet20-digits": ("carousel/digits", "rounds=60", "ranges.follow=false"),
    "mobile-digits": ("carousel/digits", "rounds=60", "model.name=mobile_digits:mobile_digits", "ranges.follow=false"),
    "lenet5-cifar10": ("carousel/cifar10-lenet5", "rounds=20", *QUICK),
    "resnet20-cifar10": ("carousel/cifar10-resnet20", "rounds=2", "cohort=2", *QUICK)}
"""{network: (recipe, settings)}."""
OWN = ("large_digits", "mobile_digits")
"""Modules of this folder that runs name."""
EXACT = 8
"""Images of which every bit is compared in QEMU."""
MANY = 400
"""The largest test set that runs in QEMU as a whole, where sums are integers; float takes ten times as long."""
VECTORS = {"aarch64": "-mcpu=native -ftree-vectorize -fvect-cost-model=dynamic",
           "x86_64": "-march=native -ftree-vectorize -fvect-cost-model=dynamic"}
"""{machine: flags that make the whole test set fast}; products and sums stay as they are."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--runs", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--only", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--widths", nargs="*", default=list(WIDTHS), choices=WIDTHS)
    parser.add_argument("--images", type=int, help="of the test set, on this machine; default: all")
    parser.add_argument("--again", action="store_true")
    given = parser.parse_args()
    here = str(Path(__file__).parent)
    sys.path.insert(0, here)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
    for network in given.only:
        path = given.runs / network
        if not path.exists():
            subprocess.run([sys.executable, "-m", "anybit", "run", *NETWORKS[network], "--path", str(path), "--quiet",
                            *(f"--import={module}" for module in OWN)], check=True)
        run = Run.load(path, trusted=list(OWN))
        exporter = CExporter(from_run(run), verify=False)
        for width in given.widths:
            rows = _known(given.out)
            if given.again or not any((row["network"], row["width"]) == (network, width) for row in rows):
                about = {"network": network, "rounds": run.config.rounds, "width": width}
                rows = [row for row in rows if (row["network"], row["width"]) != (network, width)]
                _write(given.out, [*rows, {**about, **measured(exporter, width, given.images)}])


def measured(exporter: CExporter, width: str, most: int | None) -> dict[str, Any]:
    """Export a width, run it here and there, and return the figures; stop where answers differ."""
    images = exporter.examples[:most]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"model.{width.lower()}.c"
        program, text = exporter.written(path, Width.parse(width))
        shape, sums = program.output.shape[1:], sum(layer.macs for layer in program.layers)
        spent = run_on_host(path, named(path), images[:64], shape, len(text.layers))
        with _compiled_with(VECTORS.get(platform.machine(), "")):
            results = run_on_host(path, named(path), images, shape).outputs
        assert torch.equal(results[:64], spent.outputs), f"{width}: the outputs of two builds differ"
        row = {"images": len(images), **_scores(exporter, Width.parse(width), images, results),
               "packed": sum(layer.weight_bytes for layer in program.layers), "constants": text.weight_bytes,
               "ram": text.ram_bytes, "macs": sums, "host_us": f"{sum(spent.microseconds):.0f}"}
        for core in CORES:
            chosen = images if "A" in width and len(images) <= MANY else images[:EXACT]
            found = emulated(path, chosen, shape, core, Path(folder))
            assert torch.equal(found.outputs[:EXACT], results[:EXACT]), f"{width}: the outputs on {core} are not the host's"
            assert torch.equal(found.outputs.argmax(1), results[:len(chosen)].argmax(1)), f"{width}: other answers on {core}"
            assert found.size is not None
            row |= {f"flash_{core}": found.size.flash, f"ram_{core}": found.size.ram,
                    f"instructions_{core}": max(found.instructions), f"emulated_{core}": len(chosen)}
        return row


def _scores(exporter: CExporter, width: Width, images: Tensor, results: Tensor) -> dict[str, str]:
    """Compare the metric of the artifact with that of the evaluation's model.

    They must be equal to two decimals, or rounding alone decides: then the evaluation in float64 makes other decisions than
    in float32, too, and half a point is allowed, as in every verification.
    """
    subject, model = exporter.subject, reference(exporter.subject, width)
    with torch.no_grad():
        expected = torch.cat([called(model, batch) for batch in torch.split(images, 250)])
    labels = subject.data.test.y[:len(images)]
    scores = [f"{float((outputs.argmax(1) == labels).float().mean() * 100):.2f}" for outputs in (results, expected)]
    assert len(images) < len(exporter.examples) or scores[1] == f"{metric(subject, expected):.2f}"
    changed = ""
    if scores[0] != scores[1]:
        with torch.no_grad():
            exact = torch.cat([called(model.double(), batch.double()) for batch in torch.split(images, 250)])
        changed = str(int((exact.argmax(1) != expected.argmax(1)).sum()))
        near = changed != "0" and abs(float(scores[0]) - float(scores[1])) <= 0.5
        assert near, f"{width}: {scores[0]} and not {scores[1]} %"
    return {"accuracy": scores[0], "evaluation": scores[1], "changed_by_float64": changed}


@contextmanager
def _compiled_with(flags: str) -> Iterator[None]:
    before = os.environ.get("CC")
    os.environ["CC"] = f"{before or 'cc'} {flags}"
    try:
        yield
    finally:
        os.environ.pop("CC") if before is None else os.environ.update(CC=before)


def _known(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write all rows, networks and widths in their order."""
    rows.sort(key=lambda row: (list(NETWORKS).index(row["network"]), WIDTHS.index(row["width"])))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[-1]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
