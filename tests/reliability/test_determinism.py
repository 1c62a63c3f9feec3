"""What is the same to the byte, and how near the rest is: the tolerances of docs/reliability.md."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import anybit
from anybit.data.examples import Data, as_examples
from anybit.training.task import Task
from tests.trainings import trained as train_to_end

ONE_ROUND = 1e-6
"""Weights after one round, by engine or by threads: |a − b| ≤ ONE_ROUND · max |w|. Sums of float32 in another order; where a
weight's delta is hardly larger than Adam's ε, its first step magnifies them, with batches of one size to 2e-5 here."""
FOUR_ROUNDS = 1e-3
"""After four rounds of quantized training: a weight near a rounding boundary may fall to its other side, and the
difference is then a quantization step of one client, averaged over the cohort."""

VARIANTS = {"baseline": anybit.baseline(), "kure": anybit.kure("WA"), "apqn": anybit.apqn(4, "WA"),
            "mqat": anybit.mqat(sites="WA")}


def model() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 12, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12 * 16, 4))


def drawn() -> tuple[Data, list[np.ndarray]]:
    """Five uneven clients."""
    draw = np.random.default_rng(2)
    x, y = draw.normal(size=(150, 1, 8, 8)).astype(np.float32), draw.integers(4, size=150)
    ends = [0, 1, 30, 70, 110, 150]
    data = Data(as_examples(x, y, "train"), as_examples(x[:20], y[:20], "test"))
    return data, [np.arange(a, b) for a, b in pairwise(ends)]


@pytest.fixture(scope="module")
def examples() -> tuple[Data, list[np.ndarray]]:
    return drawn()


@pytest.fixture
def threads() -> Iterator[None]:
    yield
    torch.set_num_threads(1)


def trained(examples: tuple[Data, list[np.ndarray]], variant: str, engine: str, threads: int, rounds: int) -> torch.Tensor:
    data, split = examples
    options = anybit.EvaluationOptions(every=1000, bits=(32,), sites=("W",), steps=("mse",))
    config = anybit.config.Config(rounds=rounds, cohort=4, engine=engine, device="cpu", threads=threads,  # type: ignore[arg-type]
                                  client=anybit.ClientOptions(batch_size=16, batches="full"), evaluation=options)
    w = train_to_end(Task(model(), VARIANTS[variant], data, split), config).w
    return torch.cat([p.flatten() for p in w.values()])


def apart(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max() / a.abs().max())


@pytest.mark.parametrize("variant", VARIANTS)
def test_engines_agree_within_the_tolerance(examples: tuple[Data, list[np.ndarray]], variant: str) -> None:
    reference = trained(examples, variant, "sequential", 1, 1)
    assert torch.equal(trained(examples, variant, "sequential", 1, 1), reference)
    assert apart(trained(examples, variant, "stacked", 1, 1), reference) <= ONE_ROUND


def test_numbers_of_threads_agree_within_the_tolerance(examples: tuple[Data, list[np.ndarray]], threads: None) -> None:
    reference = trained(examples, "mqat", "sequential", 1, 1)
    assert apart(trained(examples, "mqat", "sequential", 2, 1), reference) <= ONE_ROUND


def test_differences_stay_small_over_some_rounds(examples: tuple[Data, list[np.ndarray]]) -> None:
    reference = trained(examples, "mqat", "sequential", 1, 4)
    assert apart(trained(examples, "mqat", "stacked", 1, 4), reference) <= FOUR_ROUNDS


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_the_same_run_twice_is_the_same_folder(tmp_path: Path, examples: tuple[Data, list[np.ndarray]], engine: str) -> None:
    """Every byte, the times aside; and another seed gives other bytes."""
    data, split = examples
    clients = [(data.train.images[torch.from_numpy(i)], data.train.y[torch.from_numpy(i)]) for i in split]
    few = anybit.EvaluationOptions(every=2, bits=(32, 2), sites=("W",), steps=("mse",))

    def run(name: str, seed: int) -> dict[str, bytes]:
        anybit.fit(model(), clients, (data.test.x, data.test.y), anybit.apqn(4, "WA"), rounds=3, cohort=3, seed=seed,
                   engine=engine, evaluation=few, checkpoint_every=1, path=tmp_path / name)  # type: ignore[arg-type]
        return {p.name: p.read_bytes() for p in sorted((tmp_path / name).rglob("*"))
                if p.is_file() and p.name != "timing.jsonl"}

    first = run("a", 1)
    assert run("b", 1) == first
    other = run("c", 2)
    assert {name for name in first if other[name] != first[name]} >= {"model.safetensors", "metrics.jsonl", "config.json"}
