"""A fixed number of local steps, through shuffled epochs of a client's examples."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from anybit.config import ClientOptions
from anybit.federated.cohort import Cohort, build_cohort
from anybit.quant.grid import Width

SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=4)


def cohort_of(sizes: list[int], batch_size: int, epochs: int, local_steps: int | None = None) -> Cohort:
    split = np.split(np.arange(sum(sizes)) + 7, np.cumsum(sizes)[:-1])
    return build_cohort(1, 2, range(len(sizes)), [Width(32, 32)] * len(sizes), split,
                        ClientOptions(batch_size=batch_size, epochs=epochs, local_steps=local_steps))


@given(SIZES, st.integers(1, 12), st.integers(1, 30))
def test_every_client_makes_as_many_steps_through_whole_epochs(sizes: list[int], batch_size: int, local_steps: int) -> None:
    cohort = cohort_of(sizes, batch_size, 1, local_steps)
    assert cohort.local_steps == local_steps
    start = 7
    for i, size in enumerate(sizes):
        batches, an_epoch = cohort.batches(i), -(-size // batch_size)
        assert len(batches) == local_steps == ClientOptions(batch_size=batch_size, local_steps=local_steps).steps_of(size)
        for first in range(0, local_steps, an_epoch):
            seen = torch.cat([xi.index for xi in batches[first:first + an_epoch]]).tolist()
            assert len({*seen}) == len(seen)
            assert {*seen} <= {*range(start, start + size)}
            if first + an_epoch <= local_steps:
                assert len(seen) == size
        start += size


@given(SIZES, st.integers(1, 12), st.integers(1, 3))
def test_the_batches_are_those_of_epochs(sizes: list[int], batch_size: int, epochs: int) -> None:
    by_epochs = cohort_of(sizes, batch_size, epochs)
    steps = by_epochs.local_steps
    fixed = cohort_of(sizes, batch_size, 1, steps)
    longest = int(np.argmax(sizes))
    assert torch.equal(fixed.index[longest], by_epochs.index[longest])
    for i in range(len(sizes)):
        for ours, theirs in zip(fixed.batches(i), by_epochs.batches(i), strict=False):
            assert torch.equal(ours.index, theirs.index)
