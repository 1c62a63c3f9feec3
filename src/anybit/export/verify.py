"""Verification: the artifact in its runtime, on the run's test set, against the fake-quant model."""

from __future__ import annotations

import functools
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from anybit.export.extras import need
from anybit.export.graph import DEFAULT_OPSET
from anybit.export.reference import agreement, metric, outputs
from anybit.export.subject import Subject

TOLERANCE = 0.5
"""Points of the metric by which an artifact may differ from the fake-quant evaluation."""


class Verdict(NamedTuple):
    """What was measured, and what is wrong (empty: nothing)."""

    evaluation: float
    """The metric of the fake-quant model as in training."""
    reference: float
    """… with what the export added."""
    artifact: float
    """… of the artifact in its runtime."""
    agreement: float
    """The share of the test set on which artifact and reference choose the same class."""
    control: float
    """The same share between the reference in float32 and in float64: what rounding alone changes."""
    problem: str


def verdict(subject: Subject, plain: torch.nn.Module, reference: torch.nn.Module, result: Tensor,
            problem: str = "") -> Verdict:
    """Compare what an artifact put out on the test set with the fake-quant models."""
    expected = outputs(reference, subject)
    evaluated = metric(subject, outputs(plain, subject))
    wanted, measured = metric(subject, expected), metric(subject, result)
    control = agreement(expected, outputs(reference, subject, torch.float64))
    if not abs(measured - wanted) <= TOLERANCE:
        problem = f"its metric is {measured:.2f}, the fake-quant evaluation's {wanted:.2f}: more than {TOLERANCE} apart"
    return Verdict(evaluated, wanted, measured, agreement(result, expected), control, problem)


def session(path: Path, threads: int = 1, optimized: Path | None = None) -> Any:
    """An ONNX Runtime session on the CPU."""
    runtime = need("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 3
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
    return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


@functools.cache
def int8_is_exact() -> bool:
    """Whether this machine's ONNX Runtime multiplies uint8 by int8 without loss.

    x86 processors without VNNI add two products in 16 bits: 255·127 twice is more than 32,767 and is cut off there.
    """
    onnx, rows, inner, columns = need("onnx"), 4, 64, 16
    kinds = onnx.TensorProto
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMulInteger", ["x", "w"], ["y"])], "products",
        [info("x", kinds.UINT8, (rows, inner)), info("w", kinds.INT8, (inner, columns))],
        [info("y", kinds.INT32, (rows, columns))])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", DEFAULT_OPSET)], ir_version=10)
    running = need("onnxruntime").InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    sums = running.run(None, {"x": np.full((rows, inner), 255, np.uint8), "w": np.full((inner, columns), 127, np.int8)})[0]
    return bool((sums == 255 * 127 * inner).all())


def onnx_outputs(path: Path, subject: Subject) -> Tensor:
    """What the artifact says of the whole test set."""
    running, size = session(path), subject.evaluator.batch_size
    name, x = running.get_inputs()[0].name, subject.data.test.x
    parts = [running.run(None, {name: subject.data.pipeline(x[i:i + size]).numpy()})[0] for i in range(0, len(x), size)]
    return torch.cat([torch.from_numpy(part) for part in parts])


def kernels(path: Path) -> Counter[str]:
    """The nodes of the graph that the runtime really executes."""
    onnx = need("onnx")
    with tempfile.TemporaryDirectory() as folder:
        optimized = Path(folder) / "optimized.onnx"
        session(path, optimized=optimized)
        return Counter(node.op_type for node in onnx.load(optimized).graph.node)


def missing_kernels(found: Mapping[str, int], promised: Mapping[str, int]) -> str:
    """What the optimized graph lacks; empty if it holds everything that was promised."""
    def count(kind: str) -> int:
        return found.get(kind, 0) + found.get(f"{kind}ToFloat", 0)

    lacking = [f"the optimized graph holds {count(kind)} {kind} instead of {number}"
               for kind, number in promised.items() if count(kind) < number]
    return "; ".join(lacking + ["the runtime unpacks weights at every call"] * ("BitShift" in found))
