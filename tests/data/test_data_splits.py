"""Splits keep their promises: nothing twice, sizes, skew, the seed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anybit.data import splits
from anybit.errors import DataError
from anybit.federated.client import ClientOptions
from anybit.report.spread import padding, spread

NAMES = sorted(splits.SPLITS)


def labelled(examples: int, classes: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Labels that all occur, coarse labels above them, and an owner for every example."""
    draw = np.random.default_rng(seed)
    labels = draw.permutation(np.arange(examples) % classes)
    return {"labels": labels, "coarse": labels // 3, "ids": draw.integers(max(2, examples // 10), size=examples)}


def draw_split(name: str, data: dict[str, np.ndarray], seed: int, clients: int, **settings: float) -> splits.Split:
    extra = {key: data[key] for key in ("coarse", "ids") if key in splits.SPLITS[name].__annotations__}
    settings = {**settings, **({"labels_per_client": 2} if name == "shards" else {})}
    count = min(clients, len(np.unique(data["ids"]))) if name == "by_id" else clients
    return splits.SPLITS[name](data["labels"], seed, clients=count, **extra, **settings)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40, deadline=None)
@given(examples=st.integers(60, 400), classes=st.integers(2, 12), clients=st.integers(1, 12), seed=st.integers(0, 99))
def test_every_example_is_used_at_most_once(name: str, examples: int, classes: int, clients: int, seed: int) -> None:
    data = labelled(examples, classes, seed)
    split = draw_split(name, data, seed, clients)
    every = np.concatenate(split)
    assert len(np.unique(every)) == len(every)
    assert every.min() >= 0
    assert every.max() < examples
    assert all(len(part) for part in split)
    again = draw_split(name, data, seed, clients)
    assert all(np.array_equal(a, b) for a, b in zip(split, again, strict=True))
    if name in ("iid", "dirichlet_free") or (name == "shards" and 2 * clients >= classes):
        assert len(every) == examples


@settings(max_examples=40, deadline=None)
@given(examples=st.integers(60, 400), classes=st.integers(2, 12), clients=st.integers(1, 12), alpha=st.sampled_from(
    [1e-3, 0.1, 1.0, 100.0]))
def test_sizes_are_as_promised(examples: int, classes: int, clients: int, alpha: float) -> None:
    data = labelled(examples, classes)
    for name in ("dirichlet", "pachinko"):
        split = draw_split(name, data, 1, clients, alpha=alpha)
        assert {len(part) for part in split} == {examples // clients}
    free = splits.dirichlet_free(data["labels"], 1, clients, alpha, least=5)
    assert min(map(len, free)) >= 5
    iid = splits.iid(data["labels"], 1, clients)
    assert max(map(len, iid)) - min(map(len, iid)) <= 1


@pytest.mark.parametrize("name", ["dirichlet", "dirichlet_free", "pachinko"])
def test_labels_are_more_skewed_as_alpha_falls(name: str) -> None:
    data = labelled(6000, 12)
    effective = [spread(data["labels"], draw_split(name, data, 1, 30, alpha=alpha)).numbers()["effective_labels"]
                 for alpha in (0.05, 0.5, 5.0, 500.0)]
    assert effective == sorted(effective)
    assert effective[0] < 0.6 * effective[-1]


def test_with_a_large_alpha_everyone_has_the_overall_distribution() -> None:
    labels = np.repeat([0, 1], [3000, 1000])
    share = [np.mean(labels[part]) for part in splits.dirichlet(labels, 1, 20, 1e6)]
    assert np.mean(np.abs(np.subtract(share, 0.25))) < 0.04


@pytest.mark.parametrize("name", ["dirichlet", "pachinko"])
def test_clients_can_get_fewer_examples_than_there_are(name: str) -> None:
    data = labelled(1000, 10)
    split = draw_split(name, data, 1, 10, examples=90)
    assert [len(part) for part in split] == [90] * 10
    assert len(np.unique(np.concatenate(split))) == 900
    with pytest.raises(DataError, match=r"split\.examples = 101: at most 100, there are no more for each of 10 clients"):
        draw_split(name, data, 1, 10, examples=101)


def test_pachinko_prefers_labels_of_one_family() -> None:
    data = labelled(6000, 12)
    split = splits.pachinko(data["labels"], 1, data["coarse"], clients=60, alpha=0.1, beta=10)
    families = spread(data["coarse"], split[:30]).numbers()["effective_labels"]
    labels = spread(data["labels"], split[:30]).numbers()["effective_labels"]
    assert families < 2.5
    assert labels > 2 * families


def test_another_seed_gives_another_split() -> None:
    data = labelled(200, 6)
    for name in set(NAMES) - {"by_id"}:
        one, two = draw_split(name, data, 0, 5), draw_split(name, data, 1, 5)
        assert any(not np.array_equal(a, b) for a, b in zip(one, two, strict=True)), name


def test_by_id_gives_everyone_their_own() -> None:
    ids = np.array([7, 3, 7, 7, 3, 9])
    labels = np.zeros(6, int)
    assert [part.tolist() for part in splits.by_id(labels, 0, ids)] == [[1, 4], [0, 2, 3], [5]]
    assert [part.tolist() for part in splits.by_id(labels, 0, ids, clients=1)] == [[0, 2, 3]]
    assert [part.tolist() for part in splits.by_id(labels, 0, ids, least=2)] == [[1, 4], [0, 2, 3]]


@settings(max_examples=40, deadline=None)
@given(clients=st.integers(1, 30), k=st.integers(1, 10), seed=st.integers(0, 9))
def test_shards_give_every_client_k_labels(clients: int, k: int, seed: int) -> None:
    labels = np.repeat(np.arange(10), 60)
    split = splits.shards(labels, seed, clients, k)
    assert {len(np.unique(labels[part])) for part in split} == {k}
    if clients * k % 10 == 0:
        assert max(map(len, split)) - min(map(len, split)) <= k


def test_shards_share_out_uneven_classes() -> None:
    labels = np.repeat([0, 1, 2], [900, 90, 10])
    split = splits.shards(labels, 0, clients=20, labels_per_client=2)
    assert {len(np.unique(labels[part])) for part in split} == {2}
    assert sum(map(len, split)) == 1000


@pytest.mark.parametrize(("name", "arguments", "words"), [
    ("iid", {"clients": 61}, "between 1 and the 60"),
    ("dirichlet", {"clients": 0}, "split.clients = 0: must be at least 1"),
    ("dirichlet", {"examples": -1}, "split.examples = -1: must be at least 0"),
    ("dirichlet_free", {"least": 0}, "split.least = 0: must be at least 1"),
    ("shards", {"labels_per_client": 0}, "split.labels_per_client = 0: must be at least 1"),
    ("by_id", {"ids": np.arange(60), "clients": -1}, "split.clients = -1: must be at least 0"),
    ("dirichlet", {"alpha": 0.0}, "split.alpha = 0.0"),
    ("dirichlet_free", {"clients": 10, "least": 7}, "split.clients = 70 of at least 7"),
    ("pachinko", {"coarse": None, "clients": 5}, "needs coarse labels"),
    ("pachinko", {"coarse": np.arange(60) % 7, "clients": 5}, "more than one coarse label"),
    ("by_id", {"ids": None}, "has no ids"),
    ("by_id", {"ids": np.arange(60) % 4, "clients": 5}, "has 4 ids"),
    ("shards", {"clients": 10, "labels_per_client": 7}, "between 1 and the 6 classes"),
    ("shards", {"clients": 60, "labels_per_client": 2}, "need 120 shards"),
])
def test_what_cannot_be_split_is_said(name: str, arguments: dict[str, object], words: str) -> None:
    with pytest.raises(DataError, match=words):
        splits.SPLITS[name](np.arange(60) % 6, 0, **arguments)


def test_padding_is_a_share_and_segments_lower_it() -> None:
    split = np.split(np.arange(440), [4, 40])
    shares = padding(split, cohort=3, options=ClientOptions(batch_size=20, batches="full"), seed=0)
    assert shares["padded_to_largest"] == pytest.approx(1 - 440 / (3 * 20 * 20))
    assert shares["padding"] == pytest.approx(1 - 440 / 460)
