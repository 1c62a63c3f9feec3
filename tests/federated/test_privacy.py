"""Clipping, noise and cohorts of client-level differential privacy, by hand and in every engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

import anybit
from anybit.config import Config, EngineName
from anybit.data.examples import Data, Examples
from anybit.engines.ranks import Ranks
from anybit.engines.sequential import Sequential
from anybit.errors import ConfigError
from anybit.federated.cohort import sample_clients
from anybit.federated.privacy import PrivacyOptions, clipped_deltas, drawn_clients, drawn_noise, private_combiner
from anybit.federated.sampling import SamplingOptions
from anybit.federated.server import ServerOptions
from anybit.federated.state import LogSteps, Trainable
from anybit.federated.variants import Variant, baseline, carousel, mqat
from anybit.training.computation import open_computation
from anybit.training.loop import begin
from anybit.training.task import Task
from tests.trainings import begun, to_end, trained

SGD = ServerOptions(optimizer="sgd", lr=1.0)
CENTRAL = PrivacyOptions(clip=0.5, noise=0.7)
POISSON = replace(CENTRAL, sampling="poisson")
LOCAL = replace(CENTRAL, where="local")


def task(variant: Variant | None = None, clients: int = 12) -> Task:
    draw = np.random.default_rng(3)
    sizes = draw.integers(1, 9, size=clients)
    x, y = draw.normal(size=(sizes.sum(), 5)), draw.integers(3, size=sizes.sum())
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    data = Data(Examples(torch.from_numpy(x), torch.from_numpy(y)),
                Examples(torch.from_numpy(draw.normal(size=(6, 5))), torch.from_numpy(draw.integers(3, size=6))))
    return Task(model, variant or baseline(), data, np.split(np.arange(sizes.sum()), np.cumsum(sizes)[:-1]))


def config(privacy: PrivacyOptions, engine: EngineName = "sequential", **settings: Any) -> Config:
    return Config(rounds=2, cohort=4, privacy=privacy, engine=engine, device="cpu", threads=1,
                  **{"server": SGD, **settings})


def test_a_delta_is_clipped_as_a_whole_with_its_learned_step_sizes() -> None:
    deltas = Trainable({"a": torch.tensor([[3.0], [0.3], [float("nan")]]), "b": torch.zeros(3, 1, 1)},
                       LogSteps({"a": torch.tensor([[4.0], [0.4], [1.0]])}, {}))
    cut = clipped_deltas(deltas, 1.0)
    torch.testing.assert_close(cut.w["a"], torch.tensor([[0.6], [0.3], [0.0]]))  # ‖(3, 4)‖ = 5, ‖(0.3, 0.4)‖ = 0.5
    torch.testing.assert_close(cut.log_steps.weights["a"], torch.tensor([[0.8], [0.4], [0.0]]))


def test_the_mean_is_the_sum_over_the_expected_cohort_plus_the_noise() -> None:
    like = Trainable({"a": torch.zeros(1)}, LogSteps({"a": torch.zeros(7)}, {}))
    deltas = Trainable({"a": torch.tensor([[2.0], [-0.5]])}, LogSteps({"a": torch.zeros(2, 7)}, {}))
    noise = Trainable({"a": torch.tensor([10.0])}, LogSteps({"a": torch.full((7,), 20.0)}, {}))
    combine = private_combiner(PrivacyOptions(clip=1.0, noise=1.0), like, noise)
    bits = torch.full((2, 1, 2), 4)
    delta, _ = combine([(slice(0, 2), deltas, torch.zeros(2, 1))], bits, torch.full((2,), 1 / 5))
    torch.testing.assert_close(delta.w["a"], torch.tensor([(1.0 - 0.5) / 5 + 10]))
    torch.testing.assert_close(delta.log_steps.weights["a"], torch.full((7,), 20.0))
    nobody, losses = combine([], bits[:0], torch.zeros(0))
    assert nobody.w["a"].item() == 10.0
    assert losses.numel() == 0


def test_central_noise_has_the_deviation_of_the_mean_and_local_noise_that_of_a_delta() -> None:
    like = Trainable({"a": torch.zeros(40_000)})
    central = drawn_noise(PrivacyOptions(clip=0.5, noise=2.0), like, 1, 0, [1, 2, 3], 10).w["a"]
    assert central.std().item() == pytest.approx(2.0 * 0.5 / 10, rel=0.02)
    local = drawn_noise(PrivacyOptions(clip=0.5, noise=2.0, where="local"), like, 1, 0, [1, 2, 3], 10).w["a"]
    assert local.shape == (3, 40_000)
    assert local.std().item() == pytest.approx(2.0 * 0.5, rel=0.02)
    assert abs(torch.corrcoef(local)[0, 1].item()) < 0.03


def test_noise_is_keyed_by_seed_and_round_unless_it_is_secret() -> None:
    like = Trainable({"a": torch.zeros(8)})

    def drawn(options: PrivacyOptions, seed: int, round: int) -> list[float]:
        return drawn_noise(options, like, seed, round, [0], 4).w["a"].tolist()  # type: ignore[no-any-return]

    assert drawn(CENTRAL, 1, 0) == drawn(CENTRAL, 1, 0) != drawn(CENTRAL, 1, 1)
    assert drawn(CENTRAL, 1, 0) != drawn(CENTRAL, 2, 0)
    secret = replace(CENTRAL, secret=True)
    assert drawn(secret, 1, 0) != drawn(secret, 1, 0)
    assert {drawn_clients(secret, 1, 0, 1000, 10) for _ in range(3)} != {sample_clients(1, 0, 1000, 10)}


def test_draws_from_the_systems_entropy_are_normal_and_uniform() -> None:
    secret = PrivacyOptions(clip=0.5, noise=2.0, secret=True)
    noise = drawn_noise(secret, Trainable({"a": torch.zeros(300, 400)}), 1, 0, [], 10).w["a"].flatten() / 0.1
    assert noise.mean().abs().item() < 0.02
    moments = [(noise.double() ** k).mean().item() for k in (2, 4)]
    assert moments == pytest.approx([1, 3], rel=0.06)
    assert (noise.abs() < 1).double().mean().item() == pytest.approx(0.6827, abs=0.01)
    clients = [drawn_clients(secret, 1, 0, 20, 5) for _ in range(400)]
    assert all(len(set(cohort)) == 5 for cohort in clients)
    assert np.bincount(np.concatenate(clients), minlength=20).min() > 60  # 100 expected, deviation 9


def test_a_poisson_cohort_takes_everybody_with_the_same_chance() -> None:
    cohorts = [drawn_clients(POISSON, 1, round, 50, 5) for round in range(400)]
    sizes = [len(cohort) for cohort in cohorts]
    assert np.mean(sizes) == pytest.approx(5, abs=0.4)
    assert np.var(sizes) == pytest.approx(50 * 0.1 * 0.9, rel=0.25)
    assert np.bincount([c for cohort in cohorts for c in cohort], minlength=50).min() > 15
    assert drawn_clients(CENTRAL, 1, 0, 50, 5) == sample_clients(1, 0, 50, 5)


@pytest.mark.parametrize("engine", ["stacked", "processes"])
@pytest.mark.parametrize("privacy", [CENTRAL, POISSON, LOCAL, PrivacyOptions(clip=0.05)],
                         ids=["central", "poisson", "local", "clip alone"])
@pytest.mark.parametrize(("variant", "learned"), [(baseline(), False), (mqat(), True), (carousel(), False)],
                         ids=["baseline", "mqat learned", "carousel"])
def test_engines_agree(engine: EngineName, privacy: PrivacyOptions, variant: Variant, learned: bool) -> None:
    ranges = anybit.RangeOptions(learned=learned)
    w = trained(task(variant), config(privacy, ranges=ranges)).w
    other = trained(task(variant), config(privacy, engine, ranges=ranges)).w
    for name, expected in w.items():
        torch.testing.assert_close(other[name], expected, rtol=0, atol=1e-9)
    without = trained(task(variant), config(PrivacyOptions(), ranges=ranges)).w
    assert any((without[name] - expected).abs().max() > 1e-4 for name, expected in w.items())


@pytest.mark.parametrize("privacy", [CENTRAL, LOCAL], ids=["central", "local"])
def test_a_rank_hides_its_share_of_the_cohort(privacy: PrivacyOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only rank of a real group; its parts have positions instead of slices."""
    monkeypatch.setattr("anybit.engines.ranks.die_with_torchrun", lambda: None)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    settings = config(privacy, ranges=anybit.RangeOptions(learned=True))
    computation = open_computation(task(mqat()), settings)
    ranked = begin(replace(computation, engine=Ranks(Sequential(), torch.device("cpu"))))
    done = to_end(ranked)
    for name, expected in trained(task(mqat()), settings).w.items():
        torch.testing.assert_close(done.w[name], expected, rtol=0, atol=1e-9)


def test_a_cohort_of_nobody_moves_the_model_by_noise_alone() -> None:
    training = begun(task(), replace(config(replace(POISSON, noise=1.0)), cohort=1, rounds=6))
    empty = [round for round in range(6) if not training.computation.cohort(round).clients]
    assert empty, "with q = 1/12 some of six cohorts are empty"
    before = {name: p.clone() for name, p in training.state.w.items()}
    done = to_end(training)
    assert len(done.metrics) == 6
    assert all(bool((done.w[name] != p).all()) for name, p in before.items())


def test_a_run_without_privacy_draws_and_weighs_as_ever() -> None:
    training = begun(task(), config(PrivacyOptions()))
    inputs = training.computation.inputs(training.computation.given(training.table), 0)
    assert inputs.cohort.clients == sample_clients(1, 0, 12, 4)
    assert not inputs.noise.w
    torch.testing.assert_close(inputs.weighting, torch.full((4,), 0.25))


@pytest.mark.parametrize(("settings", "reason"), [
    ({"server": ServerOptions(mean="median")}, "no order statistic"),
    ({"weighting": "examples"}, "number of a client's examples is private"),
    ({"sampling": SamplingOptions(policy="stratified")}, "drawn uniformly"),
    ({"privacy": replace(CENTRAL, secret=True)}, "checkpoint_every=1")])
def test_what_would_break_the_promise_is_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Config(**{"privacy": CENTRAL, **settings})


@pytest.mark.parametrize(("settings", "reason"), [
    ({"noise": 1.0}, "set privacy.clip"), ({"clip": 1.0, "sampling": "poisson"}, "without privacy.noise"),
    ({"clip": 1.0, "noise": 1.0, "where": "local", "sampling": "poisson"}, "needs sampling = uniform"),
    ({"clip": 0.0}, "above 0"), ({"clip": 1.0, "noise": 1.0, "delta": 1.0}, "below 1")])
def test_settings_that_cannot_be_are_errors(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        PrivacyOptions(**settings)


def test_widths_that_depend_on_the_cohort_are_refused() -> None:
    with pytest.raises(ConfigError, match="deals widths out"):
        begun(task(carousel(widths="cohort")), config(CENTRAL))
    begun(task(carousel(widths="clients")), config(CENTRAL))


def test_a_private_training_tells_no_losses_and_calibrates_on_test_images() -> None:
    training = begun(task(mqat(sites="WA")), config(CENTRAL))
    tests = {tuple(row) for row in training.computation.task.data.test.x.tolist()}
    assert {tuple(row) for row in training.computation.evaluator.images.tolist()} == tests
    done = to_end(training)
    assert all("loss" not in entry for entry in done.metrics)
    assert done.metrics[-1]["epsilon"] == done.evaluation["privacy"]["epsilon"] > 0
