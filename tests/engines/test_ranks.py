from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import NoReturn

import pytest
import torch
import torch.distributed as dist

from anybit.config import Config
from anybit.engines.ranks import Ranks, shares
from anybit.engines.sequential import Sequential
from anybit.engines.stacked import Stacked
from anybit.errors import ConfigError, EngineError
from anybit.training.machine import _local_engine, pick_device


def test_shares_are_balanced_whole_and_in_order() -> None:
    work = [9, 1, 1, 1, 8, 4, 4]
    parts = shares(work, 3)
    assert sorted(i for part in parts for i in part) == list(range(len(work)))
    assert all(part == sorted(part) for part in parts)
    assert max(sum(work[i] for i in part) for part in parts) == 10
    assert shares([5], 3) == [[0], [], []]


def test_worker_processes_under_torchrun_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ConfigError, match="ranks are processes already"):
        _local_engine(Config(engine="processes"), pick_device("cpu"), 1)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ranks]:
    """The only rank of a real group, which no torchrun started."""
    monkeypatch.setattr("anybit.engines.ranks.die_with_torchrun", lambda: None)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    engine = Ranks(Sequential(), torch.device("cpu"))
    yield engine
    engine.close()


def test_a_rank_says_that_its_inner_engine_compiles(alone: Ranks) -> None:
    assert not alone.slow_start
    assert Ranks(Stacked(1, compiled=True), torch.device("cpu")).slow_start.startswith("compiling the round")


def test_a_lost_rank_is_told_with_the_round_wherever_the_others_were(alone: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    w, cohort = {"w": torch.ones(2)}, SimpleNamespace(counts=torch.ones(1, 1), clients=(0,), local_steps=1, round=6)
    total, losses = alone.combine(w, [torch.tensor([[3.0]])], w, cohort)
    assert (total["w"].tolist(), losses.tolist()) == ([1.0, 1.0], [[3.0]])
    assert (alone.agree(True, 7), alone.agree(False, 7)) == (True, False)

    def lost(tensor: torch.Tensor) -> NoReturn:
        raise RuntimeError("Connection closed by peer\nand a trace")

    monkeypatch.setattr(dist, "all_reduce", lost)
    why = r": one of the 1 ranks ended \(Connection closed by peer\)$"
    with pytest.raises(EngineError, match="^rank 0 lost the others in round 7" + why):
        alone.combine(w, [], w, cohort)
    with pytest.raises(EngineError, match="^rank 0 lost the others after round 7" + why):
        alone.agree(False, 7)
