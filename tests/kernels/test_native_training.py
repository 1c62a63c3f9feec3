"""Runs with the native kernels: the deltas of the library's, whatever the variant, and the same bytes in every engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from anybit.config import ClientOptions, ComputeOptions, Config, RangeOptions
from anybit.data.examples import Data, Examples
from anybit.engines.processes import Processes
from anybit.engines.sequential import Sequential
from anybit.errors import Diverged
from anybit.federated.variants import Variant, apqn, baseline, kure, mqat, qat
from anybit.kernels.native.layers import NativeMaxPool2d
from anybit.layers import GroupNormReLU
from anybit.quant.grid import SiteKinds
from anybit.training import computation, engine_choice
from anybit.training.course import Training
from anybit.training.machine import computing
from anybit.training.task import Task
from tests.gathered import deltas_of
from tests.trainings import begun, to_end

pytestmark = [pytest.mark.kernels, pytest.mark.usefixtures("native")]
SIZES = [1, 9, 20, 37]
SITES: tuple[SiteKinds, ...] = ("W", "WA")
VARIANTS = {"baseline": baseline(weight_decay=0.01), "dropout": baseline(dropout=0.5),
            **{f"{make.__name__} {s}": make(sites=s) for make in (kure, apqn, qat, mqat) for s in SITES}}


class Net(nn.Module):
    """A convolution of either kind, norms with and without a shortcut, a pool after a ReLU, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2))
        self.second, self.norm = nn.Conv2d(8, 8, 3, padding=1, bias=False), GroupNormReLU(2, 8)
        self.third, self.plain = nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.GroupNorm(2, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = self.plain(self.third(self.norm(self.second(x), x)))
        out: Tensor = self.head(torch.relu(x).mean((2, 3)))
        return out


def training(variant: Variant, convolution: str = "native", lr: float = 0.05, **settings: Any) -> Training:
    torch.manual_seed(5)
    draw, total = np.random.default_rng(0), sum(SIZES)
    x = torch.from_numpy(draw.normal(size=(total, 1, 12, 12)).astype(np.float32))
    examples = Examples(x, torch.from_numpy(draw.integers(3, size=total)))
    options: Any = {"threads": 1, "device": "cpu", "compute": ComputeOptions(convolution=convolution), **settings}  # type: ignore[arg-type]
    config = Config(cohort=len(SIZES), client=ClientOptions(lr=lr, batch_size=16), **options)
    return begun(Task(Net(), variant, Data(examples, Examples(x[:4], examples.y[:4])),
                      np.split(np.arange(total), np.cumsum(SIZES)[:-1])), config)


def deltas(run: Training, engine: Any = None) -> dict[str, Tensor]:
    with computing(run.config):
        named, losses = deltas_of(engine or Sequential(), run, run.computation.cohort(3))
    return {**named, "losses": losses}


def assert_near(ours: dict[str, Tensor], reference: dict[str, Tensor], most: float) -> None:
    for name, value in reference.items():
        assert float(value.abs().amax()) > 0, name
        assert float((ours[name] - value).norm() / value.norm()) < most, name


@pytest.mark.parametrize("name", [name for name in VARIANTS if "qat WA" not in name])
def test_parity(name: str) -> None:
    assert_near(deltas(training(VARIANTS[name])), deltas(training(VARIANTS[name], "default")), 1e-4)


@pytest.mark.parametrize("name", ["qat WA", "mqat WA"])
def test_parity_of_rounded_activations(name: str) -> None:
    """In single precision a value on the edge between two levels rounds either way, and of two equal maxima in a pool
    the last bit decides: the library with and without oneDNN is as far apart."""
    ours, reference = deltas(training(VARIANTS[name])), deltas(training(VARIANTS[name], "default"))
    assert_near(ours, reference, 0.2)


def test_parity_of_learned_steps() -> None:
    runs = [training(mqat(), name, ranges=RangeOptions(learned=True)) for name in ("native", "default")]
    ours, reference = (deltas(run) for run in runs)
    steps = {name for name in reference if name.startswith("log_step/")}
    assert steps
    assert_near(ours, {n: value for n, value in reference.items() if n not in steps}, 1e-4)
    # Sums of many terms that cancel each other: float32 leaves fewer digits of them.
    assert_near(ours, {n: reference[n] for n in steps}, 2e-3)


@pytest.mark.parametrize("name", ["baseline", "mqat WA", "apqn WA"])
def test_processes_give_the_bytes_of_one_after_another(name: str) -> None:
    reference, engine = deltas(training(VARIANTS[name])), Processes(2)
    try:
        ours = deltas(training(VARIANTS[name]), engine)
    finally:
        engine.close()
    assert all(torch.equal(ours[n], reference[n]) for n in reference)
    again = deltas(training(VARIANTS[name]))
    assert all(torch.equal(again[n], reference[n]) for n in reference)


def test_the_kernels_are_used_by_a_client_alone_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is mapped over stacked clients, and the user's model, stay with the library."""
    used: list[nn.Module] = []
    use = computation.use_native
    monkeypatch.setattr(computation, "use_native", lambda model: (used.append(model), use(model)))
    run = training(baseline())
    run.computation.client_step(run.table)
    (alone,) = used
    assert alone.second.kernel is not None
    assert type(alone.first[2]) is NativeMaxPool2d  # type: ignore[index]
    model: Any = run.computation.task.model
    assert type(model.first[2]) is nn.MaxPool2d
    assert model.norm.kernel is None


def test_a_loss_that_is_not_finite_ends_the_run() -> None:
    with pytest.raises(Diverged, match=r"the loss is (nan|inf)"):
        to_end(training(baseline(), lr=1e20, rounds=3))


def test_calibration_measures_it() -> None:
    task = engine_choice.example_task(nn.Sequential(nn.Conv2d(3, 2, 5, stride=4), nn.Flatten(), nn.Linear(98, 10)), 3, 20)
    table = list(engine_choice.measure(Config(cohort=3), task, budget=120))
    assert {m.candidate.convolution for m in table} == {"default", "channels-last", "no-onednn", "native"}
    assert all(m.candidate.convolution != "native" for m in table if m.candidate.engine == "stacked")
