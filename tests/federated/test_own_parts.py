"""Server optimizers, samplers and schedules of one's own, and the server's settings that are left open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import anybit
from anybit.config import Config, chosen, from_recipe
from anybit.errors import ConfigError
from anybit.federated.server import ServerOptions, pace, server
from anybit.training.build import build_task, written_out

ONE = torch.tensor(1.0, dtype=torch.float64)


def test_momentum_of_the_server_by_hand() -> None:
    """m ← ½·m + Δ: 1, 1.5, 1.75; w ← w + m."""
    optimizer = server(ServerOptions(optimizer="sgd", momentum=0.5))
    w = {"a": torch.tensor(0.0)}
    state, out = optimizer.init(w), []
    for _ in range(3):
        state, w = optimizer.step(state, w, {"a": torch.tensor(1.0)}, ONE)
        out.append(float(w["a"]))
    assert out == [1.0, 2.5, 4.25]


@pytest.mark.parametrize(("settings", "rounds", "lr"), [
    ({}, 2, 1e-2), ({}, 100, 1e-2), ({}, 500, 2.9e-3), ({"optimizer": "yogi"}, 2000, 1e-3), ({}, 10_000, 1e-3),
    ({"optimizer": "sgd"}, 100, 1.0), ({"optimizer": "mine:lion"}, 100, 1.0), ({"lr": 0.5}, 100, 0.5)])
def test_a_learning_rate_that_is_left_open_follows_from_the_rounds(settings: Any, rounds: int, lr: float) -> None:
    config = Config(rounds=rounds, server=ServerOptions(**settings))
    assert chosen(config, {}).server.lr == lr
    assert float(pace(config.server, 0, rounds).rate) == lr


def test_a_cohort_that_is_left_open_is_ten_or_all() -> None:
    few = from_recipe("quickstart/mqat", ["split.clients=4"])
    assert few.cohort == 10  # the recipe's
    assert [Config().places(n) for n in (4, 10, 99)] == [4, 10, 10]
    assert Config(cohort=20).places(4) == 20
    config = written_out(Config(model=few.model, variant=few.variant, split=few.split))
    assert config.cohort == 4


@pytest.fixture
def problem() -> tuple[nn.Module, list[Any], Any]:
    draw = np.random.default_rng(0)
    clients = [(draw.normal(size=(6, 4)).astype(np.float32), draw.integers(2, size=6)) for _ in range(5)]
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)), clients, clients[0]


def signs(decay: float = 0.5) -> anybit.ServerOptimizer:
    """w ← w + η_s·sign(m), with its state in a plain tuple."""
    def init(w: Any) -> Any:
        return {n: torch.zeros_like(p) for n, p in w.items()}, torch.zeros(())

    def step(state: Any, w: Any, delta: Any, rate: Tensor) -> Any:
        m = {n: decay * state[0][n] + delta[n] for n in w}
        return (m, state[1] + 1), {n: w[n] + rate.to(w[n].dtype) * torch.sign(m[n]) for n in w}

    return anybit.ServerOptimizer(init, step)


def last_and_first(seed: int, round: int, clients: int, size: int) -> list[int]:
    return [clients - 1, round % (clients - 1)][:size]


def halves(round: int, rounds: int) -> float:
    return 0.5**round


class Stop(anybit.Callback):
    """Ends a training after two rounds, as a crash would."""

    def after_round(self, training: Any, progress: Any) -> None:
        if progress.round == 2:
            raise KeyboardInterrupt


OWN: dict[str, Any] = {"server_optimizer": signs(), "sampler": last_and_first, "schedule": halves}


def test_own_parts_train_and_resume(problem: Any, tmp_path: Path) -> None:
    model, clients, test = problem
    seen: list[Any] = []

    class Look(anybit.Callback):
        def after_round(self, training: Any, progress: Any) -> None:
            seen.append(training.state)

    client = anybit.ClientOptions(batch_size=2, local_steps=4, momentum=0.9, prox=0.1, schedule="cosine")
    settings: Any = {"rounds": 4, "cohort": 2, "engine": "sequential", "device": "cpu", "checkpoint_every": 1,
                     "client": client, "server": anybit.ServerOptions(lr=0.25), **OWN}
    whole = anybit.fit(model, clients, test, anybit.baseline(), callbacks=[Look()], **settings)
    first, second = ((seen[i + 1].w["0.weight"] - seen[i].w["0.weight"]).abs() for i in range(2))
    assert torch.allclose(first, torch.full_like(first, 0.125))  # η_s halves: 0.25, 0.125, 0.0625
    assert torch.allclose(second, torch.full_like(second, 0.0625))
    assert int(seen[-1].optimizer[1]) == 4
    with pytest.raises(KeyboardInterrupt):
        anybit.fit(model, clients, test, anybit.baseline(), path=tmp_path / "run", callbacks=[Stop()], **settings)
    stored = json.loads((tmp_path / "run/config.json").read_text())
    assert {stored["server"]["optimizer"], stored["server"]["schedule"], stored["sampling"]["policy"]} == {"<python object>"}
    resumed = anybit.fit(model, clients, test, anybit.baseline(), path=tmp_path / "run", resume=True, **settings)
    for name, p in whole.model.state_dict().items():
        assert torch.equal(p, resumed.model.state_dict()[name]), name


@pytest.mark.parametrize("client", [{"momentum": 0.9}, {"optimizer": "adamw", "lr": 1e-2},
                                    {"schedule": "linear", "decay": 1.0}])
def test_a_resumed_run_equals_one_that_was_never_interrupted(problem: Any, tmp_path: Path, client: Any) -> None:
    model, clients, test = problem
    settings: Any = {"rounds": 3, "engine": "stacked", "device": "cpu", "checkpoint_every": 1,
                     "client": anybit.ClientOptions(batch_size=2, **client)}
    whole = anybit.fit(model, clients, test, **settings)
    assert whole.config.cohort == 5
    with pytest.raises(KeyboardInterrupt):
        anybit.fit(model, clients, test, path=tmp_path / "run", callbacks=[Stop()], **settings)
    resumed = anybit.fit(model, clients, test, path=tmp_path / "run", resume=True, **settings)
    for name, p in whole.model.state_dict().items():
        assert torch.equal(p, resumed.model.state_dict()[name]), name


def grows(state: Any, w: Any, delta: Any, rate: Tensor) -> Any:
    return {**state, "n": torch.zeros(len(state) + 1)}, dict(w)


@pytest.mark.parametrize(("own", "message"), [
    ({"sampler": lambda seed, round, clients, size: [0] * size}, "the sampler gave the clients \\[0, 0\\] in round 1"),
    ({"sampler": lambda seed, round, clients, size: [5, 1]}, "from 0 to 4"),
    ({"schedule": lambda round, rounds: float("nan")}, "the schedule gave nan in round 1 of 2"),
    ({"server_optimizer": anybit.ServerOptimizer(lambda w: {"n": 0}, grows)}, "state holds 0"),
    ({"server_optimizer": anybit.ServerOptimizer(lambda w: {}, grows)}, "returns a state of another form"),
    ({"server_optimizer": anybit.ServerOptimizer(lambda w: (), lambda *_: None)}, "must return \\(state, w\\)"),
])
def test_own_parts_are_checked(problem: Any, own: Any, message: str) -> None:
    model, clients, test = problem
    with pytest.raises(ConfigError, match=message):
        anybit.fit(model, clients, test, rounds=2, cohort=2, engine="sequential", device="cpu", **own)


def test_own_parts_in_a_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By name, and only from a module that may be imported."""
    (tmp_path / "own_parts_of_a_test.py").write_text(
        "import anybit\n"
        "def sgd(options):\n"
        "    return anybit.ServerOptimizer(lambda w: (), lambda state, w, delta, rate: (state, dict(w)))\n"
        "def first(seed, round, clients, size):\n    return range(size)\n"
        "def half(round, rounds):\n    return 0.5\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = "own_parts_of_a_test"
    config = from_recipe("quickstart/mqat", [f"server.optimizer={module}:sgd", f"server.schedule={module}:half",
                                             f"sampling.policy={module}:first"])
    with pytest.raises(ConfigError, match=f"'{module}:sgd' is code outside anybit: allow it with trusted=\\['{module}'\\]"):
        build_task(config)
    task = build_task(config, [module])
    assert task.schedule is not None
    assert task.schedule(0, 1) == 0.5
    assert task.sampler is not None
    assert [*task.sampler(1, 0, 9, 2)] == [0, 1]
    assert isinstance(task.server, anybit.ServerOptimizer)
    assert written_out(config, [module]).server.optimizer == f"{module}:sgd"


@pytest.mark.parametrize(("override", "message"), [
    ("server.optimizer=adm", "server.optimizer = 'adm': must be one of sgd, adam, adagrad, yogi, or 'module:function'"),
    ("server.schedule=cos", "server.schedule = 'cos': must be one of constant, linear, cosine"),
    ("sampling.policy=random", "sampling.policy = 'random': must be one of uniform"),
    ("server.momentum=0.9", "server.momentum = 0.9: is SGD's; adam has beta1")])
def test_names_that_nothing_has(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_recipe("quickstart/mqat", [override])
