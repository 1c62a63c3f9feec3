"""A fleet in this process: Flower's messages and anybit's ClientApp, without Flower's processes, and faults on demand."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Error
from flwr.supercore.task_identity import TaskIdentity

from anybit.config import Config, from_recipe
from anybit.errors import AnybitError
from anybit.federated.state import State
from anybit.fleet.client_app import app
from anybit.fleet.devices import Devices
from anybit.fleet.flower import Context, Grid, Message, RecordDict
from anybit.fleet.training import fleet_computation, train_fleet
from anybit.quant.ranges import StepTable
from anybit.training.build import build_task, settled
from anybit.training.computation import Computation
from anybit.training.course import Watch
from anybit.training.machine import computing
from anybit.training.opening import OpenRun
from anybit.training.task import Trained
from tests.trainings import trained

TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

SMALL = ["model.name=anybit_test_models:tiny", "rounds=3", "cohort=4", "split.clients=4", "evaluation.every=2",
         "checkpoint_every=1", "client.batch_size=64", "evaluation.sites=[\"W\"]", "engine=sequential",
         "fleet.poll=0.01", "fleet.deadline=5", "fleet.wait=5"]

MODELS = '''
from torch import nn


def tiny(hidden: int = 8) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    model[1].weight.requires_grad_(False)
    return model


class Pixels(nn.Module):
    """A recurrent model of pixels as tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm, self.head = nn.Embedding(4, 4), nn.LSTM(4, 4, batch_first=True), nn.Linear(4, 10)

    def forward(self, x):
        tokens = (x.flatten(1)[:, ::16] > 0).long()
        return self.head(self.lstm(self.embedding(tokens))[0][:, -1])
'''

Fault = Callable[[Message, Message], list[Message]]
"""(question, honest answer) → what arrives instead."""


@dataclass
class LocalGrid(Grid):  # type: ignore[misc]
    """Node 100 + i is client i, answering at once; time passes by sleeping."""

    nodes: dict[int, dict[str, Any]]
    faults: dict[int, Fault] = field(default_factory=dict)
    hellos: dict[int, Fault] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    inbox: dict[str, list[Message]] = field(default_factory=dict)
    stray: list[Message] = field(default_factory=list)
    """Messages that arrive without having been asked for by id."""
    now: float = 0.0
    asked: list[tuple[str, int]] = field(default_factory=list)

    def get_node_ids(self) -> list[int]:
        return [100 + client for client in self.nodes]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            id, client = f"m{len(self.asked)}", message.metadata.dst_node_id - 100
            message.metadata.__dict__["_message_id"] = id
            self.asked.append((message.metadata.message_type, client))
            self.inbox[id] = [] if client in self.gone else self._answers(message, client)
            ids.append(id)
        return ids

    def _answers(self, message: Message, client: int) -> list[Message]:
        context = Context(1, 100 + client, {"partition-id": client, **self.nodes[client]}, RecordDict(),
                          {"imports": "anybit_test_models"})
        try:
            reply = app(message, context)
        except AnybitError as error:
            return [Message(Error(2, f"Traceback …\n{error}"), reply_to=message)]
        faults = self.hellos if message.metadata.message_type == "query.hello" else self.faults
        return faults[client](message, reply) if client in faults else [reply]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        stray, self.stray = self.stray, []
        return stray + [message for id in message_ids for message in self.inbox.pop(id, [])]

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def set_run(self, run: Any) -> None: ...
    def run(self) -> Any: ...  # type: ignore[override]
    def create_message(self, *arguments: Any) -> Any: ...
    def send_and_receive(self, *arguments: Any, **named: Any) -> Any: ...


@pytest.fixture
def own_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module of models in this test's folder; other tests have others of the same name."""
    (tmp_path / "anybit_test_models.py").write_text(MODELS)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("anybit_test_models", None)
    yield
    sys.modules.pop("anybit_test_models", None)


def small(*overrides: str) -> Config:
    return settled(from_recipe("quickstart/mqat", [*SMALL, *overrides]), ["anybit_test_models"])


@dataclass
class FleetRun:
    """A run on the devices of a grid, before it is trained."""

    computation: Computation
    devices: Devices
    watch: Watch

    def start(self) -> tuple[State, StepTable]:
        self.devices.present(self.computation.config.places(), 1)
        return self.computation.start()

    def train(self) -> Trained:
        with computing(self.computation.config):
            return train_fleet(OpenRun(self.computation, None, False), self.devices, self.watch)


def fleet(config: Config, grid: LocalGrid, messages: list[str] | None = None) -> FleetRun:
    torch.set_num_threads(1)
    say = messages.append if messages is not None else lambda text: None
    task = build_task(config, ["anybit_test_models"])
    devices = Devices(grid, config, task.variant.sites, say)
    devices.exchange.clock, devices.exchange.sleep = lambda: grid.now, grid.sleep
    return FleetRun(fleet_computation(task, config, devices), devices, Watch(say))


def here_and_there(*overrides: str) -> tuple[Trained, Trained]:
    """Train with the sequential engine and on a fleet of four, whose weights are the same."""
    config = small(*overrides)
    here = trained(build_task(config, ["anybit_test_models"]), config)
    there = fleet(config, LocalGrid(nodes(4))).train()
    for name, expected in here.w.items():
        torch.testing.assert_close(there.w[name], expected, rtol=0, atol=1e-6)
    return here, there


def listening(devices: Devices, log: list[dict[str, Any]]) -> None:
    """Keep what happens to the devices in `log`, too."""
    inner = devices.event

    def both(entry: dict[str, Any]) -> None:
        log.append(entry)
        inner(entry)

    devices.exchange.log = devices.event = both  # type: ignore[method-assign]


def nodes(count: int, **config: Any) -> dict[int, dict[str, Any]]:
    return {client: dict(config) for client in range(count)}
