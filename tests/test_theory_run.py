"""`anybit bound`: the constants of a run whose loss is a quadratic, so that each of them is known."""

from __future__ import annotations

import json
import re
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from anybit.config import ClientOptions, Component, Config
from anybit.errors import ConfigError
from anybit.federated.server import ServerOptions
from anybit.quant.ranges import StepTable
from anybit.quant.sites import SiteOptions
from anybit.schema import plain
from anybit.theory.estimates import Known
from anybit.theory.run_bound import clipped_share, run_bound
from anybit.training.build import build_task
from anybit.training.run import Run
from anybit.training.run_folder import RunFolder
from tests.trainings import begun, to_end

MODULE = '''
import numpy as np, torch
from torch import nn
from anybit.data.examples import Data, Examples

HESSIAN = torch.tensor([0.5, 1.0, 2.0])

def model():
    return nn.Sequential(nn.Linear(1, 3, bias=False))

def data():
    y = torch.from_numpy(np.random.default_rng(5).normal(size=(20, 3)).astype(np.float32))
    examples = Examples(torch.ones(20, 1), y)
    return Data(examples, examples)

def split(labels, seed):
    return list(np.arange(20).reshape(4, 5))

def quadratic(outputs, targets):
    return 0.5 * (HESSIAN * (outputs - targets) ** 2).sum(1)
'''
CONFIG = Config(data=Component("known:data"), split=Component("known:split"), model=Component("known:model"),
                variant=Component("qat", {"bits": 4, "start": "cover"}), loss="known:quadratic",
                metric="known:quadratic", rounds=3, cohort=4, client=ClientOptions(lr=0.005, batch_size=1),
                server=ServerOptions("sgd", 1.0),
                sites=SiteOptions(quantize_image=False), device="cpu", threads=1)


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    (tmp_path / "known.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)

    def train(config: Config = CONFIG) -> Path:
        folder = RunFolder.create(tmp_path / "run", plain(config), {})
        task = build_task(config, ["known"])
        folder.save_split(task.split)
        to_end(begun(task, config, folder))
        return folder.path
    return train


def test_every_constant_of_a_quadratic_is_found(trained) -> None:  # type: ignore[no-untyped-def]
    run = Run.load(trained(), trusted=["known"])
    result, task = run_bound(run), run.task()
    hessian, y = torch.tensor([0.5, 1.0, 2.0]), task.data.train.y.reshape(4, 5, 3)
    centres, w_1 = y.mean(1), next(task.model.parameters()).detach()[:, 0]
    s = result.setting
    assert (s.K, s.eta_c, s.eta_s, result.rounds, result.quantized) == (5, 0.005, 1.0, 3, 3)
    assert 1.98 < s.L < 2.01
    within = ((y - centres[:, None]) * hessian).square().sum((1, 2)) / 4
    assert s.sigma_l**2 == pytest.approx(float(within.max()), rel=1e-4)
    between = ((centres - centres.mean(0)) * hessian).square().sum(1)
    assert s.sigma_g**2 == pytest.approx(float(between.mean()), rel=1e-4)
    assert result.gap == pytest.approx(float(0.5 * (hessian * (w_1 - y.reshape(-1, 3)) ** 2).sum(1).mean()), rel=1e-4)
    step = run.folder.steps()["0.weight_quantizer"]["4"]
    assert s.noise == pytest.approx(3 * (step / 2) ** 2)
    assert result.radius == pytest.approx(step / 2)
    w = run.folder.model()["0.weight"][:, 0]
    assert result.gradient == pytest.approx(float((hessian * (w - centres.mean(0))).square().sum()), rel=1e-4)
    assert result.bound is not None
    assert result.gradient < result.bound.total
    assert result.outside == ["an epoch draws batches without replacement, the theorem takes independent ones"]


def test_given_constants_are_taken(trained) -> None:  # type: ignore[no-untyped-def]
    result = run_bound(Run.load(trained(), trusted=["known"]), Known(L=3, sigma_l=0.5, sigma_g=0.25, gap=7, eta_s=0.5))
    s = result.setting
    assert (s.L, s.sigma_l, s.sigma_g, result.gap, s.eta_s) == (3, 0.5, 0.25, 7, 0.5)
    assert set(result.sources.values()) == {"given"}


@pytest.mark.parametrize(("change", "text"), [
    ({"server": ServerOptions("adam", 1e-3)}, "the server runs adam.*SGD with η_s = 0.001"),
    ({"cohort": 2}, "2 of 4 clients"),
    ({"weighting": "examples"}, "by examples"),
    ({"variant": Component("baseline")}, "R = 0")])
def test_departures_from_the_theorem_are_said(trained, change, text) -> None:  # type: ignore[no-untyped-def]
    result = run_bound(Run.load(trained(replace(CONFIG, **change)), trusted=["known"]))
    assert any(re.search(text, line) for line in result.outside)


def test_clipped_weights_are_counted(trained) -> None:  # type: ignore[no-untyped-def]
    """4 bits with Δ = ½ reach from −4 to 3½; up to Δ/2 beyond that is still within Assumption 3."""
    task = Run.load(trained(), trusted=["known"]).task()
    table = StepTable({"0.weight_quantizer": torch.full((7,), 0.5)})
    w = {"0.weight": torch.tensor([[5.0], [0.1], [-4.2]])}
    assert clipped_share(task, CONFIG, table, w) == pytest.approx(1 / 3)


def test_steps_per_channel_are_summed(trained) -> None:  # type: ignore[no-untyped-def]
    config = replace(CONFIG, variant=Component("apqn", {"bits": 3}), sites=SiteOptions(per_channel=True))
    run = Run.load(trained(config), trusted=["known"])
    steps = run.folder.steps()["0.weight_quantizer"]["3"]
    assert len(set(steps)) == 3
    assert run_bound(run).setting.noise == pytest.approx(sum(step**2 / 12 for step in steps))


@pytest.fixture
def verb():  # type: ignore[no-untyped-def]
    """The command line's function; importing typer itself warns about click."""
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        from anybit.cli.bound import bound
    return bound


def test_the_verb_prints_json(verb, trained, capsys) -> None:  # type: ignore[no-untyped-def]
    verb(trained(), imports=["known"], json=True)
    printed = json.loads(capsys.readouterr().out)
    assert printed["bound"] == pytest.approx(sum(printed["terms"].values()))


def test_the_verb_fails_on_a_learning_rate_that_is_too_large(verb, trained, capsys) -> None:  # type: ignore[no-untyped-def]
    path = trained()
    with pytest.raises(ConfigError, match=r"largest admissible eta_c is 0\.002$"):
        verb(path, smoothness=10.0, imports=["known"])
    assert "1/(10·L·K)" in capsys.readouterr().out
