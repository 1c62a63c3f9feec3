"""The data source `text`: sequences, clients, held-out ends, files of one's own, LEAF's JSON."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from anybit.data.splits import by_id, dirichlet, dirichlet_free
from anybit.data.text import ALPHABET, text
from anybit.errors import DataError
from anybit.report.spread import spread


def written(folder: Path, **texts: str) -> str:
    for name, content in texts.items():
        (folder / f"{name}.txt").write_text(content)
    return str(folder)


def test_a_file_is_a_client_and_its_end_is_the_test_set(tmp_path: Path) -> None:
    folder = written(tmp_path, a="abcdefghij", b="ab\u00e9a" * 3, c="ab")
    data = text(folder, length=3, alphabet="abcdefghij", test_share=0.4)
    # a: 6 characters to train on, 4 to test; b: 12 − 5 = 7 and 5; c is too short and left out
    assert data.train.x.tolist() == [[1, 2, 3], [1, 2, 0], [1, 1, 2]]
    assert data.train.y.tolist() == [[2, 3, 4], [2, 0, 1], [1, 2, 0]]
    assert data.test.x.tolist() == [[7, 8, 9], [1, 1, 2]]
    assert data.test.y.tolist() == [[8, 9, 10], [1, 2, 0]]
    assert data.ids is not None
    assert data.ids.tolist() == [0, 1, 1]


def test_stride_overlaps_and_longest_cuts_a_text_into_clients(tmp_path: Path) -> None:
    folder = written(tmp_path, a="abcdefghijklmnopqrst")
    data = text(folder, length=3, stride=1, longest=10)
    assert [len(part) for part in by_id(np.zeros(len(data.train)), 0, data.ids)] == [3, 3]
    assert "".join(ALPHABET[i - 1] for i in data.train.x[3].tolist()) == "klm"


def test_the_embedded_topics_make_many_clients() -> None:
    data = text(longest=4000)
    assert data.ids is not None
    assert len(np.unique(data.ids)) > 50
    assert data.train.x.shape[1:] == data.train.y.shape[1:] == (64,)
    assert len(data.class_names) == 97
    assert int(data.train.x.max()) < 97
    assert float((data.train.x == 0).float().mean()) < 0.01


def test_leaf_rows_end_with_the_next_character(tmp_path: Path) -> None:
    user = {"x": ["abcd", "bcde", "cdef", "defg"], "y": ["e", "f", "g", "h"]}
    (tmp_path / "all_data_niid.json").write_text(json.dumps({"users": ["u"], "user_data": {"u": user}}))
    data = text(str(tmp_path), length=3, stride=2, alphabet="abcdefgh")
    assert data.train.x.tolist() == [[2, 3, 4]]
    assert data.train.y.tolist() == [[3, 4, 5]]
    assert data.test.x.tolist() == [[4, 5, 6]]
    assert data.test.y.tolist() == [[5, 6, 7]]
    with pytest.raises(DataError, match="fewer than data"):
        text(str(tmp_path), length=5)


@pytest.mark.parametrize(("settings", "says"), [
    ({"length": 0}, "data.length = 0"), ({"stride": -1}, "data.stride"), ({"test_share": 1.0}, "data.test_share"),
    ({"alphabet": "aa"}, "data.alphabet"), ({"length": 10**6}, "lower data.length"),
    ({"folder": "nowhere"}, "no .txt files")])
def test_bad_settings_are_one_line(settings: dict[str, object], says: str) -> None:
    with pytest.raises(DataError, match=says):
        text(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "content", "says"), [
    ("a.txt", b"\xff\xfe", "not UTF-8"), ("all_data.json", b"{", "not LEAF's"), ("all_data.json", b"[]", "not LEAF's"),
    ("all_data.json", b'{"users": ["u"], "user_data": {"u": {"x": [1], "y": [2]}}}', "not LEAF's")])
def test_bad_files_are_one_line(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=says):
        text(str(tmp_path))


def test_splits_by_label_refuse_targets_that_are_sequences() -> None:
    for split in (dirichlet, dirichlet_free):
        with pytest.raises(DataError, match="one label per example"):
            split(np.zeros((40, 5), np.int64), seed=0, clients=2)


def test_the_spread_counts_every_position_and_sizes_in_examples() -> None:
    found = spread(np.array([[0, 0, 1], [2, 2, 2]]), [np.array([0]), np.array([1])])
    assert found.counts.tolist() == [[2, 1, 0], [0, 0, 3]]
    assert found.sizes.tolist() == [1, 1]
    assert found.numbers()["examples"] == 2
