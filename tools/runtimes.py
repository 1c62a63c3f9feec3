"""Run ONNX artifacts in released runtimes, each in an environment of its own: python -m tools.runtimes [NAME=VERSION …]

Every width and opset is exported once, from a ResNet-20 with step sizes measured on digits (`--keep`: of the last time). In
each environment, which has a runtime and numpy and nothing of anybit, the files are run on the same images;
results/devices/runtimes.csv says of each whether its outputs are those of the pinned ONNX Runtime, and docs/export.md has a
table of it.
"""

from __future__ import annotations

import csv
import itertools
import json
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np

from anybit.export.exporting import Exporter, Options
from anybit.export.verify import session
from anybit.quant.grid import Width

ROOT = Path(__file__).parents[1]
RESULTS, PAGE, HOME = ROOT / "results/devices/runtimes.csv", ROOT / "docs/export.md", ROOT / ".venv/runtimes"
START, END = "<!-- From results/devices/runtimes.csv by 'make test-runtimes' -->", "<!-- end -->"
RELEASES = ("onnxruntime=1.16.3", "onnxruntime=1.18.1", "onnxruntime=1.20.1", "onnxruntime=1.22.1", "onnxruntime=1.23.2",
            "onnxruntime=1.24.4", "onnxruntime=1.28.0", "onnxruntime=1.31.1", "openvino=2025.4.1", "openvino=2026.4.1")
ALLOWED = 0.1
"""Relative error of outputs. Another order of sums moves activations that lie on a rounding boundary, and twenty layers pass
such flips on; where nothing but weights is rounded, errors are near 1e-6."""
WIDTHS, OPSETS = ("W8", "W6", "W4", "W3", "W2", "WA8", "W4A8", "W2A8"), (18, 21, 25)
TITLES = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}
INSIDE = '''
import json, sys
import numpy as np
name, folder = sys.argv[1:]
x = np.load(folder + "/input.npy")
def run(path):
    if name == "openvino":
        import openvino
        in_float32 = {"INFERENCE_PRECISION_HINT": "f32"}  # on ARM it computes in 16 bits otherwise
        return next(iter(openvino.Core().compile_model(path, "CPU", in_float32)([x]).values()))
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, {"input": x})[0]
for file, expected in np.load(folder + "/expected.npz").items():
    try:
        error = float(np.linalg.norm(run(folder + "/" + file) - expected) / np.linalg.norm(expected - expected.mean(0)))
    except Exception as failure:
        error = str(failure)[:300]
    print(json.dumps([file, error]))
'''


def export(folder: Path) -> None:
    """Write every width at every opset, one batch of images, and what the pinned runtime makes of it."""
    sys.path.insert(0, str(ROOT))
    from tests.export.test_c import made

    subject = made("resnet20", "full")
    x = next(subject.test_batches(16)).numpy()  # type: ignore[union-attr]
    expected = {}
    for opset in OPSETS:
        exporter = Exporter(subject, folder / str(opset), Options(opset=opset, operands="uint8"))
        for width in WIDTHS:
            file = exporter.export(Width.parse(width)).file
            expected[f"{opset}/{file}"] = session(folder / str(opset) / file).run(None, {"input": x})[0]
    np.save(folder / "input.npy", x)
    np.savez(folder / "expected.npz", **expected)


def environment(name: str, version: str) -> Path:
    """Return the Python of an environment with this release and numpy alone."""
    folder = HOME / f"{name}-{version}"
    if not (folder / "ready").exists():
        venv.create(folder, clear=True)
        # Releases of before numpy 2 were built against 1.
        subprocess.run([sys.executable, "-m", "pip", "--python", folder / "bin/python", "install", "-qq",
                        "--disable-pip-version-check", f"{name}=={version}", "numpy<2"], check=True)
        (folder / "ready").touch()
    return folder / "bin/python"


def tried(name: str, version: str, folder: Path) -> list[dict[str, str]]:
    """Return a row per file: right, wrong, or does not load; and the relative error of its outputs."""
    done = subprocess.run([environment(name, version), "-I", "-c", INSIDE, name, folder], capture_output=True, text=True)
    rows, found = [], dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
    for opset in OPSETS:
        for width in WIDTHS:
            error = found.get(f"{opset}/model.{width.lower()}.onnx", "the runtime crashed")
            result = "does not load" if isinstance(error, str) else "right" if error <= ALLOWED else "wrong"
            rows.append({"runtime": name, "version": version, "opset": str(opset), "width": width, "result": result,
                         "error": "" if isinstance(error, str) else f"{error:.2g}"})
    return rows


def table() -> str:
    """Return rows of widths and opsets as Markdown: the oldest release of each runtime that is right."""
    with RESULTS.open() as file:
        rows = list(csv.DictReader(file))
    names = list(dict.fromkeys(row["runtime"] for row in rows))
    lines = [f"| `--opset` | widths | {' | '.join(f'{TITLES[name]}, from' for name in names)} |",
             f"|---|---|{'---|' * len(names)}"]
    for opset in OPSETS:
        alike = dict[tuple[str, ...], list[str]]()
        for width in WIDTHS:
            alike.setdefault(tuple(_oldest(rows, name, opset, width) for name in names), []).append(width)
        lines += [f"| {opset} | {', '.join(widths)} | {' | '.join(oldest)} |" for oldest, widths in alike.items()]
    return "\n".join(lines) + "\n"


def _oldest(rows: list[dict[str, str]], name: str, opset: int, width: str) -> str:
    """Return the first release from which on all are right."""
    found = [(row["version"], row["result"]) for row in rows
             if (row["runtime"], row["opset"], row["width"]) == (name, str(opset), width)]
    good = list(itertools.takewhile(lambda release: release[1] == "right", reversed(found)))
    return good[-1][0] if good else f"{found[-1][1]} in {found[-1][0]}"


def page(current: str) -> str:
    """Return the page with its table made anew."""
    before, _, rest = current.partition(START)
    return f"{before}{START}\n\n{table()}\n{END}{rest.partition(END)[2]}"


def main() -> None:
    folder = HOME / "files"
    if not (folder / "expected.npz").exists() or "--keep" not in sys.argv:
        export(folder)
    releases = [argument.split("=") for argument in sys.argv[1:] if "=" in argument] or [r.split("=") for r in RELEASES]
    rows = []
    for name, version in releases:
        print(f"{name} {version}", flush=True)
        rows += tried(name, version, folder)
    with RESULTS.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    PAGE.write_text(page(PAGE.read_text()))


if __name__ == "__main__":
    main()
