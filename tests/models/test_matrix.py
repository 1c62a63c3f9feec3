"""Every model of the table through every check: three engines that agree, evaluation, export, resume."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import anybit
from anybit.config import Config
from anybit.data.clients import gathered
from anybit.data.examples import Data, Pipeline, as_examples
from anybit.errors import AnybitError
from anybit.federated.metrics import LOSSES
from anybit.inputs import called, mapped, selected
from anybit.quant.checks import is_matrix
from anybit.quant.grid import BITS, Grid, limits, quantize
from anybit.quant.ranges import weight_steps
from anybit.quant.sites import float_parameters
from anybit.tensors import picked
from anybit.training.engine_choice import measure
from anybit.training.task import Task
from tests.models.cases import CASES, CHECKS, REFUSALS, SIZE, Case, Refusal

pytestmark = pytest.mark.models
EACH, TRAIN = 12, 48
SAME = ("config.json", "task.json", "model.safetensors", "metrics.jsonl", "steps.json", "evaluation.json")


def task(case: Case | Refusal) -> tuple[nn.Module, list[Any], Any]:
    """Make the model, its clients and its test data, the same at every call."""
    torch.manual_seed(3)
    model, both = case.model(), case.data(np.random.default_rng(0))
    clients = [picked(both, slice(i, i + EACH)) for i in range(0, TRAIN, EACH)]
    return model, clients, picked(both, slice(TRAIN, SIZE))


def fit(case: Case, engine: Any, **settings: Any) -> anybit.Fitted:
    """Train two rounds of two clients at two local steps each, one of which is not full."""
    return anybit.fit(*task(case), case.variant, rounds=2, cohort=2, engine=engine, device="cpu",
                      client=anybit.ClientOptions(lr=0.01, batch_size=8, batches="full"),
                      server=anybit.ServerOptions("sgd"), threads=1,
                      evaluation=anybit.EvaluationOptions(bits=(32, 8, 2), sites=("W", "WA"), steps=("table",)),
                      **case.settings, **settings)


@functools.cache
def fitted(name: str) -> anybit.Fitted:
    return fit(next(case for case in CASES if case.name == name), "sequential")


def trains(case: Case, folder: Path) -> None:
    """What is not frozen has changed, and nothing else has."""
    before, result = dict(task(case)[0].named_parameters()), fitted(case.name)
    for name, p in result.model.named_parameters():
        assert torch.equal(p, before[name]) != p.requires_grad, name
    assert all(np.isfinite(score.loss) for score in result.scores.values())


def agrees(case: Case, folder: Path, engine: str) -> None:
    one, other = fitted(case.name).model, fit(case, engine).model
    for (name, p), q in zip(one.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(q, p, atol=1e-5, rtol=0, msg=lambda text, name=name: f"{name}: {text}")


def evaluates(case: Case, folder: Path) -> None:
    """The scores are those of the model with every matrix rounded by hand, but for what is named in full_precision."""
    result, (x, y) = fitted(case.name), task(case)[2]
    sites = case.settings.get("sites", anybit.SiteOptions())
    scores = anybit.evaluate(result.model, (x, y), ["FP32", "W8", "W2"], steps="minmax", **case.settings)
    kept = float_parameters(result.model, sites)
    assert set(case.in_float) == {name for name in kept if is_matrix(result.model.get_parameter(name))}
    for width, bits in (("FP32", 32), ("W8", 8), ("W2", 2)):
        model = copy.deepcopy(result.model).eval()
        for name, p in model.requires_grad_(False).named_parameters():
            if bits < 32 and name not in kept:
                grid = Grid(weight_steps(p, "minmax", "full")[BITS.index(bits)], *limits(torch.tensor(bits), "full"))
                p.copy_(quantize(p, grid))
        outputs = selected(called(model, mapped(x, torch.from_numpy)), case.settings.get("output"))
        loss = case.settings.get("loss", "cross_entropy")
        values = (LOSSES[loss] if isinstance(loss, str) else loss)(outputs, torch.from_numpy(y))
        assert scores[width].loss == pytest.approx(float(values.mean()), rel=1e-4), width


def exports(case: Case, folder: Path) -> None:
    """`export` compares every artifact with the evaluation, and raises where they differ."""
    result = fitted(case.name)
    for artifact in result.export(folder, ["W8", "W2", "W8A8"], min_accuracy=0):
        assert artifact.verdict.agreement >= (0.9 if artifact.width == "WA8" else 1), artifact.width
        if artifact.width != "WA8":
            assert artifact.verdict.artifact == pytest.approx(result.scores[artifact.width].metric, rel=1e-4)


class _Killed(anybit.Callback):
    def after_round(self, training: Any, progress: anybit.Progress) -> None:
        if progress.round == 2:  # logged, and no later checkpoint than that of round 1
            raise KeyboardInterrupt


def resumes(case: Case, folder: Path) -> None:
    """An interrupted run that goes on equals one that was never interrupted, byte for byte."""
    settings: dict[str, Any] = {"checkpoint_every": 1, "resume": True}
    with pytest.raises(KeyboardInterrupt):
        fit(case, "sequential", path=folder / "cut", callbacks=[_Killed()], **settings)
    fit(case, "sequential", path=folder / "cut", **settings)
    fit(case, "sequential", path=folder / "whole", **settings)
    for name in SAME:
        assert (folder / "cut" / name).read_bytes() == (folder / "whole" / name).read_bytes(), name


PROOFS: dict[str, Callable[[Case, Path], None]] = {
    "sequential": trains, "stacked": functools.partial(agrees, engine="stacked"),
    "processes": functools.partial(agrees, engine="processes"), "evaluate": evaluates, "onnx": exports, "resume": resumes}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("case", [pytest.param(case, id=case.name, marks=pytest.mark.xdist_group(case.name))
                                  for case in CASES])
def test_a_model(case: Case, check: str, tmp_path: Path) -> None:
    if check not in case.refusals:
        PROOFS[check](case, tmp_path)
        return
    with pytest.raises(AnybitError) as refused:
        PROOFS[check](case, tmp_path)
    assert case.refusals[check] in str(refused.value)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in REFUSALS])
def test_a_refusal_is_one_line(case: Refusal) -> None:
    with pytest.raises(AnybitError) as refused:
        anybit.fit(*task(case), rounds=1, cohort=1, device="cpu", engine="sequential")
    assert case.error in str(refused.value)
    assert "\n" not in str(refused.value)


def test_auto_leaves_out_an_engine_that_cannot_compute_the_model() -> None:
    """Where the stacked engine is the default or the fastest, as here it cannot be."""
    case = next(case for case in CASES if "stacked" in case.refusals)
    model, clients, test = task(case)
    examples, split = gathered(clients)
    subject = Task(model, case.variant, Data(examples, as_examples(*test, "test data"), Pipeline()), split)
    config = Config(cohort=2, rounds=1, device="cpu")
    assert "stacked" not in {m.candidate.engine for m in measure(config, subject, budget=60)}
