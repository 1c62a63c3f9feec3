"""The tables of docs/export.md on what a lower width buys, from the benchmarks' files: python -m benchmarks.device_tables"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"
WIDTHS = ("FP32", "W8", "W4", "W3", "W2", "W8A8", "W4A8", "W2A8")
NAMES = {"lenet5-digits": "LeNet-5, digits 24×24", "resnet20-digits": "ResNet-20, digits 8×8",
         "mobile-digits": "MobileNet-like, digits 8×8", "lenet5-cifar10": "LeNet-5, CIFAR-10",
         "resnet20-cifar10": "ResNet-20, CIFAR-10"}
NONE = "–"


def runtimes() -> list[str]:
    """Return a table of ResNet-20 on the digits, one row per width, with all runtimes beside each other."""
    chips = {row["width"]: row for row in _rows("cortex-m.csv") if row["network"] == "resnet20-digits"}
    pages = {row["width"]: row for row in _rows("wasm.csv")}
    onnx, other = (_artifacts(name) for name in ("resnet20-digits8", "resnet20-fleet"))
    lines = []
    for width in WIDTHS:
        chip, page, file, program = chips.get(width), pages.get(width), onnx.get(width), other.get(f"{width} executorch")
        lines.append([width, *([_bytes(chip["flash_m7"]), _bytes(chip["ram_m7"]), _millions(chip["instructions_m7"])]
                               if chip else [NONE] * 3),
                      *([_bytes(page["bytes_simd"]), f"{float(page['ms_simd']):.2f}"] if page else [NONE] * 2),
                      *([_bytes(file["bytes"]), f"{file['peak_mib']:.0f}", f"{file['ms']:.2f}"] if file else [NONE] * 3),
                      *([_bytes(program["bytes"]), f"{program['ms']:.2f}"] if program else [NONE] * 2)])
    return _table(["width", "C on Cortex-M7: flash", "RAM", "million instructions", "WebAssembly: download", "ms",
                   "ONNX Runtime: file", "peak MiB", "ms", "ExecuTorch: file", "ms"], lines)


def networks() -> list[str]:
    """Return a table of C artifacts with integer activations, with what they take relative to W8A8."""
    rows = [row for row in _rows("cortex-m.csv") if row["width"].endswith("A8")]
    whole = {row["network"]: row for row in rows if row["width"] == "W8A8"}
    lines = []
    for row in rows:
        base = whole[row["network"]]
        lines.append([NAMES[row["network"]], row["width"], _bytes(row["packed"]), _ratio(row, base, "packed"),
                      _bytes(row["flash_m7"]), _bytes(row["ram_m7"]),
                      _millions(row["instructions_m4"]), _ratio(row, base, "instructions_m4"),
                      _millions(row["instructions_m7"]), _ratio(row, base, "instructions_m7"), row["accuracy"]])
    return _table(["network", "width", "packed weights", "of W8A8", "flash", "RAM", "M4, million instructions", "of W8A8",
                   "M7, million instructions", "of W8A8", "accuracy"], lines)


def _rows(name: str) -> list[dict[str, str]]:
    with (RESULTS / "devices" / name).open(newline="") as file:
        return list(csv.DictReader(file))


def _artifacts(name: str) -> dict[str, dict[str, Any]]:
    """Return {width, or width and runtime where it is not ONNX: bytes, peak MiB and ms} of an export's report."""
    report = json.loads((RESULTS / "export" / f"{name}.json").read_text(encoding="utf-8"))
    bench, out = report.get("bench", {}), dict[str, dict[str, Any]]()
    if float_file := bench.get("fp32.onnx"):
        first = report["artifacts"][0]
        out["FP32"] = {"bytes": first["fp32_bytes"], "peak_mib": float_file["peak_mib"],
                       "ms": float_file["batches"]["1"]["median"]}
    for artifact in report["artifacts"]:
        width = "W8A8" if artifact["width"] == "WA8" else artifact["width"]
        cost = bench.get(artifact["file"])
        key = width if artifact["runtime"] == "onnx" else f"{width} {artifact['runtime']}"
        out[key] = {"bytes": artifact["bytes"], "peak_mib": cost["peak_mib"] if cost else 0,
                    "ms": cost["batches"]["1"]["median"] if cost else (artifact["latency"] or {}).get("median")}
    return out


def _bytes(value: Any) -> str:
    return f"{int(value):,}"


def _millions(value: str) -> str:
    return f"{int(value) / 1e6:.3g}"


def _ratio(row: dict[str, str], base: dict[str, str], key: str) -> str:
    return f"{int(row[key]) / int(base[key]):.2f}"


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    lines = ["| " + " | ".join(row) + " |" for row in (head, *rows)]
    return [lines[0], "|" + "---|" * len(head), *lines[1:]]


if __name__ == "__main__":
    print("\n".join([*runtimes(), "", *networks()]))
