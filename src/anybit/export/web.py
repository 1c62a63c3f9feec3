"""The artifacts in a browser: a static folder with a page, onnxruntime-web and a sample of the test set.

The user's own npm fetches onnxruntime-web.
"""

from __future__ import annotations

import importlib.resources
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from anybit.errors import ConfigError, RunError
from anybit.export.artifact import Artifact
from anybit.export.exporting import WHERE, Exporter
from anybit.files.holding import own_folder
from anybit.files.reading import read_bytes
from anybit.files.writing import write_bytes, write_json, writing
from anybit.inputs import described

PACKAGE = "onnxruntime-web@1.30.0"
ASSETS = ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
SAMPLES = 200
PAGE = ("index.html", "page.css", "page.js")


def write_web(exporter: Exporter, artifacts: Sequence[Artifact]) -> Path:
    """Write `web/` beside the artifacts and return the folder."""
    shown = [a for a in artifacts if a.runtime == "onnx" and not a.rejected]
    if not shown:
        raise ConfigError("--web shows ONNX artifacts, but there is none: add --runtime onnx")
    images = exporter.subject.images
    if not isinstance(images, Tensor) or images.dim() != 4 or images.shape[1] not in (1, 3):
        raise ConfigError("--web draws images of 1 or 3 channels, but the inputs have shape "
                          f"{tuple(images.shape[1:]) if isinstance(images, Tensor) else described(images)}")
    targets = exporter.subject.data.test.y
    if targets.is_floating_point() or targets.dim() != 1:
        raise ConfigError("--web shows the class of an image, but the targets are no labels: leave it out")
    folder, runtime = own_folder(exporter.folder / "web"), fetch_runtime()
    with writing(folder, WHERE):
        own_folder(folder / "ort").mkdir(parents=True, exist_ok=True)
        for name, content in runtime.items():
            write_bytes(folder / "ort" / name, content)
        for name in PAGE:
            write_bytes(folder / name, importlib.resources.files("anybit.export").joinpath("page", name).read_bytes())
        for artifact in shown:
            write_bytes(folder / artifact.file, read_bytes(exporter.folder / artifact.file))
        _write_samples(folder, exporter, shown)
    return folder


def _write_samples(folder: Path, exporter: Exporter, artifacts: Sequence[Artifact]) -> None:
    """Write samples.bin, the model's inputs as float32, and samples.json, the facts for the page."""
    subject, pipeline = exporter.subject, exporter.subject.data.pipeline
    x = pipeline(subject.data.test.images[:SAMPLES]).numpy()
    write_bytes(folder / "samples.bin", np.ascontiguousarray(x, "<f4").tobytes())
    models = [{"file": a.file, "width": a.width, "bytes": a.bytes, "metric": a.verdict.artifact} for a in artifacts]
    write_json(folder / "samples.json", {
        "title": subject.title, "models": models, "fp32_bytes": exporter.fp32.stat().st_size,
        "shape": list(x.shape[1:]), "mean": list(pipeline.mean or [0.0] * x.shape[1]),
        "std": list(pipeline.std or [1.0] * x.shape[1]),
        "classes": list(subject.data.class_names), "labels": subject.data.test.y[:SAMPLES].tolist()})


def fetch_runtime() -> dict[str, bytes]:
    """Fetch the files of onnxruntime-web for the page from its npm package."""
    npm = shutil.which("npm")
    if npm is None:
        raise ConfigError(f"--web fetches {PACKAGE} with npm, which is not installed: install Node.js")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([npm, "pack", PACKAGE, "--silent"], cwd=folder, capture_output=True, text=True, check=False)
        archives = list(Path(folder).glob("*.tgz"))
        if done.returncode or not archives:
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            raise RunError(f"npm could not fetch {PACKAGE} ({last}): is its registry reachable?")
        with tarfile.open(archives[0]) as archive:
            return {name: _member(archive, f"package/dist/{name}") for name in ASSETS}


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name) if name in archive.getnames() else None
    if file is None:
        raise RunError(f"{PACKAGE} has no {name}")
    return file.read()
