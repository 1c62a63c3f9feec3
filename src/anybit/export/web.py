"""A page that runs a model in a browser at many widths: a static folder, with the C artifacts compiled to WebAssembly."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anybit.environment import version
from anybit.errors import ConfigError, ModelError, Rejected
from anybit.export.c.export import CExporter
from anybit.export.c.webassembly import Module, check_programs, module
from anybit.export.exporting import where
from anybit.export.subject import Subject
from anybit.federated.metrics import meaning
from anybit.files.holding import own_folder
from anybit.files.writing import write_bytes, writing
from anybit.inputs import described
from anybit.quant.grid import FLOAT, Width

PAGE = ("page.css", "page.js", "pixels.js")
SAMPLE_BYTES = 30_000
"""Of all test images in the page; at least one, and at most SAMPLES."""
SAMPLES = 20
DRAWN = "digits"
"""The data set whose images can be drawn: how they were made of pen strokes is known."""


def check_web(subject: Subject) -> None:
    """Raise an error if a page cannot show this model, or if there is nothing to compile it with."""
    images, targets = subject.images, subject.data.test.y
    if not isinstance(images, Tensor) or images.dim() != 4 or images.shape[1] not in (1, 3):
        raise ConfigError("--web shows images of 1 or 3 channels, but the inputs have shape "
                          f"{tuple(images.shape[1:]) if isinstance(images, Tensor) else described(images)}")
    if targets.is_floating_point() or targets.dim() != 1:
        raise ConfigError("--web shows the class of an image, but the targets are no labels: leave it out")
    check_programs()


def write_web(subject: Subject, folder: Path, widths: Iterable[Width]) -> Path:
    """Write the page into a folder and return it; every module in it gave on the test set what the host's C gives."""
    check_web(subject)
    exporter, floats = CExporter(subject), Width(FLOAT, FLOAT)
    try:
        modules = [module(exporter, width) for width in dict.fromkeys((*widths, floats))]
    except ModelError as error:
        raise ModelError(f"--web runs the C export of a model: {error}") from error
    if problems := [f"{m.width}: {m.verdict.problem}" for m in modules if m.verdict.problem]:
        raise Rejected(f"--web: no page was written: {'; '.join(problems)}")
    modules.sort(key=lambda m: len(m.content))
    facts = json.dumps(_facts(subject, modules), ensure_ascii=False).replace("<", "\\u003c")
    page = {name: _resource(name) for name in PAGE}
    page["index.html"] = _resource("index.html").replace(b"FACTS", facts.encode())
    with writing(own_folder(folder), where()):
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("model.*.wasm"):
            old.unlink()
        for name, content in {**page, **{_file(m): m.content for m in modules}}.items():
            write_bytes(folder / name, content)
    return folder


def _facts(subject: Subject, modules: Iterable[Module]) -> dict[str, Any]:
    """Return what the page knows: the modules in the order of their sizes, the pipeline and some test images."""
    pipeline, metric, test = subject.data.pipeline, meaning(subject.evaluator.metric), subject.data.test
    x, (channels, rows, columns) = test.images, pipeline(test.images[:1]).shape[1:]
    if x.dtype == torch.uint8:
        top, left = ((side - wanted) // 2 for side, wanted in zip(x.shape[2:], (rows, columns), strict=True))
        x = x[:, :, top:top + rows, left:left + columns]
    chosen = _one_of_each(test.y, max(1, min(SAMPLES, SAMPLE_BYTES // (x[0].numel() * x.element_size()))))
    x = x[chosen].contiguous() if x.dtype == torch.uint8 else pipeline(x[chosen]).contiguous()
    return {
        "title": subject.title, "version": version("anybit") or "", "test_images": len(test), "metric": metric.head,
        "models": [{"file": _file(m), "width": str(m.width), "bytes": len(m.content), "float": m.width.weights == FLOAT,
                    "metric": f"{metric.text(m.verdict.artifact)}{' %' if metric.unit == '%' else ''}"} for m in modules],
        "shape": [channels, rows, columns], "mean": list(pipeline.mean or [0.0] * channels),
        "std": list(pipeline.std or [1.0] * channels), "classes": list(subject.data.class_names),
        "drawn": subject.config is not None and subject.config.data.name == DRAWN,
        "samples": {"type": "uint8" if x.dtype == torch.uint8 else "float32", "labels": test.y[chosen].tolist(),
                    "data": base64.b64encode(x.numpy().tobytes()).decode()}}


def _one_of_each(labels: Tensor, count: int) -> Tensor:
    """Return the numbers of the first example of each class, then of the second of each, and so on.

    >>> _one_of_each(torch.tensor([1, 1, 0, 1, 0]), 4).tolist()
    [2, 0, 4, 1]
    """
    seen: dict[int, int] = {}
    turns = []
    for i, label in enumerate(labels.tolist()):
        turns.append((seen.setdefault(label, 0), label, i))
        seen[label] += 1
    return torch.tensor([i for _, _, i in sorted(turns)[:count]])


def _file(module: Module) -> str:
    return f"model.{str(module.width).lower()}.wasm"


def _resource(name: str) -> bytes:
    return files("anybit.export").joinpath("page", name).read_bytes()
