"""Verification: the artifact in its runtime, on the run's test set, against the fake-quant model."""

from __future__ import annotations

import functools
import math
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from anybit.export.agreement import relative_error, same_decisions, two_decisions, within
from anybit.export.extras import need
from anybit.export.graph import DEFAULT_OPSET
from anybit.export.reference import exact_outputs, metric, metric_scale, outputs
from anybit.export.subject import Subject
from anybit.federated.metrics import classifies, meaning
from anybit.inputs import Inputs, leaves
from anybit.quant.grid import FLOAT, Width

TOLERANCE = 0.5
"""Percentage points by which the metric of a classifier's artifact may differ from the fake-quant evaluation, or two
decisions (of pixels or tokens, where it decides for each), of a small test set the larger."""
ERROR = 0.05
"""Relative error of outputs, and of a metric that is not in percent. Artifact and reference round to the same grids, so
only values that lie on a rounding boundary differ, by one step size. One step of an 8-bit grid over ±3 standard deviations,
wrong at every output, is 6/255 = 0.024 of the deviation: twice that is allowed."""
AGREEMENT = 0.9
"""Share of a classifier's decisions that its artifact must share where the outputs themselves are far apart (MOST_ERROR):
the metric alone is met by any outputs where the classifier is no better than chance."""
MOST_ERROR = 0.5
"""Where few bits make single flips large, four times the effect of rounding alone is allowed, but never more than this:
always giving the mean output has a relative error of 1."""


class Verdict(NamedTuple):
    """The measurements of an artifact, and its problem (empty: none)."""

    evaluation: float
    """The metric of the fake-quant model as in training."""
    reference: float
    """The metric of the fake-quant model with the additions of the export."""
    artifact: float
    """The metric of the artifact in its runtime."""
    agreement: float
    """The share of the test set on which artifact and reference choose the same class, or of anything but a classifier, on
    which their outputs are the same within the relative error that is allowed."""
    control: float
    """The same share between the reference in float32 and in float64: the effect of rounding alone; 1 if there is none."""
    problem: str
    error: float | None = None
    """‖artifact − reference‖/‖reference − its mean‖ of the outputs; none where activations of a classifier are rounded,
    which is judged by its decisions."""


def verdict(subject: Subject, width: Width, plain: nn.Module, reference: nn.Module, result: Tensor,
            problem: str = "") -> Verdict:
    """Compare the outputs of an artifact on the test set with those of the fake-quant models.

    Where only weights are rounded, nothing depends on the order of sums but float32's last digits: outputs that are further
    apart come from another computation, whatever the decisions are.
    """
    expected, exact = outputs(reference, subject), exact_outputs(reference, subject)
    evaluated = metric(subject, outputs(plain, subject))
    wanted, measured = metric(subject, expected), metric(subject, result)
    error, allowed = relative_error(result, expected), min(max(ERROR, 4 * relative_error(expected, exact)), MOST_ERROR)
    far = f"the relative error of its outputs is {error:.3g}, more than {allowed:.3g}"
    if classifies(expected, subject.data.test.y) and meaning(subject.evaluator.metric).unit == "%":
        most = max(TOLERANCE, two_decisions(subject.data.test.y))
        if not abs(measured - wanted) <= most:
            problem = f"its metric is {measured:.2f}, the fake-quant evaluation's {wanted:.2f}: more than {most:.2g} apart"
        agreed, control = (same_decisions(other, expected) for other in (result, exact))
        if not problem and agreed < AGREEMENT and not error <= MOST_ERROR:
            problem = f"it makes {agreed:.0%} of the fake-quant model's decisions, fewer than {AGREEMENT:.0%}"
        if width.activations != FLOAT:
            return Verdict(evaluated, wanted, measured, agreed, control, problem)
        return Verdict(evaluated, wanted, measured, agreed, control, problem or ("" if error <= allowed else far), error)
    if not error <= allowed:
        problem = far
    elif not (abs(measured - wanted) <= allowed * metric_scale(subject, expected) or str(measured) == str(wanted)):
        problem = (f"its metric is {measured:.4g}, the fake-quant evaluation's {wanted:.4g}: more than {allowed:.3g} of its "
                   "scale apart")
    agreed, control = (within(other, expected, allowed) for other in (result, exact))
    return Verdict(evaluated, wanted, measured, agreed, control, problem, error)


def unverified(subject: Subject, plain: nn.Module) -> Verdict:
    """Return what is known of an artifact that was not run: the evaluation alone."""
    evaluated = metric(subject, outputs(plain, subject))
    return Verdict(evaluated, evaluated, math.nan, math.nan, math.nan, "")


def session(path: Path, threads: int = 1, optimized: Path | None = None) -> Any:
    """Open an ONNX Runtime session on the CPU."""
    runtime = need("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 3
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
    return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


@functools.cache
def int8_is_exact() -> bool:
    """Return True if this machine's ONNX Runtime multiplies uint8 by int8 without loss.

    x86 processors without VNNI add two products in 16 bits: 255·127 twice is more than 32,767 and is cut off there.
    """
    model = need("onnx").parser.parse_model(
        f'<ir_version: 10, opset_import: ["": {DEFAULT_OPSET}]> '
        "products (uint8[4,64] x, int8[64,16] w) => (int32[4,16] y) { y = MatMulInteger(x, w) }")
    runner = need("onnxruntime").InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    sums = runner.run(None, {"x": np.full((4, 64), 255, np.uint8), "w": np.full((64, 16), 127, np.int8)})[0]
    return bool((sums == 255 * 127 * 64).all())


def onnx_outputs(path: Path, subject: Subject) -> Tensor:
    """Return the artifact's outputs on the test set."""
    runner, size = session(path), subject.evaluator.batch_size
    parts = [runner.run(None, fed(runner, inputs))[0] for inputs in subject.test_batches(size)]
    return torch.cat([torch.from_numpy(part) for part in parts])


def fed(runner: Any, inputs: Inputs) -> dict[str, np.ndarray]:
    """Return {name: array} of the inputs that a session's graph has: it may not need all."""
    arrays = {name: x.numpy() for name, x in leaves(inputs).items()}
    return {wanted.name: arrays[wanted.name] for wanted in runner.get_inputs()}


def kernels(path: Path) -> Counter[str]:
    """Count the nodes of the graph that the runtime executes, by kind."""
    onnx = need("onnx")
    with tempfile.TemporaryDirectory() as folder:
        optimized = Path(folder) / "optimized.onnx"
        session(path, optimized=optimized)
        return Counter(node.op_type for node in onnx.load(optimized).graph.node)


def missing_kernels(executed: Mapping[str, int], promised: Mapping[str, int]) -> str:
    """Describe the promised kernels that the optimized graph lacks; empty if it has them all."""
    counts = {kind: executed.get(kind, 0) + executed.get(f"{kind}ToFloat", 0) for kind in promised}
    lacking = [f"the optimized graph holds {counts[kind]} {kind} instead of {number}"
               for kind, number in promised.items() if counts[kind] < number]
    return "; ".join(lacking + ["the runtime unpacks weights at every call"] * ("BitShift" in executed))
