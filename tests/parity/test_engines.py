"""Every engine gives the deltas of the sequential one: all variants and sites, uneven clients, mixed widths.

In double precision: in single precision a value that lies on the edge between two levels may round either way, and the
difference would grow from there.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from anybit.config import RangeOptions
from anybit.federated.client import ClientOptions
from anybit.federated.cohort import build_cohort
from anybit.federated.variants import apqn, carousel, mqat
from anybit.quant.grid import Width
from anybit.quant.sites import SiteOptions
from anybit.training.course import Training
from tests.gathered import ENGINES, gathered
from tests.parity.cases import SITES, SIZES, VARIANTS, training, with_decay


def deltas_by_engine(run: Training, widths: list[Width]) -> dict[str, tuple[dict[str, Tensor], Tensor]]:
    cohort = build_cohort(1, 3, range(len(SIZES)), widths, run.computation.task.split, ClientOptions(batch_size=4, epochs=2),
                          run.computation.task.variant.step_widths)
    step, given = run.computation.client_step(run.table), run.computation.given(run.table).at(run.state.w)
    return {name: gathered(engine, step, run.state.trainable, given, cohort) for name, engine in ENGINES.items()}


def assert_parity(results: dict[str, tuple[dict[str, Tensor], Tensor]]) -> None:
    reference, losses = results.pop("sequential")
    assert all(float(reference[n].abs().amax()) > 0 for n in reference)
    for engine, (deltas, other) in results.items():
        assert torch.allclose(losses, other.to(losses.dtype), atol=1e-6), engine
        for name, delta in reference.items():
            assert torch.allclose(delta, deltas[name], atol=1e-9), (engine, name)


@pytest.mark.parametrize("name", VARIANTS)
def test_parity(name: str) -> None:
    variant = VARIANTS[name]
    run = training(variant)
    assert_parity(deltas_by_engine(run, variant.widths_of(1, 3, range(len(SIZES)))))


def test_parity_with_clipped_gradients() -> None:
    widths = [Width(2, 2), Width(4, 8), Width(3, 32), Width(32, 32)]
    free, short = (deltas_by_engine(training(mqat(sites="WA"), clip=clip), widths) for clip in (None, 0.1))
    for engine, (deltas, _) in short.items():
        assert float(_length(deltas)) < 0.5 * float(_length(free[engine][0]))
    assert_parity(short)


def _length(deltas: dict[str, Tensor]) -> Tensor:
    return torch.stack([d.square().sum() for d in deltas.values()]).sum().sqrt()


def test_parity_with_max_pooling() -> None:
    """Weights only: quantized activations tie in a pooling window, and which of two equal maxima gets the gradient is
    decided by the last bit."""
    run = training(mqat(), nn.MaxPool2d(2))
    assert_parity(deltas_by_engine(run, [Width(2, 32), Width(4, 32), Width(8, 32), Width(32, 32)]))


@pytest.mark.parametrize("sites", SITES)
def test_parity_with_mixed_widths_in_one_cohort(sites: str) -> None:
    """2, 4, 8 and 32 bits side by side, and pairs that differ between weights and activations."""
    run = training(with_decay(mqat(sites=sites)))  # type: ignore[arg-type]
    assert_parity(deltas_by_engine(run, [Width(2, 8), Width(4, 2), Width(8, 32), Width(32, 3)]))


@pytest.mark.parametrize("sites", SITES)
@pytest.mark.parametrize("per_channel", [False, True])
def test_parity_with_learned_steps(sites: str, per_channel: bool) -> None:
    run = training(mqat(sites=sites, start="lsq"), ranges=RangeOptions(learned=True),  # type: ignore[arg-type]
                   sites=SiteOptions(per_channel=per_channel))
    widths = [Width.of(sites, bits) for bits in (2, 2, 4, 8)]  # type: ignore[arg-type]
    results = deltas_by_engine(run, widths)
    for deltas, _ in results.values():
        moved = {n: d for n, d in deltas.items() if n.startswith("log_step/")}
        assert moved
        for delta in moved.values():
            flat = delta.reshape(4, 7, -1).abs().amax(2) > 0
            # clients 0 and 1 move Δ₂ alone, client 2 Δ₄ alone, client 3 Δ₈ alone
            assert flat[:, [1, 3, 4, 5]].sum() == 0
            assert flat[0, 2] == flat[2, 0] == flat[3, 0] == flat[0, 6] == False  # noqa: E712
            assert flat[1, 0]
            assert flat[3, 6]
    assert_parity(results)


def test_parity_where_weights_follow_and_activations_are_learned() -> None:
    run = training(carousel(sites="WA"), ranges=RangeOptions(follow=True, learned=True))
    assert run.state.log_steps.weights == {}
    scaled = run.computation._step_scale(run.computation._prepared(), run.table)
    assert set(scaled) == set(run.state.log_steps.activations), "a weight that is not learned is rounded with all others"
    grown = run.state._replace(w={name: 2 * p for name, p in run.state.w.items()})
    results = deltas_by_engine(replace(run, state=grown), [Width(2, 2), Width(4, 8), Width(3, 32), Width(8, 3)])
    learned = {name for name in results["sequential"][0] if name.startswith("log_step/")}
    assert learned == {"log_step/conv2.input_quantizer", "log_step/head.input_quantizer"}, "the image stays as it is"
    assert_parity(results)


@pytest.mark.parametrize("options", [SiteOptions(weight_grid="narrow", activation_grid="unsigned"),
                                     SiteOptions(per_channel=True), SiteOptions(first_last_bits=8),
                                     SiteOptions(quantize_image=False), SiteOptions(full_precision=("head",))])
def test_parity_of_site_options(options: SiteOptions) -> None:
    run = training(mqat(sites="WA"), sites=options)
    assert_parity(deltas_by_engine(run, [Width(2, 2), Width(4, 8), Width(3, 32), Width(32, 32)]))


def test_same_draws_whatever_the_cohort_around_a_client() -> None:
    """A client's noise depends on (seed, round, client) alone, not on who else is in the cohort."""
    run = training(apqn(2, "WA"))
    step, given = run.computation.client_step(run.table), run.computation.given(run.table)

    def delta(clients: list[int], engine: str) -> Tensor:
        widths = [Width(2, 2)] * len(clients)
        cohort = build_cohort(1, 3, clients, widths, run.computation.task.split, ClientOptions(batch_size=4, epochs=2))
        deltas, _ = gathered(ENGINES[engine], step, run.state.trainable, given, cohort)
        return deltas["conv2.weight"][clients.index(1)]

    reference = delta([1], "sequential")
    for engine in ENGINES:
        assert torch.allclose(delta([3, 1, 0], engine), reference, atol=1e-9)
