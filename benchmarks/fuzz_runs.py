"""A run folder that was really trained, of a model of a few weights, for readers to damage."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from torch import nn

import anybit
from anybit.config import Config
from anybit.data.examples import Data, as_examples
from anybit.files.digests import unmarked
from anybit.files.reading import read_json
from anybit.schema import plain, read
from anybit.training.computation import Computation, open_computation
from anybit.training.loop import Simulation, begin, train
from anybit.training.machine import computing
from anybit.training.run_folder import RunFolder
from anybit.training.task import Task

CLIENTS = [np.arange(0, 10), np.arange(10, 24)]


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


def _data() -> Data:
    x, y = torch.randn(24, 1, 2, 2, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 2
    return Data(as_examples(x, y, "train"), as_examples(x[:4], y[:4], "test"))


def _config() -> Config:
    config: Config = read(Config, {"data": {"name": "digits"}, "model": {"name": "lenet5"}, "rounds": 4, "cohort": 2,
                                   "checkpoint_every": 2, "split": {"name": "iid", "clients": 2}, "device": "cpu",
                                   "evaluation": {"every": 2, "bits": [32, 2], "sites": ["W"]}})
    return config


def recorded(home: Path) -> tuple[Computation, RunFolder]:
    """A run with its manifest."""
    config = _config()
    folder = RunFolder.create(home / "run", plain(config), {"torch": "2"}, CLIENTS)
    with computing(config):
        computation = open_computation(Task(small_model(), anybit.mqat(sites="WA"), _data(), CLIENTS), config)
        training = begin(computation, folder)
        train(training, Simulation(training))
    return computation, folder


def trained(home: Path) -> tuple[Computation, RunFolder]:
    """The same in a folder of an earlier version: with a manifest every damage would end at the first digest."""
    computation, folder = recorded(home)
    folder.file("manifest.json").unlink()
    environment = folder.file("environment.json")
    environment.write_text(json.dumps(unmarked(read_json(environment))))
    return computation, RunFolder(folder.path)
