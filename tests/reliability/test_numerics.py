"""Numbers that go wrong: each gives a defined result, or an error that says what happened and what to do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import anybit
from anybit.errors import AnybitError, ConfigError, DataError, Diverged, ModelError
from anybit.federated.cohort import Cohort
from anybit.quant.grid import BITS, Grid, GridName, Width, limits, quantize
from anybit.quant.penalty import kurtosis, kurtosis_gap
from anybit.quant.ranges import RangeRule, StepTable, all_bits, weight_steps
from anybit.training.divergence import mean_loss
from anybit.training.run_folder import RunFolder
from tests.unrecorded import unrecorded

Arrays = tuple[np.ndarray, np.ndarray]
FEW = anybit.EvaluationOptions(every=1, bits=(32, 2), sites=("W",), steps=("mse",))
RULES: tuple[RangeRule, ...] = ("minmax", "cover", "mse", "lsq")
GRIDS: tuple[GridName, ...] = ("full", "narrow", "unsigned")
VALUES = st.floats(-2.0**60, 2.0**60, width=32)
TENSORS = st.one_of(st.lists(VALUES, min_size=1, max_size=12), VALUES.map(lambda v: [v] * 5),
                    st.just([0.0] * 4), st.lists(st.floats(-2.0**-130, 2.0**-130, width=32), min_size=1, max_size=5))


@settings(deadline=None, max_examples=80)
@given(values=TENSORS, rule=st.sampled_from(RULES), grid=st.sampled_from(GRIDS), per_channel=st.booleans())
def test_every_weight_has_steps_that_can_be_saved_and_used(values: list[float], rule: RangeRule, grid: GridName,
                                                           per_channel: bool) -> None:
    """Constant, all zero, tiny or huge: steps are positive, finite, survive the file, and quantize to finite values."""
    w = torch.tensor(values).reshape(1, -1)
    steps = weight_steps(w, rule, grid, per_channel)
    assert bool((torch.isfinite(steps) & (steps > 0)).all())
    again = StepTable.from_json(StepTable({"s": steps}).to_json(), {"s": tuple(steps.shape[1:])})
    assert torch.equal(again.steps["s"], steps)
    for bits, step in zip(all_bits(w.device), steps, strict=True):
        assert bool(torch.isfinite(quantize(w, Grid(step, *limits(bits, grid)))).all())


@settings(deadline=None)
@given(value=VALUES, bits=st.sampled_from(BITS))
def test_a_constant_tensor_is_represented(value: float, bits: int) -> None:
    w = torch.full((3,), value)
    step = weight_steps(w, "cover", "full")[BITS.index(bits)]
    low, high = limits(torch.tensor(bits), "full")
    assert quantize(w, Grid(step, low, high)) == pytest.approx(w, rel=1e-5)


@settings(deadline=None)
@given(value=VALUES, size=st.integers(1, 20))
def test_a_dead_layer_has_kurtosis_0_and_no_gradient(value: float, size: int) -> None:
    x = torch.full((size,), value, requires_grad=True)
    assert float(kurtosis(x.detach())) == 0
    kurtosis_gap(x).backward()
    assert x.grad is not None
    assert not bool(x.grad.any())


@settings(deadline=None)
@given(values=st.lists(st.integers(-100, 100), min_size=2, max_size=30).filter(lambda v: len(set(v)) > 1),
       scale=st.sampled_from([1e-6, 1e-3, 1.0, 1e3, 1e6, 1e12, 1e15]))
def test_kurtosis_does_not_depend_on_the_scale(values: list[int], scale: float) -> None:
    x = torch.tensor(values, dtype=torch.float32)
    assert float(kurtosis(x * scale)) == pytest.approx(float(kurtosis(x)), rel=1e-3)


def dead(mlp: nn.Module) -> nn.Module:
    for p in mlp.parameters():
        p.data.zero_()
    return mlp


@pytest.mark.parametrize("variant", [anybit.baseline(), anybit.kure("WA"), anybit.apqn(2), anybit.qat(2, "WA"),
                                     anybit.mqat(sites="WA")], ids=lambda v: v.name)
def test_a_model_of_zeros_trains(mlp: nn.Module, clients: list[Arrays], held_out: Arrays, variant: anybit.Variant) -> None:
    result = anybit.fit(dead(mlp), clients, held_out, variant, rounds=2, cohort=2, evaluation=FEW)
    assert all(np.isfinite(m["loss"]) for m in result.metrics)
    assert all(bool(torch.isfinite(p).all()) for p in result.model.parameters())


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_clients_of_one_example_and_of_one_class(held_out: Arrays, mlp: nn.Module, engine: anybit.config.EngineName) -> None:
    x, y = held_out
    one_each = [(x[i:i + 1], y[i:i + 1]) for i in range(4)]
    one_class = [(x[y == c], y[y == c]) for c in range(4)]
    for clients in (one_each, one_class, one_each + one_class):
        result = anybit.fit(mlp, clients, held_out, anybit.mqat(sites="WA"), rounds=2, cohort=3, engine=engine,
                            evaluation=FEW)
        assert all(np.isfinite(m["loss"]) for m in result.metrics)


def test_32_bits_alone(mlp: nn.Module, clients: list[Arrays], held_out: Arrays) -> None:
    """Evaluating in full precision alone is a result; a variant that is about bits and has none is an error."""
    only = anybit.EvaluationOptions(every=1, bits=(32,), sites=("W",), steps=("mse",))
    for variant in (anybit.baseline(), anybit.mqat()):
        result = anybit.fit(mlp, clients, held_out, variant, rounds=1, cohort=2, evaluation=only)
        assert list(result.scores) == ["FP32"]
    for make in (lambda: anybit.mqat(bits=(32,)), lambda: anybit.qat(32), lambda: anybit.apqn(32)):
        with pytest.raises(ConfigError, match="at least one bit-width"):
            make()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_model_that_is_broken_from_the_start_is_named(mlp: nn.Module, clients: list[Arrays], held_out: Arrays,
                                                        value: float) -> None:
    mlp[2].weight.data[1, 1] = value  # type: ignore[index, union-attr]
    with pytest.raises(ModelError, match=r"parameter '2.weight' holds NaN or infinity before any training"):
        anybit.fit(mlp, clients, held_out, rounds=1, cohort=2)
    with pytest.raises(ModelError, match=r"parameter '2.weight'"):
        anybit.evaluate(mlp, held_out)


@pytest.mark.filterwarnings("ignore:inputs are large")
@pytest.mark.parametrize("server", ["sgd", "adam", "adagrad", "yogi"])
def test_no_checkpoint_holds_a_delta_that_exploded(mlp: nn.Module, clients: list[Arrays], held_out: Arrays, tmp_path: Path,
                                                   server: str) -> None:
    """One local step with a finite loss before it and infinite weights after it: the round ends there, by name."""
    step = anybit.ClientOptions(lr=3e38, batch_size=1000)
    options = anybit.ServerOptions(optimizer=server, lr=1.0)  # type: ignore[arg-type]
    with pytest.raises(Diverged, match=r"is no longer finite after round \d+: lower client.lr"):
        anybit.fit(mlp, [(100 * x, y) for x, y in clients], held_out, anybit.baseline(), rounds=3, cohort=2, client=step,
                   server=options, checkpoint_every=1, path=tmp_path / "run", evaluation=FEW)
    folder = RunFolder.open(tmp_path / "run")
    for path in folder.checkpoints():
        state = folder.load_checkpoint(path, torch.device("cpu")).state
        assert all(bool(torch.isfinite(t).all()) for t in (*state.w.values(), *state.optimizer.values()))


@pytest.mark.parametrize("change", ["w/0.weight", "optimizer/m/0.weight", "optimizer/count", "table/0.weight_quantizer"])
def test_a_checkpoint_that_does_not_fit_is_refused(mlp: nn.Module, clients: list[Arrays], held_out: Arrays, tmp_path: Path,
                                                   change: str) -> None:
    """A missing step would otherwise train in full precision, without a word."""
    from anybit.files.safetensors import load, save

    settings = {"rounds": 2, "cohort": 2, "checkpoint_every": 1, "evaluation": FEW, "path": tmp_path / "run"}
    anybit.fit(mlp, clients, held_out, **settings)  # type: ignore[arg-type]
    (unrecorded(tmp_path / "run") / "evaluation.json").unlink()
    newest = RunFolder.open(tmp_path / "run").checkpoints()[-1]
    tensors, metadata = load(newest)
    for damaged in ({n: t for n, t in tensors.items() if n != change}, {**tensors, change: torch.zeros(3, 3)}):
        save(newest, damaged, {k: v for k, v in metadata.items() if k != "sha256"})
        with pytest.raises(AnybitError, match="does not fit the model"):
            anybit.fit(mlp, clients, held_out, resume=True, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("alpha", [1e-320, 1e-12, 1e12, 1e308])
def test_extreme_concentrations_still_split(alpha: float) -> None:
    from anybit.data.splits import dirichlet, dirichlet_free

    labels = np.arange(60) % 3
    for function in (dirichlet, dirichlet_free):
        if not 1e-12 <= alpha <= 1e12:
            with pytest.raises(DataError, match="must be between 1e-12 and 1e12"):
                function(labels, 1, 5, alpha)
            continue
        split = function(labels, 1, 5, alpha)
        assert len(np.unique(np.concatenate(split))) == sum(map(len, split))


def test_huge_losses_have_a_finite_mean() -> None:
    """Their sum overflows in float32, and Infinity in the metrics is no JSON."""
    rows = torch.ones(1, 2, 1)
    cohort = Cohort(0, (0,), (Width(4, 32),), (2,), torch.zeros(1, 2, 2), rows.long(), rows, torch.zeros(1))
    assert mean_loss(torch.tensor([[3e38, 3e38]]), cohort, str) == pytest.approx(3e38)
    assert mean_loss(torch.tensor([[1.0, 2.0]]), cohort, str) == 1.5
