"""Widths of clients and of their local steps: shuffled lists, keyed draws, caps, and their place in a cohort."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anybit.errors import ConfigError
from anybit.federated.client import ClientOptions
from anybit.federated.cohort import build_cohort, join
from anybit.federated.variants import WidthsOf, carousel, cycled_widths, dealt_width
from anybit.quant.grid import FLOAT, Width

FREE = Width(FLOAT, FLOAT)
lists = st.lists(st.sampled_from([2, 3, 4, 6, 8, 32]), min_size=1, max_size=8)


@given(lists, st.integers(0, 99), st.integers(0, 99), st.integers(0, 99), st.integers(1, 40))
def test_every_pass_has_every_entry_once_and_a_longer_round_begins_as_a_shorter(bits: list[int], seed: int, round: int,
                                                                                 client: int, count: int) -> None:
    policy = cycled_widths(bits)
    drawn = policy(seed, round, client, FREE, count)
    assert len(drawn) == count
    assert {width.activations for width in drawn} == {FLOAT}
    for start in range(0, count, len(bits)):
        part = Counter(width.weights for width in drawn[start:start + len(bits)])
        assert part <= Counter(bits)
        assert part == Counter(bits) or start + len(bits) > count
    for less in (1, count // 2):
        assert policy(seed, round, client, FREE, less) == drawn[:less]


@given(lists, st.sampled_from([2, 3, 4, 6, 8, 32]), st.sampled_from([2, 4, 32]))
def test_a_cap_leaves_out_what_lies_above_it(bits: list[int], cap: int, other: int) -> None:
    """Where nothing lies below it, the client trains at the cap itself. The other kind has a cap of its own."""
    drawn = cycled_widths(bits, (4, 32))(1, 2, 3, Width(cap, other), 2 * len(bits))
    reached = [b for b in bits if b <= cap]
    assert {width.weights for width in drawn} == ({*reached} or {cap})
    assert Counter(width.weights for width in drawn[:len(reached)]) == Counter(reached)
    assert {width.activations for width in drawn} <= {2: {2}, 4: {4}, 32: {4, 32}}[other]


def test_passes_are_shuffled_anew_by_round_client_and_seed() -> None:
    bits = (2, 3, 4, 5, 6, 7, 8, 32)

    def drawn(seed: int, round: int, client: int) -> tuple[Width, ...]:
        return tuple(cycled_widths(bits)(seed, round, client, FREE, 16))

    assert drawn(1, 2, 3) == drawn(1, 2, 3)
    assert len({drawn(1, 2, 3), drawn(2, 2, 3), drawn(1, 3, 3), drawn(1, 2, 4)}) == 4
    assert drawn(1, 2, 3)[:8] != drawn(1, 2, 3)[8:]
    firsts = Counter(drawn(1, round, 0)[0].weights for round in range(800))
    assert set(firsts) == set(bits)
    assert all(abs(n - 100) < 40 for n in firsts.values())


def test_weights_and_activations_are_shuffled_independently() -> None:
    pairs = Counter(width for round in range(500) for width in cycled_widths((2, 4), (2, 4))(1, round, 0, FREE, 2))
    assert {pair: abs(n - 250) < 50 for pair, n in pairs.items()} == {(a, b): True for a in (2, 4) for b in (2, 4)}


def test_a_clients_local_steps_are_the_same_in_any_cohort() -> None:
    """Clients of 1, 5 and 3 batches; what is padded is at 32 bits, in whatever way the cohort is cut or joined."""
    split = [np.arange(2), np.arange(2, 12), np.arange(12, 18)]
    policy = cycled_widths((2, 3, 4, 6, 8, 32), (4, 8))

    def cohort(*clients: int, round: int = 7) -> torch.Tensor:
        return build_cohort(1, round, clients, [FREE] * len(clients), split, ClientOptions(batch_size=2), policy).width_bits

    whole = build_cohort(1, 7, (0, 1, 2), [FREE] * 3, split, ClientOptions(batch_size=2), policy)
    assert whole.width_bits.shape == (3, 5, 2)
    assert whole.width_bits[0, 1:].unique().tolist() == whole.width_bits[2, 3:].unique().tolist() == [FLOAT]
    assert [tuple(b.width.tolist()) for b in whole.batches(1)] == policy(1, 7, 1, FREE, 5)
    assert torch.equal(cohort(1)[0], whole.width_bits[1])
    assert torch.equal(cohort(2, 0)[0], whole.width_bits[2, :3])
    assert not torch.equal(cohort(1, round=8)[0], whole.width_bits[1])
    assert torch.equal(whole.stacked_batch(2).width, whole.width_bits[:, 2])
    assert torch.equal(whole.stacked_batch(1, torch.tensor([2, 1])).width, whole.width_bits[[2, 1], 1])
    assert torch.equal(whole.chosen([2, 0]).width_bits, cohort(2, 0))
    assert torch.equal(whole.part(slice(2, 3)).width_bits, cohort(2))
    joined = join([whole.part(slice(2, 3)), whole.part(slice(0, 2))]).width_bits
    assert torch.equal(joined, whole.width_bits[[2, 0, 1]])


@given(lists, st.integers(1, 30), st.integers(0, 50))
def test_dealt_widths_come_up_equally_often_in_a_cohort(bits: list[int], size: int, round: int) -> None:
    dealt = [width.weights for width in dealt_width("W", bits)(1, round, range(size))]
    assert len(dealt) == size
    for start in range(0, size, len(bits)):
        assert Counter(dealt[start:start + len(bits)]) <= Counter(bits)
    if len(set(bits)) == len(bits):
        counts = [dealt.count(b) for b in bits]
        assert max(counts) - min(counts) <= 1


def test_dealt_widths_are_shuffled_in_every_round() -> None:
    policy = dealt_width("WA", (2, 3, 4, 6, 8, 32))
    assert policy(1, 0, range(6)) == policy(1, 0, range(6))
    assert len({tuple(policy(1, round, range(6))) for round in range(20)}) > 15
    assert all(width.weights == width.activations for width in policy(1, 0, range(6)))


def test_carousel_and_its_rivals() -> None:
    """Each step at another width; capped, one largest width per client for good; or one width per client, not per step."""
    free, capped = carousel(), carousel(bits=(2, 2, 4, 8), cap=True)
    assert free.widths_of(1, 0, [3, 4]) == [FREE, FREE]
    assert sorted(w.weights for w in free.step_widths(1, 0, 3, FREE, 6)) == [2, 3, 4, 6, 8, 32]
    caps = capped.widths_of(1, 0, range(300))
    assert caps == capped.widths_of(1, 9, range(300))
    assert all(abs(n - 100) < 30 for n in Counter(caps).values()), "a cap does not come up more often for standing twice"
    assert {*caps} == {Width(2, FLOAT), Width(4, FLOAT), Width(8, FLOAT)}
    assert Counter(w.weights for w in capped.step_widths(1, 0, 0, Width(4, FLOAT), 3)) == {2: 2, 4: 1}
    for widths in ("clients", "cohort"):
        rival = carousel(widths=widths)
        (width,) = {*rival.step_widths(1, 0, 3, Width(4, FLOAT), 9)}
        assert width == Width(4, FLOAT)
        assert rival.widths_of(1, 0, range(12)) != rival.widths_of(1, 1, range(12))
    assert Counter(carousel(widths="cohort").widths_of(1, 0, range(6))) == Counter(Width.of("W", b) for b in free.bits)


def test_activations_may_have_a_list_of_their_own() -> None:
    both = carousel(bits=(2, 4), sites="WA", activation_bits=(8,))
    assert {w.activations for w in both.step_widths(1, 0, 0, FREE, 8)} == {8}
    assert {w.activations for w in carousel(bits=(2, 4), sites="WA").step_widths(1, 0, 0, FREE, 8)} == {2, 4}
    assert {w.weights for w in carousel(bits=(2, 4), sites="A").step_widths(1, 0, 0, FREE, 8)} == {FLOAT}
    assert both.bits == (2, 4, 8)


@pytest.mark.parametrize("widths", ["clients", "cohort"])
def test_a_cap_needs_widths_per_step(widths: WidthsOf) -> None:
    with pytest.raises(ConfigError, match=f"^variant.cap: with widths = '{widths}' a client has one width.*$"):
        carousel(widths=widths, cap=True)
