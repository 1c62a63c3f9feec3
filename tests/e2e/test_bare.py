"""A GPU node often has torch and numpy and nothing else: the core trains there, the rest says what is missing."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"

CORE = """
import json, pathlib, sys
import anybit.training.build
from anybit.config import Config
from anybit.training.run_folder import RunFolder
from anybit.training.computation import open_computation
from anybit.training.loop import Simulation, begin, train
from anybit.schema import read
sys.path.insert(0, str(pathlib.Path.cwd()))
config = read(Config, json.loads(pathlib.Path("config.json").read_text()))
task = anybit.training.build.build_task(config, ["own"])
folder = RunFolder.create(pathlib.Path("run"), json.loads(pathlib.Path("config.json").read_text()), {})
training = begin(open_computation(task, config), folder)
train(training, Simulation(training))
loaded = {name.partition(".")[0] for name in sys.modules}
print(sorted(loaded & {"typer", "rich", "matplotlib", "sklearn", "pydantic", "safetensors", "datasets", "scipy"}))
"""

OWN = """
import torch
from anybit.data.examples import Data, as_examples

def data():
    torch.manual_seed(0)
    x, y = torch.randn(60, 6), torch.arange(60) % 3
    return Data(as_examples(x, y, "train"), as_examples(x[:9], y[:9], "test"))

def model():
    return torch.nn.Sequential(torch.nn.Linear(6, 3))
"""


SWEEP = """
import pathlib, sys
from anybit.sweeps.results import read_results, write_results
from anybit.sweeps.schedule import SweepWatch, train_sweep
from anybit.sweeps.plan import SweepFolder, plan
sweep = SweepFolder.begin(pathlib.Path("sweep"), plan(["own.toml"], [], [1, 2]))
assert train_sweep(sweep, SweepWatch(), ["own"]) == {}
write_results(read_results([sweep.path]).results, pathlib.Path("results.json"))
print(sorted({name.partition(".")[0] for name in sys.modules} & {"typer", "rich", "matplotlib", "sklearn"}))
"""


def requirements(name: str, found: set[str]) -> set[str]:
    """A distribution and everything it requires, extras aside."""
    key = re.sub(r"[-_.]+", "-", name).lower()
    if key not in found:
        try:
            distribution = importlib.metadata.distribution(key)
        except importlib.metadata.PackageNotFoundError:
            return found
        found.add(key)
        for line in distribution.requires or []:
            if "extra ==" not in line:
                requirements(re.split(r"[\s;<>=!~\[(]", line)[0], found)
    return found


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages that holds torch, numpy, what they require, and anybit: links into this environment."""
    packages = tmp_path_factory.mktemp("bare") / "packages"
    packages.mkdir()
    for name in requirements("torch", requirements("numpy", set())):
        for file in importlib.metadata.distribution(name).files or []:
            top = Path(file.parts[0])
            source = Path(str(importlib.metadata.distribution(name).locate_file(top)))
            if top.name not in ("..", "__pycache__") and source.exists() and not (packages / top.name).exists():
                (packages / top.name).symlink_to(source)
    (packages / "anybit").symlink_to(SOURCE / "anybit")
    return packages


@pytest.fixture
def bare(tmp_path: Path, packages: Path) -> Path:
    """A folder where nothing but these packages can be imported, and what is in it."""
    (tmp_path / "packages").symlink_to(packages)
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


def python(bare: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "PYTHONPATH": str(bare / "packages")}
    return subprocess.run([sys.executable, "-S", *arguments], cwd=bare, env=environment, capture_output=True, text=True,
                          timeout=240, check=False)


def test_the_core_trains_with_torch_and_numpy_alone(bare: Path) -> None:
    (bare / "config.json").write_text(json.dumps({
        "data": {"name": "own:data"}, "model": {"name": "own:model"}, "split": {"name": "iid", "clients": 4},
        "variant": {"name": "mqat", "sites": "WA"}, "rounds": 2, "cohort": 2}))
    done = python(bare, "-c", CORE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
    assert json.loads((bare / "run/evaluation.json").read_text())["grid"]["table"]["WA2"]["loss"] > 0


def test_a_sweep_trains_and_collects_with_torch_and_numpy_alone(bare: Path) -> None:
    (bare / "own.toml").write_text('rounds = 1\ncohort = 2\n[data]\nname = "own:data"\n[model]\nname = "own:model"\n'
                                   '[split]\nname = "iid"\nclients = 4\n')
    done = python(bare, "-c", SWEEP)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
    assert len(json.loads((bare / "results.json").read_text())["runs"]) == 2


def test_what_is_missing_is_named_with_its_extra(bare: Path) -> None:
    done = python(bare, "-m", "anybit", "ls")
    assert done.returncode == 2
    assert done.stderr.strip() == "anybit: the command line needs the package 'typer': pip install 'anybit[cli]'"
    digits = python(bare, "-c", "from anybit.data.sources import digits; digits()")
    assert "needs the package 'scikit-learn': pip install 'anybit[digits]'" in digits.stderr
    fleet = python(bare, "-c", "import anybit.fleet.client_app")
    assert "a fleet needs the package 'flwr': pip install 'anybit[flower]'" in fleet.stderr
    keys = python(bare, "-c", "from anybit.fleet.certificates import device_key; device_key()")
    assert "a trial certificate needs the package 'cryptography': pip install 'anybit[flower]'" in keys.stderr
    report = python(bare, "-c", "from pathlib import Path; from anybit.report import write_report;"
                                "write_report([Path('run')], Path('out'))")
    assert "pip install 'anybit[report]'" in report.stderr


def test_import_is_quick_and_quiet(bare: Path) -> None:
    """What `import anybit` costs beyond torch, as instructions would be counted: no torch, no side effects."""
    done = python(bare, "-c", "import sys, anybit; print('torch' in sys.modules, 'numpy' in sys.modules)")
    assert done.stdout.strip() == "False False"
