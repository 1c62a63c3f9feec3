"""Clients' data in every form that `fit` takes, and what it says to others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, SubsetRandomSampler, TensorDataset

import anybit
from anybit.data.clients import gathered, pair_of
from anybit.errors import DataError

Arrays = tuple[np.ndarray, np.ndarray]


class Items(Dataset[Any]):
    """A map-style data set of given items."""

    def __init__(self, *items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> Any:
        return self.items[i]


def test_every_form_gives_the_run_of_the_arrays(mlp: nn.Module, clients: list[Arrays], held_out: Arrays) -> None:
    import datasets

    def weights(given: Any, test: Any) -> list[Tensor]:
        fitted = anybit.fit(mlp, given, test, rounds=2, cohort=3, engine="sequential", device="cpu")
        return list(fitted.model.parameters())

    forms: list[Any] = [clients[0], TensorDataset(*map(torch.from_numpy, clients[1])),
                        DataLoader(Items(*zip(*clients[2], strict=True)), batch_size=7, shuffle=True),
                        datasets.Dataset.from_dict({"label": clients[3][1], "pixels": clients[3][0]}),
                        Items(*({"x": x, "y": y} for x, y in zip(*clients[4], strict=True)))]
    with pytest.warns(UserWarning, match="not its batch size"):
        changed = weights(forms, TensorDataset(*map(torch.from_numpy, held_out)))
    assert all(map(torch.equal, weights(clients, held_out), changed))


def test_a_loaders_collate_function_is_used() -> None:
    def padded(items: list[tuple[list[int], int]]) -> tuple[Tensor, Tensor]:
        return torch.tensor([x + [0] * (3 - len(x)) for x, _ in items]), torch.tensor([y for _, y in items])

    x, y = pair_of(DataLoader(Items(([1, 2], 0), ([3], 1)), collate_fn=padded), "client 0")
    assert (x.tolist(), y.tolist()) == ([[1, 2, 0], [3, 0, 0]], [0, 1])


def test_parts_of_an_items_input_are_stacked_each() -> None:
    (ids, mask), y = pair_of(Items(((torch.tensor([1, 2]), 0.5), 3), ((torch.tensor([4, 5]), 1.5), 6)), "client 0")
    assert (ids.tolist(), mask.tolist(), y.tolist()) == ([[1, 2], [4, 5]], [0.5, 1.5], [3, 6])
    named, _ = pair_of(Items(({"a": 1}, 0), ({"a": 2}, 0)), "client 0")
    assert named["a"].tolist() == [1, 2]
    tokens, labels = pair_of(Items({"input_ids": [3, 4], "attention_mask": [1, 0], "label": 5}), "client 0")
    assert {name: value.tolist() for name, value in tokens.items()} == {"input_ids": [[3, 4]], "attention_mask": [[1, 0]]}
    assert labels.tolist() == [5]


def test_images_become_bytes_with_the_channel_first() -> None:
    from PIL import Image

    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    x, _ = pair_of(Items((Image.fromarray(pixels), 0), (Image.fromarray(pixels), 1)), "client 0")
    assert x.dtype == torch.uint8
    assert torch.equal(x[0], torch.from_numpy(pixels).permute(2, 0, 1))


def test_by_client_keeps_the_owners_beside_their_metrics() -> None:
    x, y = np.eye(4, dtype=np.float32), np.arange(4)
    clients = anybit.by_client(x, y, np.array(["zoe", "ann", "zoe", "bob"]))
    assert clients.ids == ["ann", "bob", "zoe"]
    for given, ids in ((clients, ["ann", "bob", "zoe"]), (list(clients), [0, 1, 2])):
        result = anybit.fit(nn.Sequential(nn.Linear(4, 4)), given, (x, y), rounds=1)
        assert result.client_ids == ids
        assert len(result.per_client("W8")) == 3
    clients.reverse()
    assert anybit.fit(nn.Sequential(nn.Linear(4, 4)), clients, (x, y), rounds=1).client_ids == [0, 1, 2], "not others'"


def test_by_client_parts_arrays_and_data_sets_alike() -> None:
    import datasets

    x, y, ids = np.arange(5), np.array([0, 1, 0, 1, 1]), ["b", "a", "b", "c", "a"]
    whole = datasets.Dataset.from_dict({"x": x, "y": y})
    for given in (anybit.by_client(x, y, ids), anybit.by_client(Items(*zip(x, y, strict=True)), ids),
                  anybit.by_client(whole, ids)):
        pairs = [pair_of(client, "a client") for client in given]
        assert [np.asarray(x).tolist() for x, _ in pairs] == [[1, 4], [0, 2], [3]]
        assert [np.asarray(y).tolist() for _, y in pairs] == [[1, 1], [0, 0], [1]]
    with pytest.raises(DataError, match="one for each"):
        anybit.by_client(x, y, ids[:4])
    with pytest.raises(DataError, match="not a data set"):
        anybit.by_client(x, ids)


class Stream(IterableDataset[Any]):
    """A data set without items."""

    def __iter__(self) -> Iterator[Any]:
        return iter(())


class Broken(Items):
    """A data set whose second item cannot be read."""

    def __getitem__(self, i: int) -> Any:
        if i == 1:
            raise OSError("bad file")
        return self.items[i]


@pytest.mark.parametrize(("data", "says"), [
    (7, "client 0 is a int: give a pair"), (Stream(), "without a length"), (DataLoader(Stream()), "without a length"),
    (Items(), "no examples"), (Items((1, 2, 3)), r"not pairs \(x, y\)"),
    (Broken((0, 0), (0, 0)), "item 1 cannot be read .*bad"),
    (Items(([1], 0), ([1, 2], 0)), r"item 1 has shape \(2,\)"), (Items(("text", 0)), "whole numbers"),
    (Items({"a": 0, "b": 0, "label": 0}), r"columns a, b, label: .*select_columns\(\['a', 'label'\]\)"),
    (Items({"image": 0, "depth": 0, "label": 0}), r"columns image, depth, label: .*select_columns\(\['image', 'label'\]\)"),
    (DataLoader(Items((0, 0), (0, 0)), sampler=SubsetRandomSampler([0])), "sampler of its own"),
    (ConcatDataset([Items(((1, {"a": 2}), 0)), Items(((1, {"b": 2}), 0))]), "same form")])
def test_what_cannot_be_a_client_is_one_line(data: Any, says: str) -> None:
    with pytest.raises(DataError, match=says):
        pair_of(data, "client 0")


@pytest.mark.parametrize("whole", [DataLoader(Items((0, 0))), Items((0, 0))])
def test_one_data_set_is_not_a_list_of_clients(whole: Any) -> None:
    with pytest.raises(DataError, match=r"is one client: give a list .*by_client"):
        gathered(whole)
