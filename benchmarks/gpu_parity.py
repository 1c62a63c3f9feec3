"""Parity on a GPU: captured rounds and evaluations against eager ones, and the kernels against float64.

    python -m benchmarks.gpu_parity results/performance/gpu-parity.json

Rounds in double precision, every variant × site with uneven clients; the kernels in TF32 and bfloat16 against the
library in float64, as ‖ours − reference‖ / ‖reference‖, and what they make of NaN.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anybit.config import ComputeOptions, Config, RangeOptions
from anybit.data.examples import Data, Pipeline
from anybit.engines.base import Engine
from anybit.engines.sequential import Sequential
from anybit.engines.stacked import Stacked
from anybit.environment import environment
from anybit.federated.state import trained_table
from anybit.federated.variants import mqat
from anybit.kernels.convolution import conv2d
from anybit.kernels.norm import norm_relu
from anybit.quant.grid import Width
from anybit.training.course import Training
from anybit.training.machine import computing
from tests.parity.cases import SIZES, VARIANTS, training, with_decay

COMPILED = ("baseline", "apqn WA", "kure WA", "mqat WA", "learned steps", "augmentation")
"""Compiling takes a while, so one case of each kind of operation; all cases are captured."""

EXACT = ComputeOptions(precision="fp32")

CONVOLUTIONS = [(3, 16, 32, 3, 1, 1), (16, 16, 32, 3, 1, 1), (16, 32, 32, 3, 2, 1), (32, 32, 16, 3, 1, 1),
                (64, 64, 8, 3, 1, 1), (3, 20, 32, 5, 1, 0), (20, 50, 14, 5, 1, 0), (64, 128, 16, 1, 2, 0),
                (256, 256, 8, 3, 1, 1), (128, 256, 8, 3, 2, 1), (3, 64, 64, 7, 2, 3)]
"""(channels in, out, side, kernel, stride, padding)."""


def cases() -> dict[str, Callable[[], Training]]:
    exact: dict[str, Any] = {"compute": EXACT, "device": "cuda"}
    found: dict[str, Callable[[], Training]] = {name: functools.partial(training, variant, **exact)
                                                for name, variant in VARIANTS.items()}
    found["learned steps"] = lambda: training(mqat(sites="WA", start="lsq"), ranges=RangeOptions(learned=True), **exact)
    found["augmentation"] = lambda: _augmented(training(with_decay(mqat()), **exact))
    return found


def _augmented(run: Training) -> Training:
    task = run.computation.task
    data = Data(task.data.train, task.data.test, Pipeline(crop=6, padding=2, flip=True))
    return replace(run, computation=replace(run.computation, task=replace(task, data=data)))


def one_round(run: Training, engine: Engine) -> dict[str, Tensor]:
    """What the second of two rounds leaves of what clients train: a captured program is replayed, not only recorded."""
    computation, state = replace(run.computation, engine=engine), run.state
    program = engine.prepare(computation.round_program(computation.client_step(run.table)))
    given = computation.given(run.table)
    for round in (3, 4):
        state, _ = program(state, computation.inputs(given, round))
    return {name: p.clone() for name, p in state.trainable.named().items()}


def rounds() -> dict[str, dict[str, float]]:
    out: dict[str, dict[str, float]] = {}
    for name, make in cases().items():
        reference, size = one_round(make(), Sequential()), len(SIZES)
        engines = {"stacked": Stacked(size), "captured": Stacked(size, captured=True)}
        if name in COMPILED:
            engines["compiled and captured"] = Stacked(size, compiled=True, captured=True)
        out[name] = {}
        for engine_name, engine in engines.items():
            ours = one_round(make(), engine)
            out[name][engine_name] = max(float((ours[n] - w).abs().max()) for n, w in reference.items())
        print(name, out[name], flush=True)
    return out


def evaluations() -> dict[str, float]:
    """Losses of a replayed evaluation (of its second call, with other weights) against one that is not."""
    out = {}
    for name in COMPILED:
        run = cases()[name]()
        evaluator, sites = run.computation.evaluator, run.computation.task.variant.sites
        table = trained_table(run.table, run.state.w, run.state.log_steps.by_site())
        evaluator.own(run.state.w, table)
        w = {n: 1.1 * p for n, p in run.state.w.items()}
        ours = evaluator.own(w, table)
        plain = evaluator.score(w, evaluator.finder(w, table).table(evaluator.own_steps, sites),
                                [Width.of(sites, bits) for bits in run.config.evaluation.bits])
        out[name] = max(abs(ours["scores"][width]["loss"] - score.loss) for width, score in plain.items())
        print(name, "evaluation", out[name], flush=True)
    return out


def kernels() -> dict[str, dict[str, float]]:
    """Relative errors of (y, ∂x, ∂w, …) at the shapes of the paper's networks."""
    out: dict[str, dict[str, float]] = {}
    for inner, outer, side, kernel, stride, padding in CONVOLUTIONS:
        x = torch.randn(4, 8, inner, side, side, device="cuda")
        w = torch.randn(4, outer, inner, kernel, kernel, device="cuda")
        for dtype in (torch.float32, torch.bfloat16):
            out[f"conv {inner}→{outer} {kernel}×{kernel}/{stride} {dtype}"] = _errors(
                lambda a, b: conv2d(a, b, stride, padding),  # noqa: B023
                lambda a, b: F.conv2d(a, b, stride=stride, padding=padding), (x, w), dtype)  # noqa: B023
    for channels, side in [(16, 32), (32, 16), (64, 8)]:
        shape = (4, 8, channels, side, side)
        inputs = (torch.randn(shape, device="cuda"), torch.randn(shape, device="cuda"),
                  torch.randn(4, channels, device="cuda"), torch.randn(4, channels, device="cuda"))
        for dtype in (torch.float32, torch.bfloat16):
            out[f"norm {channels}×{side}×{side} {dtype}"] = _errors(
                lambda x, s, g, b: norm_relu(x, s, g, b, 2, 1e-5),
                lambda x, s, g, b: F.relu(F.group_norm(x, 2, g, b, 1e-5) + s), inputs, dtype)
    for name, errors in out.items():
        print(name, errors, flush=True)
    return out


def swallowed() -> list[str]:
    """Kernels that make a number of what is none: a loss that is not finite could then go unseen."""
    x, ones = torch.randn(1, 2, 16, 8, 8, device="cuda"), torch.ones(16, device="cuda")
    x[0, 1, 3, 2, 2] = float("nan")
    found = {"conv": conv2d(x[0], torch.randn(16, 16, 3, 3, device="cuda"), 1, 1)[1, :, 2, 2],
             "norm": norm_relu(x[0], None, ones, ones, 2, 1e-5)[1, :8],
             "norm with shortcut": norm_relu(x[0], x[0], ones, ones, 2, 1e-5)[1, :8]}
    return [name for name, y in found.items() if not bool(torch.isnan(y).all())]


def _errors(ours: Callable[..., Tensor], reference: Callable[..., Tensor], inputs: tuple[Tensor, ...],
            dtype: torch.dtype) -> dict[str, float]:
    rounded = tuple(x.to(dtype) for x in inputs)

    def all_of(function: Callable[..., Tensor], given: tuple[Tensor, ...]) -> list[Tensor]:
        def weighted(*each: Tensor) -> tuple[Tensor, Tensor]:
            y = function(*each)
            slope = torch.linspace(-1, 1, y.numel(), device=y.device, dtype=y.dtype).reshape(y.shape)
            return (y * slope).sum(), y
        positions = tuple(range(len(given)))
        gradients, y = torch.func.vmap(torch.func.grad(weighted, argnums=positions, has_aux=True))(*given)
        return [y, *gradients]

    exact = all_of(reference, tuple(x.double() for x in rounded))
    found = all_of(ours, rounded)
    names = ("y", *(f"∂{i}" for i in range(len(inputs))))
    return {name: float((a.double() - b).norm() / b.norm()) for name, a, b in zip(names, found, exact, strict=True)}


def main() -> None:
    with computing(Config(compute=EXACT)):
        result: dict[str, Any] = {"environment": environment(), "rounds, largest difference in w": rounds(),
                                  "evaluations, largest difference in a loss": evaluations(),
                                  "kernels, relative error": kernels(), "kernels that swallow NaN": swallowed()}
    worst = max(v for case in result["rounds, largest difference in w"].values() for v in case.values())
    print(f"largest difference of any round: {worst:.2e}")
    path = Path(sys.argv[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    if max(worst, *result["evaluations, largest difference in a loss"].values()) > 1e-8:
        raise SystemExit("a round or an evaluation differs from the plain one")
    if result["kernels that swallow NaN"]:
        raise SystemExit(f"NaN is swallowed by {result['kernels that swallow NaN']}")


if __name__ == "__main__":
    main()
