"""Rounds as a GPU computes them, every part compiled, here for a CPU: equal to the reference within rounding."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import anybit
from anybit.config import ClientOptions, Config
from anybit.data.examples import Data, Examples, Pipeline
from anybit.engines.base import Engine
from anybit.engines.sequential import Sequential
from anybit.engines.stacked import Stacked
from anybit.federated.variants import Variant
from anybit.tensors import Tensors
from anybit.training.computation import open_computation
from anybit.training.task import Task

pytestmark = [pytest.mark.kernels, pytest.mark.usefixtures("interpreter")]


def after_rounds(variant: Variant, engine: Engine) -> Tensors:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 10))
    examples = Examples(torch.randn(40, 1, 4, 4), torch.randint(0, 10, (40,)))
    task = Task(model, variant, Data(examples, examples, Pipeline()), np.split(np.arange(40), 4))
    config = Config(cohort=4, rounds=3, client=ClientOptions(batch_size=5), device="cpu")
    run = replace(open_computation(task, config), engine=engine)
    state, table = run.start()
    program = engine.prepare(run.round_program(run.client_step(table)))
    for round in range(1, 4):
        state, _ = program(state, run.inputs(run.given(table), round))
    return state.w


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler uses what torch deprecates
@pytest.mark.parametrize("variant", [anybit.mqat(), anybit.carousel()], ids=["mqat", "carousel"])
def test_a_compiled_round_is_the_reference(variant: Variant) -> None:
    """Carousel projects the server's weights, and its step sizes follow them."""
    reference, compiled = after_rounds(variant, Sequential()), after_rounds(variant, Stacked(4, compiled=True))
    for name, w in reference.items():
        assert torch.allclose(compiled[name], w, atol=1e-5), name


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_older_compiler_has_no_message_to_spell_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As torch 2.11 and 2.12 do, at once: most of the time of a compilation (benchmarks/lowering.py)."""
    from torch._inductor import exc, graph

    from anybit.engines.capture import Compiled
    from anybit.kernels.convolution import conv2d
    from anybit.kernels.operators import announce

    spelled = []
    monkeypatch.setattr(exc.OperatorIssue, "operator_str", lambda target, *rest: spelled.append(target) or "")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(graph, "LazyString", lambda function, *arguments: function(*arguments))
    with monkeypatch.context() as old:
        old.setattr(torch, "__version__", type(torch.__version__)("2.11.0"))
        announce()
    x, w = torch.randn(2, 16, 4, 4), torch.randn(16, 16, 3, 3)
    found = Compiled(lambda x, w: 2 * conv2d(x, w, 1, 1))(x, w)
    assert torch.allclose(found, 2 * torch.nn.functional.conv2d(x, w, padding=1), atol=1e-4)
    assert not spelled
