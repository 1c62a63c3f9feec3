"""Size and instructions of C artifacts on an emulated Cortex-M: ResNet-20 on 8×8 images, as in the tests, two of them.

    python -m benchmarks.cortex_m results/devices/cortex-m7.csv           # needs gcc-arm-none-eabi, newlib, qemu-system-arm

Instructions are counted by QEMU; they are not cycles. Weights are untrained, as no figure here depends on them.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from pathlib import Path

import torch

from anybit.export.c.export import CExporter
from anybit.export.c.host import run as run_on_host
from anybit.quant.grid import Width
from tests.export.cortex_m import emulated
from tests.export.test_c import made

WIDTHS = ("FP32", "W8", "W4", "W3", "W2", "W8A8", "W4A8", "W3A8", "W2A8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--core", default="m7", choices=("m3", "m4", "m7"))
    parser.add_argument("--network", default="resnet20", choices=("lenet", "mlp", "mobile", "resnet20"))
    given = parser.parse_args()
    exporter = CExporter(made(given.network, "full"), verify=False)
    rows = [measured(exporter, width, given.core) for width in WIDTHS]
    given.out.parent.mkdir(parents=True, exist_ok=True)
    with given.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def measured(exporter: CExporter, width: str, core: str) -> dict[str, object]:
    """Export a width, run two images there and here, and return the figures; every bit must be the host's."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"model.{width.lower()}.c"
        artifact, images = exporter.export(path, Width.parse(width)), exporter.examples[:2]
        found = emulated(path, images, (10,), core, Path(folder))
        here = run_on_host(path, path.stem.replace(".", "_"), images, (10,))[0]
        if not torch.equal(found.outputs, here):
            raise SystemExit(f"{width}: the outputs on {core} are not the host's")
        assert found.size is not None
        assert artifact.footprint is not None
        return {"width": width, "core": core, "flash": found.size.flash, "constants": artifact.footprint.weights,
                "ram": artifact.footprint.ram, "macs": sum(artifact.footprint.macs.values()),
                "instructions": max(found.instructions)}


if __name__ == "__main__":
    main()
