from __future__ import annotations

import itertools
from typing import Literal

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from anybit.federated.client import ClientOptions
from anybit.federated.cohort import build_cohort, sample_clients
from anybit.quant.grid import Width

CPU = torch.device("cpu")


@given(st.integers(0, 9), st.integers(0, 99), st.integers(1, 40))
def test_a_cohort_has_no_client_twice(seed: int, round: int, clients: int) -> None:
    size = max(1, clients // 2)
    cohort = sample_clients(seed, round, clients, size)
    assert len(set(cohort)) == size
    assert set(cohort) <= set(range(clients))
    assert cohort == sample_clients(seed, round, clients, size)


def test_every_client_comes_up_equally_often() -> None:
    counts = np.bincount([c for r in range(600) for c in sample_clients(1, r, 20, 5)], minlength=20)
    assert counts.min() > 110
    assert counts.max() < 190


@given(st.lists(st.integers(1, 30), min_size=1, max_size=5), st.integers(1, 9), st.integers(1, 3),
       st.sampled_from(("even", "full")))
def test_an_epoch_shows_every_example_once(sizes: list[int], batch_size: int, epochs: int,
                                           batches: Literal["even", "full"]) -> None:
    starts = np.cumsum([0, *sizes])
    split = [np.arange(a, b) for a, b in itertools.pairwise(starts)]
    cohort = build_cohort(1, 2, range(len(sizes)), [Width(32, 32)] * len(sizes), split,
                          ClientOptions(batch_size=batch_size, epochs=epochs, batches=batches))
    for i, examples in enumerate(split):
        shown = cohort.batches(i)
        seen = torch.cat([batch.index for batch in shown]).tolist()
        assert sorted(seen) == sorted(examples.tolist() * epochs)
        assert len(shown) == epochs * -(-len(examples) // batch_size)
        stacked = [(cohort.index[i, k][cohort.rows[i, k] > 0]).tolist() for k in range(cohort.local_steps)]
        assert [b for b in stacked if b] == [batch.index.tolist() for batch in shown]


def test_what_is_left_over_is_a_batch_of_its_own_or_spread_over_all() -> None:
    for examples, full, even in ((450, [64] * 7 + [2], [57, 57] + [56] * 6), (65, [64, 1], [33, 32]), (64, [64], [64]),
                                 (3, [3], [3])):
        for batches, sizes in (("full", full), ("even", even)):
            options = ClientOptions(batch_size=64, batches=batches, epochs=2)  # type: ignore[arg-type]
            cohort = build_cohort(1, 0, [0, 1], [Width(32, 32)] * 2, [np.arange(examples), np.arange(200)], options)
            assert [len(batch.index) for batch in cohort.batches(0)] == sizes * 2
    assert ClientOptions().even


def test_order_differs_between_rounds_and_clients() -> None:
    split = [np.arange(30), np.arange(30, 60)]

    def order(round: int, client: int) -> list[int]:
        cohort = build_cohort(1, round, [client], [Width(32, 32)], split, ClientOptions(batch_size=30))
        return [i % 30 for i in cohort.index[0, 0].tolist()]

    assert order(0, 0) == order(0, 0)
    assert order(0, 0) != order(1, 0)
    assert order(0, 0) != order(0, 1)
