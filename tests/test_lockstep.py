"""Runs side by side in one program give what each gives alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from torch import nn

from anybit.config import ClientOptions, Component, Config, EvaluationOptions
from anybit.data.examples import Data, Examples
from anybit.engines.stacked import Stacked
from anybit.errors import Diverged, Interrupted
from anybit.federated.server import ServerOptions
from anybit.federated.variants import Variant, baseline, carousel, kure, mqat, qat
from anybit.schema import plain
from anybit.sweeps.lockstep import Runs, program_key, train_side_by_side
from anybit.training.course import Training
from anybit.training.loop import Simulation
from anybit.training.run_folder import RunFolder
from anybit.training.task import Task, Trained
from tests.trainings import begun, to_end

SIZES = [3, 9, 4, 8, 6]


def training(variant: Variant, seed: int, rounds: int = 3, scale: float = 1.0, folder: RunFolder | None = None,
             server: ServerOptions = ServerOptions(), sizes: Sequence[int] = SIZES, every: int = 100) -> Training:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3)).double()
    draw = np.random.default_rng(0)
    total = sum(sizes)
    examples = Examples(torch.from_numpy(draw.normal(size=(total, 1, 6, 6)) * scale),
                        torch.from_numpy(draw.integers(3, size=total)))
    order = np.random.default_rng(seed).permutation(total)
    config = Config(cohort=3, seed=seed, rounds=rounds, engine="stacked", checkpoint_every=2,
                    client=ClientOptions(lr=0.1, batch_size=4), server=server, evaluation=EvaluationOptions(every=every))
    task = Task(model, variant, Data(examples, examples), np.split(order, np.cumsum(sizes)[:-1]))
    return begun(task, config, folder, resume=folder is not None)


def side_by_side(runs: Sequence[Training]) -> dict[int, Trained | Exception]:
    """The outcome of every run, by its place."""
    return {int(name): outcome for name, outcome in train_side_by_side({str(i): run for i, run in enumerate(runs)})}


VARIANTS = [baseline(), qat(4), qat(2), mqat((2, 3, 4, 6, 8, 32)), mqat((4, 8), fixed=True)]


def test_each_run_ends_as_it_would_alone() -> None:
    together = [training(variant, seed) for seed, variant in enumerate(VARIANTS, 1)]
    outcomes = side_by_side(together)
    assert set(outcomes) == set(range(len(together)))
    for seed, (variant, run) in enumerate(zip(VARIANTS, together, strict=True), 1):
        alone = training(variant, seed)
        expected, ended = to_end(alone), outcomes[seed - 1]
        assert isinstance(ended, Trained)
        for name, w in expected.w.items():
            assert torch.allclose(w, ended.w[name], atol=1e-9), (variant.name, name)
        for one, other in zip(alone.state.optimizer[:2], run.state.optimizer[:2], strict=True):
            assert all(torch.allclose(moment, other[name], atol=1e-9) for name, moment in one.items()), variant.name
        assert [entry["round"] for entry in ended.metrics] == [1, 2, 3]
        assert [e["loss"] for e in ended.metrics] == pytest.approx([e["loss"] for e in expected.metrics], abs=1e-6)


def test_it_is_said_once_why_a_compiled_first_round_takes_long() -> None:
    said: list[str] = []

    def spoken_of(compiled: bool) -> Training:
        run = training(mqat(), 1)
        run.computation = replace(run.computation, engine=Stacked(3, compiled))
        run.watch.on_message = said.append
        return run

    Simulation(spoken_of(False))
    Runs({name: spoken_of(False) for name in "ab"})
    assert not said
    Simulation(spoken_of(True))
    Runs({name: spoken_of(True) for name in "ab"})
    assert [text.partition(":")[0] for text in said] == ["compiling the round"] * 2


def test_schedules_averages_and_ranges_stay_within_their_run() -> None:
    servers = [ServerOptions(schedule="linear", decay=0.7, average=0.5), ServerOptions(schedule="constant", average=0.9),
               ServerOptions(schedule="cosine", average=0.2, lr=0.01)]
    variants = [carousel(), carousel(bits=(2, 4, 32), cap=True), carousel(widths="cohort", start="mse")]
    pairs = list(zip(variants, servers, strict=True))
    together = [training(variant, 1, server=server) for variant, server in pairs]
    assert len({program_key(replace(run.config, variant=Component("carousel"))) for run in together}) == 1
    outcomes = side_by_side(together)
    for i, (variant, server) in enumerate(pairs):
        alone, ended = training(variant, 1, server=server), outcomes[i]
        expected = to_end(alone)
        assert isinstance(ended, Trained)
        assert all(torch.allclose(w, ended.w[name], atol=1e-9) for name, w in expected.w.items())
        assert all(torch.allclose(w, together[i].state.average[name], atol=1e-9) for name, w in alone.state.average.items())
        assert not torch.allclose(alone.state.average["0.weight"], alone.state.w["0.weight"], atol=1e-6)


@pytest.mark.parametrize("variants", [[baseline(weight_decay=decay) for decay in (0.5, 0.01)],
                                      [kure(scale=scale) for scale in (0.1, 1.0)]])
def test_penalties_keep_the_strength_of_their_run(variants: list[Variant]) -> None:
    together = [training(variant, 1) for variant in variants]
    outcomes = side_by_side(together)
    for i, variant in enumerate(variants):
        ended, expected = outcomes[i], to_end(training(variant, 1))
        assert isinstance(ended, Trained)
        assert all(torch.allclose(w, ended.w[name], atol=1e-9) for name, w in expected.w.items())
    first, second = (run.state.w["0.weight"] for run in together)
    assert not torch.allclose(first, second, atol=1e-6)


@pytest.mark.parametrize("mean", ["median", "trimmed", "geometric", "krum"])
def test_robust_means_stay_within_their_run(mean: Literal["median", "trimmed", "geometric", "krum"]) -> None:
    robust = ServerOptions(mean=mean, trim=0.4)
    together = [training(mqat(), seed, server=robust) for seed in (1, 2)]
    outcomes = side_by_side(together)
    for seed in (1, 2):
        ended, expected = outcomes[seed - 1], to_end(training(mqat(), seed, server=robust))
        assert isinstance(ended, Trained)
        assert all(torch.allclose(w, ended.w[name], atol=1e-9) for name, w in expected.w.items())
        plain_mean = to_end(training(mqat(), seed))
        assert not torch.allclose(plain_mean.w["0.weight"], ended.w["0.weight"], atol=1e-6)


def test_every_run_has_a_split_of_its_own() -> None:
    """Another number of clients, and other steps a round: what is padded for the longest changes nothing."""
    splits = [SIZES, [1, 2, 11, 1, 5, 4, 6], [6, 6, 6, 6, 6]]
    together = [training(mqat(), 1, sizes=sizes) for sizes in splits]
    outcomes = side_by_side(together)
    for i, sizes in enumerate(splits):
        ended, expected = outcomes[i], to_end(training(mqat(), 1, sizes=sizes))
        assert isinstance(ended, Trained)
        assert all(torch.allclose(w, ended.w[name], atol=1e-9) for name, w in expected.w.items())
        assert [e["loss"] for e in ended.metrics] == pytest.approx([e["loss"] for e in expected.metrics], abs=1e-6)


def test_runs_of_different_length_end_on_their_own() -> None:
    short, long = training(mqat(), 1, rounds=1), training(mqat(), 2, rounds=4)
    assert list(side_by_side([short, long])) == [0, 1]
    assert torch.allclose(long.state.w["0.weight"], to_end(training(mqat(), 2, rounds=4)).w["0.weight"], atol=1e-9)
    assert short.round == 1


def test_a_run_that_fails_does_not_take_the_others_with_it() -> None:
    good, bad = training(mqat(), 1), training(mqat(), 2)
    bad.state.w["0.weight"][0] = float("nan")
    failed, ended = side_by_side([bad, good]).values()
    assert isinstance(failed, Diverged)
    assert isinstance(ended, Trained)
    assert torch.allclose(ended.w["0.weight"], to_end(training(mqat(), 1)).w["0.weight"], atol=1e-9)


def test_stopped_runs_go_on_from_their_own_checkpoints(tmp_path: Path) -> None:
    def opened(seed: int) -> Training:
        fresh = training(mqat(), seed, rounds=4)
        folder = RunFolder(tmp_path / str(seed))
        if not folder.path.exists():
            RunFolder.create(folder.path, plain(fresh.config), {})
        return training(mqat(), seed, 4, folder=folder)

    first = [opened(1), opened(2)]
    first[0].watch.stop = True
    assert isinstance(side_by_side(first[:1])[0], Interrupted)
    again = [opened(1), opened(2)]
    assert [run.round for run in again] == [1, 0]
    for i, ended in side_by_side(again).items():
        assert isinstance(ended, Trained)
        expected = to_end(training(mqat(), i + 1, rounds=4))
        assert torch.allclose(ended.w["0.weight"], expected.w["0.weight"], atol=1e-9)


def test_which_runs_share_a_program() -> None:
    config = Config(variant=Component("mqat"))
    same = [Component("baseline"), Component("qat", {"bits": 2}), Component("mqat", {"bits": [4, 6, 8]}),
            Component("mqat", {"fixed": True})]
    assert len({program_key(replace(config, variant=v, seed=i)) for i, v in enumerate(same)}) == 1
    others = [Component("mqat", {"sites": "WA"}), Component("kure"), Component("apqn"),
              Component("baseline", {"dropout": 0.5})]
    assert len({program_key(replace(config, variant=v)) for v in (*same, *others)}) == 1 + len(others)
    assert program_key(config) != program_key(replace(config, cohort=5))
    nets = [Component("resnet20"), Component("resnet20", {"init": "he"}), Component("resnet20", {"groups": 8}),
            Component("mine:net"), Component("mine:net", {"init": "he"})]
    assert len({program_key(replace(config, model=net)) for net in nets}) == len(nets) - 1
    assert program_key(replace(config, split=Component("by_id"))) == program_key(config)
    for penalized in ([Component("baseline", {"weight_decay": d}) for d in (1e-2, 1e-6)],
                      [Component("kure", {"scale": s}) for s in (0.1, 1.0)]):
        assert len({program_key(replace(config, variant=v)) for v in penalized}) == 1
        assert program_key(replace(config, variant=penalized[0])) != program_key(config)
