"""Flower's simulation on Ray with its message API: python flower_run.py MODEL ACTORS."""

from __future__ import annotations

import os
import sys
from typing import Any

os.environ.update(FLWR_TELEMETRY_ENABLED="0", RAY_DEDUP_LOGS="0", RAY_USAGE_STATS_ENABLED="0")

import ray
import torch
import work
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

NAME, ACTORS = sys.argv[1], int(sys.argv[2])
client_app, server_app = ClientApp(), ServerApp()
_data: list[Any] = []


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """A client: weights in, one epoch, weights out."""
    if not _data:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // ACTORS))
        _data.extend(torch.from_numpy(a) for a in work.data())
    model = work.torch_model(NAME)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    i = int(context.node_config["partition-id"])
    samples = work.torch_epoch(model, _data[0][i], _data[1][i])
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": samples})})
    return Message(content=content, reply_to=message)


class Paced(FedAvg):
    """FedAvg that waits for the orchestrator before each round."""

    timer, lines = work.Timer(), work.rounds()

    def configure_train(self, *arguments: Any, **named: Any) -> Any:
        try:
            next(self.lines)
        except StopIteration:
            ray.shutdown()
            os._exit(0)
        self.timer.start()
        return super().configure_train(*arguments, **named)

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        kept = list(replies)
        out = super().aggregate_train(server_round, kept)
        self.timer.done(sum(int(r.content["metrics"]["num-examples"]) for r in kept))
        return out


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    strategy = Paced(fraction_evaluate=0.0, min_train_nodes=work.CLIENTS, min_available_nodes=work.CLIENTS)
    strategy.start(grid=grid, initial_arrays=ArrayRecord(work.torch_model(NAME).state_dict()),
                   train_config=ConfigRecord({"lr": work.LR}), num_rounds=10_000)


work.quiet()
run_simulation(server_app=server_app, client_app=client_app, num_supernodes=work.CLIENTS,
               backend_config={"client_resources": {"num_cpus": (os.cpu_count() or 1) // ACTORS, "num_gpus": 0.0}})
