"""Real run folders, trained in a moment: a small network on random points."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from anybit.config import Component, Config, EvaluationOptions, RangeOptions
from anybit.data.examples import Data, Examples
from anybit.errors import Interrupted
from anybit.federated import variants
from anybit.report import write_report
from anybit.schema import plain
from anybit.training.callbacks import EachRound
from anybit.training.course import Progress, Watch
from anybit.training.run_folder import RunFolder
from anybit.training.task import Task
from tests.trainings import begun, to_end
from tests.unrecorded import unrecorded

ROUNDS = 3


def _data() -> Data:
    draw = torch.Generator().manual_seed(5)
    x, y = torch.randn(60, 1, 4, 4, generator=draw), torch.arange(60) % 3
    x += y.reshape(-1, 1, 1, 1)
    return Data(Examples(x[:40], y[:40]), Examples(x[40:], y[40:]))


def _model() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))


def train(path: Path, variant: variants.Variant, *, bits: tuple[int, ...] = (32, 8, 4, 2),
          sites: tuple[str, ...] = ("W",), stop_after: int | None = None) -> Path:
    """A run folder, finished or stopped after some rounds."""
    config = Config(rounds=ROUNDS, cohort=2, engine="sequential", device="cpu", checkpoint_every=1,
                    variant=Component(variant.name, {"bits": plain(variant.bits)}), model=Component("lenet5"),
                    ranges=RangeOptions(calibration_images=8),
                    evaluation=EvaluationOptions(every=1, bits=bits, sites=sites, batch_size=20))  # type: ignore[arg-type]
    split = [np.arange(0, 12), np.arange(12, 40)]
    folder = RunFolder.create(path, plain(config), {"anybit": "0.1.0", "machine": "x86_64"})
    folder.save_split(split)
    watch = Watch()

    def on_round(progress: Progress) -> None:
        watch.stop = progress.round == stop_after

    run = begun(Task(_model(), variant, _data(), split), config, folder, watch=watch, callbacks=[EachRound(on_round)])
    if stop_after is None:
        to_end(run)
    else:
        with pytest.raises(Interrupted):
            to_end(run)
    return path


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs: baseline, mqat, qat (all kinds of sites, other bits), stopped."""
    home = tmp_path_factory.mktemp("runs")
    train(home / "baseline", variants.baseline())
    train(home / "mqat", variants.mqat())
    train(home / "qat", variants.qat(bits=4), bits=(32, 4, 3), sites=("W", "A", "WA"))
    train(home / "stopped", variants.mqat(), stop_after=2)
    return home


@pytest.fixture(scope="session")
def page(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of all of them, in a folder that was not there before."""
    names = ("baseline", "mqat", "qat", "stopped")
    return write_report([trained / name for name in names], tmp_path_factory.mktemp("out") / "new" / "report")


@pytest.fixture
def copied(trained: Path, tmp_path: Path) -> Callable[[str, str], Path]:
    """A copy of a run under another name, free to be edited: without the digests that would tell."""
    def copy(run: str, name: str) -> Path:
        return unrecorded(Path(shutil.copytree(trained / run, tmp_path / "copies" / name)))
    return copy
