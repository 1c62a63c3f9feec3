"""Clients that are loaded when they are drawn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import anybit
from anybit.data.clients import gathered
from anybit.data.examples import Data
from anybit.data.on_demand import OnDemand
from anybit.errors import ConfigError, DataError, RunError
from anybit.training.engine_choice import measure
from anybit.training.task import Task

Arrays = tuple[np.ndarray, np.ndarray]
SETTINGS: dict[str, Any] = {"rounds": 3, "cohort": 3, "client": anybit.ClientOptions(batch_size=16, epochs=2),
                            "device": "cpu"}


class Loader:
    """A function that counts its calls."""

    def __init__(self, pair: Any, size: int | None = None) -> None:
        self.pair, self.size, self.calls = pair, size, 0

    def __call__(self) -> Any:
        self.calls += 1
        return self.pair


@pytest.mark.parametrize("engine", ["sequential", "processes"])
@pytest.mark.parametrize("variant", [anybit.mqat, lambda: anybit.mqat(sites="WA")])
def test_a_run_is_that_of_clients_in_memory_to_the_byte(mlp: nn.Module, clients: list[Arrays], held_out: Arrays,
                                                        tmp_path: Path, engine: Any,
                                                        variant: Callable[[], anybit.Variant]) -> None:
    given = [Loader(clients[0]), Loader(clients[1], 20), clients[2], *map(Loader, clients[3:])]
    for name, form in (("memory", clients), ("demand", given)):
        anybit.fit(mlp, form, held_out, variant(), engine=engine, path=tmp_path / name, **SETTINGS)
    for name in ("model.safetensors", "metrics.jsonl", "steps.json", "evaluation.json", "split.safetensors"):
        assert (tmp_path / "demand" / name).read_bytes() == (tmp_path / "memory" / name).read_bytes()


def test_rows_of_many_clients_come_in_the_order_asked_for() -> None:
    pairs = [(np.arange(3.0), np.zeros(3, int)), (np.arange(10.0, 12.0), np.ones(2, int))]
    examples, split = gathered([Loader(pair) for pair in pairs])
    rows = examples.rows(torch.tensor([4, 0, 3, 2]))
    assert (rows.x.tolist(), rows.y.tolist()) == ([11, 0, 10, 2], [1, 0, 1, 0])
    assert [index.tolist() for index in split] == [[0, 1, 2], [3, 4]]


def test_memory_is_bounded_and_what_was_used_last_stays() -> None:
    loaders = [Loader((np.zeros((10, 4), np.float32), np.zeros(10, int)), size=10) for _ in range(6)]
    one = 10 * 4 * 4 + 10 * 8
    examples, _ = gathered(loaders, kept_bytes=2 * one)
    assert isinstance(examples, OnDemand)
    assert [loader.calls for loader in loaders] == [1, 0, 0, 0, 0, 0]  # sizes are announced: the first shows the form
    for client in (1, 0, 2, 0, 1):
        examples.rows(torch.tensor([10 * client]))
        assert len(examples.shelf.kept) <= 2
    assert [loader.calls for loader in loaders] == [1, 2, 1, 0, 0, 0]
    assert list(examples.shelf.kept) == [0, 1]


def test_without_a_size_each_is_called_once_at_the_start() -> None:
    loaders = [Loader((np.zeros((n, 2), np.float32), np.zeros(n, int))) for n in (3, 5, 4)]
    examples, split = gathered(loaders, kept_bytes=1)
    assert [len(index) for index in split] == [3, 5, 4]
    assert isinstance(examples, OnDemand)
    assert len(examples.shelf.kept) == 1
    assert sum(loader.calls for loader in loaders) == 4  # and the first once more, for the form


@pytest.mark.parametrize("engine", ["sequential", "processes"])
def test_an_error_in_a_loader_names_the_client(mlp: nn.Module, clients: list[Arrays], held_out: Arrays, engine: Any) -> None:
    def fails() -> Any:
        raise OSError("no such disk")

    fails.size = 9  # type: ignore[attr-defined]
    with pytest.raises(DataError, match=r"^client 1: the function that loads it failed \(OSError: no such disk\)$"):
        anybit.fit(mlp, [clients[4], fails], held_out, rounds=1, cohort=2, engine=engine, device="cpu",
                   ranges=anybit.RangeOptions(calibration_images=1), seed=0)


@pytest.mark.parametrize(("pair", "size", "says"), [
    ((np.zeros((4, 8), np.float32), np.full(4, 9)), 4, "client 1: example 0 has label 9"),
    ((np.zeros((4, 8), np.float32), np.zeros(4, int)), 5, "client 1 has 4 examples now, but 5"),
    ((np.zeros((4, 7), np.float32), np.zeros(4, int)), 4, r"client 1 has examples of float32 \(7,\), int64 \(\)"),
    ((np.zeros((4, 8), np.float32), np.zeros(4, int)), -1, "size = -1")])
def test_what_a_loader_gives_is_checked_when_it_does(mlp: nn.Module, clients: list[Arrays], held_out: Arrays, pair: Any,
                                                     size: int, says: str) -> None:
    with pytest.raises(DataError, match=says):
        anybit.fit(mlp, [clients[4], Loader(pair, size)], held_out, rounds=1, cohort=2, engine="sequential", device="cpu")


def test_the_stacked_engine_refuses_and_auto_leaves_it_out(mlp: nn.Module, clients: list[Arrays], held_out: Arrays) -> None:
    given = [Loader(client) for client in clients]
    with pytest.raises(ConfigError, match="engine = 'stacked' needs all clients in memory"):
        anybit.fit(mlp, given, held_out, engine="stacked", **SETTINGS)
    examples, split = gathered(given)
    task = Task(mlp, anybit.mqat(), Data(examples, examples.rows(torch.arange(2))), split)
    assert "stacked" not in {m.candidate.engine for m in measure(anybit.Config(cohort=3), task)}


def test_the_metric_on_each_client_is_that_of_clients_in_memory(mlp: nn.Module, clients: list[Arrays],
                                                                held_out: Arrays) -> None:
    loaders = [Loader(client) for client in clients]
    one, other = (anybit.fit(mlp, form, held_out, **SETTINGS).per_client("W4") for form in (clients, loaders))
    assert one.tolist() == other.tolist()


def test_a_run_goes_on_with_the_same_clients_alone(mlp: nn.Module, clients: list[Arrays], held_out: Arrays,
                                                   tmp_path: Path) -> None:
    """Of whatever layout in memory: the first client's labels are every third of an array."""
    strided = (np.repeat(clients[0][0], 3, 0)[::3], np.repeat(clients[0][1], 3)[::3])

    def fit(given: list[Any], rounds: int) -> anybit.Fitted:
        return anybit.fit(mlp, [Loader(client) for client in given], held_out, path=tmp_path / "run", resume=True,
                          **{**SETTINGS, "rounds": rounds})

    fit([strided, *clients[1:]], 1)
    assert len(fit(clients, 2).metrics) == 2
    with pytest.raises(RunError, match=r"another task: clients\.number was \d+, now 3"):
        fit(clients[:3], 2)


@pytest.mark.parametrize("part", [0, 1])
def test_a_function_that_returns_other_data_is_found_when_it_is_called_again(part: int) -> None:
    generator = np.random.default_rng(1)

    def drawn() -> Arrays:
        pair = np.ones((4, 3), np.float32), np.zeros(4, int)
        pair[part][...] = generator.integers(1, 1000, pair[part].shape)
        return pair

    fixed = Loader((np.ones((4, 3), np.float32), np.zeros(4, int)))
    examples, _ = gathered([fixed, drawn], kept_bytes=1)
    with pytest.raises(DataError, match="client 1 has other examples now than when it was loaded before"):
        examples.rows(torch.tensor([0, 4]))
