"""Trained runs to export: seconds of the real training."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from anybit.config import Config
from anybit.environment import environment
from anybit.export.exporting import Exporter
from anybit.export.subject import Subject, from_run
from anybit.schema import plain, read
from anybit.training.build import build_task
from anybit.training.run import Run
from anybit.training.run_folder import RunFolder
from tests.export.archives import archive as archive
from tests.export.archives import archives as archives
from tests.export.archives import reader as reader
from tests.export.command import TRUSTED
from tests.export.user_net import TINY
from tests.trainings import trained

Train = Callable[..., Path]


def train(path: Path, **changes: Any) -> Path:
    """Train the tiny run with some settings of its own."""
    config: Config = read(Config, {**copy.deepcopy(TINY), **changes})
    task = build_task(config, TRUSTED)
    folder = RunFolder.create(path, plain(config), environment())
    folder.save_split(task.split)
    trained(task, config, folder)
    return path


@pytest.fixture(scope="session")
def run_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights and activations on the grid while training."""
    return train(tmp_path_factory.mktemp("run") / "wa", variant={"name": "mqat", "sites": "WA"})


@pytest.fixture(scope="session")
def weights_only_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("run") / "w", variant={"name": "mqat", "bits": [4, 8, 32]})


@pytest.fixture(scope="session")
def subject(run_path: Path) -> Subject:
    return from_run(Run.load(run_path, trusted=TRUSTED))


@pytest.fixture(scope="session")
def exporter(subject: Subject, tmp_path_factory: pytest.TempPathFactory) -> Exporter:
    """One exporter for all tests: the float graph is made once."""
    return Exporter(subject, tmp_path_factory.mktemp("export"))


@pytest.fixture
def elsewhere(exporter: Exporter, tmp_path: Path) -> Exporter:
    """The same float graph, a folder of its own."""
    other = replace(exporter, folder=tmp_path / "out")
    other.__dict__["_onnx"] = exporter._onnx
    return other
