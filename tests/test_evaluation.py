"""Evaluations on the way: what a GPU records and replays, and what comes out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from anybit.federated.variants import Variant, apqn, baseline, kure, mqat
from anybit.quant.grid import Width
from anybit.training.evaluation import Evaluator
from tests.parity.cases import training


@pytest.mark.parametrize("variant", [baseline(), kure(), apqn(sites="A"), mqat(), mqat(sites="WA")])
def test_what_is_replayed_looks_at_no_value(variant: Variant, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorded program cannot ask the host: it must run on tensors that have shapes and no values."""
    traced = []

    def shapes_only(self: Evaluator, name: str, make: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
        function = make()

        def call(*arguments: Any) -> Any:
            make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*arguments)
            traced.append(name.split()[0])
            return function(*arguments)
        return call

    monkeypatch.setattr(Evaluator, "_repeated", shapes_only)
    run = training(variant)
    run.computation.evaluator.own(run.state.w, run.table)
    estimated = variant.sites == "W" and variant.name != "mqat"
    assert set(traced) == {"outputs", "health"} | ({"steps"} if estimated else set())


def test_evaluations_on_the_way_see_new_weights() -> None:
    run = training(mqat())
    first = run.computation.evaluator.own(run.state.w, run.table)
    moved = {name: p + 0.5 for name, p in run.state.w.items()}
    second = run.computation.evaluator.own(moved, run.table)
    assert first["scores"] != second["scores"]
    widths = [Width.of("W", bits) for bits in (32, 8, 6, 4, 3, 2)]
    expected = run.computation.evaluator.score(moved, run.table, widths)
    assert second["scores"] == {name: score._asdict() for name, score in expected.items()}
    assert first["layers"] != second["layers"]


def test_full_precision_is_the_model_itself() -> None:
    run = training(baseline())
    test, found = run.computation.task.data.test, run.computation.evaluator.own(run.state.w, run.table)["scores"]["FP32"]
    with torch.no_grad():
        out = torch.func.functional_call(run.computation.task.model.eval(), run.state.w, (test.x,))
    assert found["loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(out, test.y)))
    assert found["metric"] == pytest.approx(100 * float((out.argmax(1) == test.y).double().mean()))
