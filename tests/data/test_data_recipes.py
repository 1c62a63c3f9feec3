"""The paper's recipes for the larger sets, from the hub's files to results, on samples of a few images."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from anybit.data import known
from anybit.data.hub import prepare
from anybit.reproduction.compare import compare
from anybit.sweeps.plan import SweepFolder, plan
from anybit.sweeps.results import read_results
from anybit.sweeps.schedule import SweepWatch, train_sweep

Write = Callable[..., Path]

FEW = ["rounds=2", "cohort=2", "client.batch_size=2", "evaluation.every=1", "evaluation.bits=[32,4]",
       'evaluation.sites=["W"]', 'evaluation.steps=["rule"]', "ranges.calibration_images=2", "threads=1"]


def sample(name: str, root: Path, write: Write, size: int, counts: Mapping[str, int], names: dict[str, list[str]],
           **labels: np.ndarray) -> None:
    """A sample of a known set as the hub has it, prepared; only the facts of the complete set are not asked for."""
    source, draw = known.KNOWN[name], np.random.default_rng(3)
    for split, count in counts.items():
        write(root / source.id / source.folder / f"{split}-00000-of-00001.parquet", source.columns.image,
              draw.integers(256, size=(count, size, size, 3), dtype=np.uint8), names,
              **{column: values[:count] for column, values in labels.items()})
    prepare(name, dataclasses.replace(source, facts=None), root)


def train(recipe: str, overrides: list[str], path: Path) -> None:
    """A run that is stopped on the way and continued; its results find their column in the paper."""
    sweep = SweepFolder.begin(path, plan([recipe], [*FEW, *overrides], [1]))
    watch = SweepWatch()
    watch.on_round = lambda name, progress: setattr(watch, "stop", progress.round == 1)
    assert train_sweep(sweep, watch) == {}
    assert sweep.unfinished()
    assert train_sweep(sweep, SweepWatch()) == {}
    found = read_results([path])
    assert found.unfinished == []
    assert [p.round for p in found.results[0].curve] == [1, 2]
    (table,) = compare(found.results).tables
    cell = table.columns[recipe.rpartition("/")[2]].cells[4]
    assert cell.ours is not None
    assert cell.paper is not None


def test_cifar100_with_resnet20(tmp_path: Path, write_parquet: Write) -> None:
    fine = np.arange(200) % 100
    names = {"fine_label": [f"fine {i}" for i in range(100)], "coarse_label": [f"coarse {i}" for i in range(20)]}
    sample("cifar100", tmp_path / "hub", write_parquet, 32, {"train": 200, "test": 6}, names, fine_label=fine,
           coarse_label=fine // 5)
    train("paper/cifar100-resnet20/qat4", ["split.clients=50"], tmp_path / "sweep")


def test_tinyimagenet_with_resnet18(tmp_path: Path, write_parquet: Write) -> None:
    sample("tinyimagenet", tmp_path / "hub", write_parquet, 64, {"train": 200, "valid": 1},
           {"label": [f"n{i:08d}" for i in range(200)]}, label=np.arange(200))
    train("paper/tinyimagenet-resnet18/qat4", ["split.clients=200", "cohort=1", "ranges.calibration_images=1"],
          tmp_path / "sweep")


def test_femnist_with_lenet5(hub: Path, tmp_path: Path) -> None:
    prepare("femnist", known.KNOWN["femnist"], hub)
    settings = [*FEW, "data.writers=6", "client.batch_size=20", "ranges.weights=minmax"]
    sweep = SweepFolder.begin(tmp_path / "sweep", plan(["paper/femnist-lenet5/mqat-fixed"], settings))
    assert train_sweep(sweep, SweepWatch()) == {}
    assert compare(read_results([sweep.path]).results).tables[0].key == "femnist_lenet5_w"
