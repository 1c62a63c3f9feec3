"""The model card: Markdown with Hugging Face metadata, beside the artifacts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor

from anybit.config import OBJECT
from anybit.environment import environment
from anybit.export.artifact import Artifact, LayerCost, no_smaller
from anybit.export.subject import Subject
from anybit.federated.metrics import Meaning, classifies, meaning
from anybit.inputs import Inputs, called, selected, shapes
from anybit.quant.sites import float_parameters


def model_card(subject: Subject, artifacts: Sequence[Artifact], licence: str = "other", refused: Sequence[str] = ()) -> str:
    """Write the card of a set of artifacts. refused: why others do not exist."""
    config, data, pipeline = subject.config, subject.data, subject.data.pipeline
    kept = [a for a in artifacts if not a.rejected]
    metric, images = meaning(subject.evaluator.metric), isinstance(subject.images, Tensor) and subject.images.dim() == 4
    with torch.no_grad():
        result = selected(called(subject.model, next(subject.test_batches(1))), subject.output)
    kinds = {2: "image-classification", 4: "image-segmentation"} if classifies(result, data.test.y[:1]) else {}
    tag = kinds.get(result.dim())
    scaled = ", scaled to [0, 1] (bytes / 255)" if subject.from_bytes else ""
    normalization = scaled if pipeline.mean is None else \
        f", scaled to [0, 1], then (x − {_numbers(pipeline.mean)})/{_numbers(pipeline.std or ())} per channel"
    head = files("anybit.export").joinpath("card.md").read_text(encoding="utf-8").format(
        licence=licence, variant=subject.evaluator.variant.name,
        data="own data" if config is None or config.data.name == OBJECT else config.data.name,
        metric=metric.name, head=metric.head + (", lower is better" if metric.better == "lower" else ""),
        title=subject.title,
        widths=", ".join(dict.fromkeys(a.width for a in kept)) or "no width",
        trained=_code(subject.environment), exported=_code(environment()),
        rounds=config.rounds if config else "?", clients=config.cohort if config else "?",
        seed=config.seed if config else "?", train=len(data.train), test=len(data.test),
        steps=subject.steps, shape=_shape(subject.images), normalization=normalization,
        images=" images" if images else "", output=_output(subject, result),
        pipeline_tag=f"pipeline_tag: {tag}\n" if images and tag else "")
    return head + "\n".join(_row(a, metric) for a in kept) + "\n" + _layers(kept) + _notes(subject, kept, refused)


def _output(subject: Subject, result: Tensor) -> str:
    """Say what the model gives for one example."""
    names = subject.data.class_names
    if not classifies(result, subject.data.test.y[:1]):
        return f"numbers (batch{''.join(f', {n}' for n in result.shape[1:])})"
    known = f" ({', '.join(names)})" if 0 < len(names) <= 20 else ""
    return f"one score per class{known}" + (" and position" if result.dim() > 2 else "")


def _row(a: Artifact, metric: Meaning) -> str:
    stored = ", ".join(dict.fromkeys(a.storage.values())) or "float32"
    return (f"| `{a.file}` | {a.width} | {a.runtime} | {a.bytes:,} | {a.bytes / a.fp32_bytes:.2f} "
            f"| {metric.text(a.verdict.artifact) if a.verified else 'not run'} | {metric.text(a.verdict.evaluation)} "
            f"| {f'{a.verdict.agreement:.4f}' if a.verified else '–'} | {stored} |")


def _layers(artifacts: Sequence[Artifact]) -> str:
    """Write a table per C artifact: its layers with weights, and all others in one row."""
    out = ""
    for a in artifacts:
        costs = a.footprint.layers if a.footprint else []
        whole = sum(c.microseconds or 0 for c in costs)
        rest = [c for c in costs if not c.macs]
        others = LayerCost("all others", 0, max((c.ram for c in rest), default=0), 0,
                           sum(c.microseconds or 0 for c in rest) if whole else None)
        rows = [f"| {c.name} | {c.weights:,} | {c.ram:,} | {c.macs:,} | " +
                ("– | – |" if c.microseconds is None else f"{c.microseconds:,.1f} | {c.microseconds / (whole or 1):.0%} |")
                for c in (*(c for c in costs if c.macs), others)]
        head = (f"\n## Layers of `{a.file}`\n", "| layer | weights, bytes | RAM, bytes | multiply-accumulates | µs on the "
                "exporting machine | of all |", "|---|---|---|---|---|---|")
        out += "\n".join((*head, *rows, "")) if costs else ""
    return out


def _notes(subject: Subject, artifacts: Sequence[Artifact], refused: Sequence[str]) -> str:
    lines = [f"- Stays in float: {_in_float(subject)}.", *(f"- {why}." for why in refused)]
    lines += [f"- Differential privacy of the training: {subject.privacy}."] if subject.privacy else []
    lines += [f"- {a.width}: added beyond training: {', '.join(a.added)}." for a in artifacts if a.added]
    lines += [f"- {a.width}: layer `{layer}` is computed in float: {why}."
              for a in artifacts for layer, why in a.in_float.items()]
    lines += [f"- {a.warning}." for a in artifacts if a.warning]
    lines += [f"- {a.width} is short for W{a.width[2:]}A{a.width[2:]}: weights and activations in {a.width[2:]} bits."
              for a in artifacts if a.width.startswith("WA")]
    lines += [f"- {words}." for words in no_smaller(artifacts)]
    lines += [f"- `{a.file}` needs ONNX Runtime {a.minimum_onnxruntime} or newer." for a in artifacts
              if a.minimum_onnxruntime]
    lines += [f"- `{a.file}`: {words}." for a in artifacts for words in a.known_wrong]
    lines += [f"- `{a.file}` was **not verified**: it was written and never compiled or run." for a in artifacts
              if not a.verified]
    lines += [f"- `{a.file}`, with {', '.join(f'`{n}`' for n in a.files)}: {f.weights:,} bytes of constants, {f.ram:,} "
              f"bytes of static RAM, {sum(f.macs.values()):,} multiply-accumulates per example"
              f"{f'; {f.flash:,} bytes of flash as compiled here' if f.flash else ''}."
              for a in artifacts if (f := a.footprint)]
    lines.append("- Few bits save storage and download; a runtime that unpacks weights at load holds them in memory as it "
                 "computes, in float32 or 8 bits.")
    return "\n## Notes\n\n" + "\n".join(dict.fromkeys(lines)) + "\n"


def _in_float(subject: Subject) -> str:
    """Name the largest parameters that no width quantizes, and what all of them take."""
    sizes = float_parameters(subject.model, subject.evaluator.sites)
    largest = sorted(sizes, key=lambda name: -sizes[name])[:3]
    more = f" and {len(sizes) - len(largest)} more" if len(sizes) > len(largest) else ""
    return f"{sum(sizes.values()) / 1e3:,.1f} KB ({', '.join(f'`{n}`' for n in largest)}{more})" if sizes else "nothing"


def _shape(inputs: Inputs) -> str:
    """Write '3, 32, 32', or 'ids: 16; mask: 16'."""
    words = {name: ", ".join(map(str, shape)) for name, shape in shapes(inputs).items()}
    return words["input"] if isinstance(inputs, Tensor) else "; ".join(f"{name}: {text}" for name, text in words.items())


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{v:.4g}" for v in values)


def _code(environment: Mapping[str, Any]) -> str:
    # Training and export each get theirs: the anybit that exports may be years younger.
    if "anybit" not in environment:
        return "an unknown version of anybit"
    commit = environment.get("commit")
    return f"anybit {environment['anybit']}" + (f" (commit {commit})" if commit else "")
