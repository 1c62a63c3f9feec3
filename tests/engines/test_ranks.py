from __future__ import annotations

import pytest

from anybit.config import Config
from anybit.engines.ranks import shares
from anybit.errors import ConfigError
from anybit.machine import _local_engine, pick_device


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
        _local_engine(Config(engine="processes"), pick_device("cpu"))
