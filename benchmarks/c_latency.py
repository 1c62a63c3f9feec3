"""The C artifact beside ONNX Runtime on a processor of a server: one image, one thread, in turns.

    python -m benchmarks.c_latency write FOLDER --run RUN     # where anybit is installed
    python benchmarks/c_latency.py measure FOLDER OUT.csv     # needs numpy, onnxruntime and a C compiler

`write` exports the run as C at several widths and as float ONNX, with some test images. `measure` may happen on another
machine: it compiles every artifact for the instruction sets that the processor has, wants the same bits of all builds, and
times them in turns with ONNX Runtime on the float model.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

WIDTHS = ("W8A8", "W4A8", "W2A8", "W8", "W2")
IMAGES = 32
COMMON = ("-std=c99", "-ffp-contract=off", "-shared", "-fPIC")
BUILDS: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
    "x86_64": {"SSE2": ("sse2", ()), "AVX2": ("avx2", ("-mavx2", "-mfma")), "VNNI": ("avx512_vnni", ("-march=native",))},
    "aarch64": {"NEON": ("asimd", ()), "SDOT": ("asimddp", ("-mcpu=native",))},
}
"""{machine: {build: (the processor's flag it needs, the compiler's flags)}}."""
Call = Callable[[np.ndarray], np.ndarray]


def write(folder: Path, run: Path) -> None:
    """Export what `measure` needs."""
    from anybit.export.c.export import CExporter
    from anybit.export.onnx_model import OnnxExporter
    from anybit.export.subject import from_run
    from anybit.quant.grid import Width
    from anybit.training.run import Run

    folder.mkdir(parents=True, exist_ok=True)
    exporter = CExporter(from_run(Run.load(run)), verify=False)
    for width in WIDTHS:
        exporter.written(folder / f"{width.lower()}.c", Width.parse(width))
    np.save(folder / "images.npy", exporter.examples[:IMAGES].numpy())
    (folder / "fp32.onnx").write_bytes(OnnxExporter(exporter.subject).model(Width.parse("FP32")).proto.SerializeToString())


def measure(folder: Path, out: Path, turns: int) -> None:
    """Time every build of every width and the float model in turns, and write medians and ratios."""
    images = np.load(folder / "images.npy")
    float_model = _onnx(folder / "fp32.onnx")
    classes = float_model(images[:1]).shape[1]
    calls: dict[tuple[str, str], Call] = {("FP32", "ONNX Runtime"): float_model}
    for width in WIDTHS:
        builds = {build: _compiled(folder / f"{width.lower()}.c", build, flags, classes)
                  for build, (needs, flags) in BUILDS[platform.machine()].items() if needs in _features()}
        answers = {build: np.concatenate([call(image[None]) for image in images]) for build, call in builds.items()}
        first = next(iter(answers.values()))
        assert all(np.array_equal(first, found) for found in answers.values()), f"{width}: builds differ"
        calls |= {(width, build): call for build, call in builds.items()}
    times: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
    for turn in range(turns):
        for key, call in calls.items():
            image = images[turn % len(images)][None]
            call(image)
            started = time.perf_counter()
            call(image)
            times[key].append(time.perf_counter() - started)
    base = statistics.median(times["FP32", "ONNX Runtime"])
    medians = {key: statistics.median(spent) for key, spent in times.items()}
    rows = [(_processor(), *key, f"{median * 1e6:.0f}", f"{base / median:.2f}") for key, median in medians.items()]
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", newline="") as file:
        csv.writer(file).writerows([("processor", "width", "build", "us", "times_as_fast_as_float"), *rows])
    print(out.read_text(), end="")


def _onnx(path: Path) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda image: np.asarray(session.run(None, {name: image})[0])


def _compiled(source: Path, build: str, flags: tuple[str, ...], classes: int) -> Call:
    library = source.with_suffix(f".{build.lower()}.so")
    subprocess.run(["cc", "-O3", *COMMON, *flags, str(source), "-lm", "-o", str(library)], check=True)
    run = getattr(ctypes.CDLL(str(library)), f"anybit_{source.stem}_run")
    output = np.zeros((1, classes), np.float32)

    def call(image: np.ndarray) -> np.ndarray:
        assert run(image.ctypes.data_as(ctypes.c_void_p), output.ctypes.data_as(ctypes.c_void_p)) == 0
        return output.copy()

    return call


def _features() -> set[str]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(set(line.split(":")[1].split()) for line in lines if line.lower().startswith(("flags", "features")))


def _processor() -> str:
    lines = subprocess.run(["lscpu"], capture_output=True, text=True, check=True).stdout.splitlines()
    return next(line.split(":")[1].strip() for line in lines if line.startswith("Model name"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    writing = verbs.add_parser("write")
    writing.add_argument("folder", type=Path)
    writing.add_argument("--run", type=Path, required=True)
    measuring = verbs.add_parser("measure")
    measuring.add_argument("folder", type=Path)
    measuring.add_argument("out", type=Path)
    measuring.add_argument("--turns", type=int, default=200)
    given = parser.parse_args()
    if given.verb == "write":
        write(given.folder, given.run)
    else:
        measure(given.folder, given.out, given.turns)


if __name__ == "__main__":
    main()
