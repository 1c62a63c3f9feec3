"""Preparing: from the hub's files to a checked set, and what is said when they are not what they should be."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from anybit.data import cache, known, sources
from anybit.data.hub import prepare
from anybit.data.known import Columns, Facts, Source
from anybit.errors import DataError, MissingExtra

SHAPES = Source("owner/shapes", Columns("picture", "kind", "family"))
Write = Callable[..., Path]
FEMNIST = known.KNOWN["femnist"]


def train_file(root: Path) -> Path:
    return root / "owner/shapes/data/train-00000-of-00001.parquet"


def decoded(path: Path, column: str) -> np.ndarray:
    """Read a parquet file in the plainest way."""
    import io

    import pyarrow.parquet as pq
    from PIL import Image

    return np.stack([np.asarray(Image.open(io.BytesIO(v["bytes"]))) for v in pq.read_table(path)[column].to_pylist()])


def test_a_set_is_read_as_it_is_stored(hub: Path) -> None:
    said: list[str] = []
    manifest = prepare("shapes", SHAPES, hub, say=said.append)
    found = cache.load("shapes").arrays
    images = decoded(train_file(hub), "picture")
    assert np.array_equal(found["train_images"], images.transpose(0, 3, 1, 2))
    assert found["train_labels"].tolist() == [i % 6 for i in range(60)]
    assert np.array_equal(found["train_coarse"], found["train_labels"] // 3)
    assert manifest.counts == {"train": 60, "test": 24}
    assert manifest.class_names == tuple("abcdef")
    assert manifest.coarse_names == ("abc", "def")
    assert np.allclose(manifest.mean, (images / 255).mean((0, 1, 2)))
    assert np.allclose(manifest.std, (images / 255).std((0, 1, 2)))
    assert str(hub) not in (cache.folder("shapes") / "manifest.json").read_text()
    prepare("shapes", SHAPES, hub, say=said.append)
    assert said[-1] == "shapes is prepared already"


def test_damage_and_other_files_are_rebuilt(hub: Path, write_parquet: Write) -> None:
    prepare("shapes", SHAPES, hub)
    (cache.folder("shapes") / "manifest.json").write_text("{")
    prepare("shapes", SHAPES, hub)
    assert cache.verify("shapes") is not None
    write_parquet(train_file(hub), "picture", np.zeros((12, 8, 8, 3), np.uint8),
                  {"kind": list("abcdef"), "family": ["abc", "def"]}, kind=np.arange(12) % 6,
                  family=np.arange(12) % 6 // 3)
    assert prepare("shapes", SHAPES, hub).counts["train"] == 12


def test_a_download_is_read_as_local_files_are(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked: list[tuple[str, object]] = []

    def download(repo: str, *, revision: str | None, **options: object) -> str:
        asked.append((repo, options["allow_patterns"]))
        return str(hub / repo)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    local = prepare("local", SHAPES, hub)
    remote = prepare("remote", SHAPES)
    assert asked == [("owner/shapes", ["*.parquet"])]
    assert remote.files == local.files
    assert remote.revision == "shapes"


def test_femnist_holds_out_a_tenth_of_every_writer(hub: Path) -> None:
    manifest = prepare("femnist", FEMNIST, hub, seed=3)
    found = cache.load("femnist").arrays
    assert manifest.id_names == ("f0004", "f0003", "f0002", "f0005", "f0001", "f0000")
    assert np.bincount(found["test_ids"], minlength=6).tolist() == [4, 3, 2, 1, 1, 0]
    assert np.bincount(found["train_ids"]).tolist() == [36, 27, 18, 11, 9, 4]
    assert manifest.note == "a part of the set: 116 of 814,277 images"
    again = prepare("again", FEMNIST, hub, seed=3)
    other = prepare("other", FEMNIST, hub, seed=4)
    assert again.files == manifest.files
    assert other.files != manifest.files
    data = sources.femnist(writers=2)
    assert len(data.train) == 63
    assert len(data.test) == 7
    assert data.ids is not None
    assert set(data.ids.tolist()) == {0, 1}
    held = sources.femnist(writers=2, holdout=13, evaluate="holdout")
    assert (len(held.train), len(held.test)) == (50, 13)
    assert held.ids is not None
    assert len(held.ids) == 50
    with pytest.raises(DataError, match=r"data.writers = 3500: the prepared femnist has 6 writers"):
        sources.femnist()


def test_labels_may_be_text_and_images_files_in_folders(tmp_path: Path) -> None:
    from PIL import Image

    for split, count in (("train", 4), ("test", 2)):
        for kind in ("cat", "dog"):
            (tmp_path / "pets" / split / kind).mkdir(parents=True)
            for i in range(count):
                Image.new("RGB", (6 + i, 5), (i, 0, 0)).save(tmp_path / "pets" / split / kind / f"{i}.png")
    pets = Source(str(tmp_path / "pets"), size=4)
    manifest = prepare("pets", pets)
    assert manifest.class_names == ("cat", "dog")
    assert manifest.shape == (3, 4, 4)
    assert manifest.source == "pets"
    assert cache.load("pets").arrays["train_labels"].tolist() == [0] * 4 + [1] * 4
    with pytest.raises(DataError, match="resize all to one size with --size"):
        prepare("pets", dataclasses.replace(pets, size=0))


def test_text_labels_and_ids_are_numbered(tmp_path: Path, write_parquet: Write) -> None:
    place = write_parquet(tmp_path / "notes" / "train.parquet", "image", np.zeros((20, 4, 4), np.uint8), {},
                          label=["yes", "no"] * 10, who=["ann"] * 5 + ["bob"] * 15)
    manifest = prepare("notes", Source(str(place.parent), Columns(id="who"), test=""))
    assert manifest.class_names == ("no", "yes")
    assert manifest.id_names == ("bob", "ann")
    assert manifest.counts == {"train": 18, "test": 2}


def cifar_like(hub: Path, **facts: object) -> Source:
    usual: dict[str, object] = {"train": 60, "test": 24, "shape": (3, 8, 8), "classes": 6, "coarse_classes": 2}
    return dataclasses.replace(SHAPES, facts=Facts(**{**usual, **facts}))  # type: ignore[arg-type]


@pytest.mark.parametrize(("facts", "words"), [
    ({"train": 50_000}, "found 60 of 50,000 train images: the files are not complete"),
    ({"shape": (3, 8, 9)}, "the image has 8×8 pixels, expected 8×9"),
    ({"coarse_classes": 20}, "found 2 coarse classes, but it has 20"),
    ({"classes": 7}, "class 6 has 0 train images"),
    ({"mean": (0.4914, 0.4822, 0.4465)}, "but should have 0.4914/0.4822/0.4465"),
])
def test_a_known_set_is_checked(hub: Path, facts: dict[str, object], words: str) -> None:
    prepare("good", cifar_like(hub), hub)
    with pytest.raises(DataError, match=words):
        prepare("shapes", cifar_like(hub, **facts), hub)
    assert not cache.folder("shapes").exists()


def test_no_network_and_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def fail(*arguments: object, **options: object) -> str:
        raise ConnectionError("name resolution failed")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(DataError, match=r"cannot be downloaded \(name resolution failed\): .* --data-dir"):
        prepare("cifar10", known.KNOWN["cifar10"])


def test_wrong_layout(hub: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no folder owner/other"):
        prepare("other", Source("owner/other"), hub)
    train_file(hub).rename(train_file(hub).with_name("training.parquet"))
    with pytest.raises(DataError, match=r"has no 'train' files: expected owner/shapes/train-00000-of-00001.parquet"):
        prepare("shapes", SHAPES, hub)


def test_missing_shards_and_several_configurations(hub: Path) -> None:
    file = train_file(hub)
    half = file.rename(file.with_name("train-00000-of-00002.parquet"))
    with pytest.raises(DataError, match=r"has 1 of 2 files like train-00000-of-00002.parquet"):
        prepare("shapes", SHAPES, hub)
    half.rename(file)
    (hub / "owner/shapes/small").mkdir()
    (hub / "owner/shapes/small/train-00000-of-00001.parquet").write_bytes(file.read_bytes())
    with pytest.raises(DataError, match=r"in several folders \(data, small\): choose one with --folder"):
        prepare("shapes", SHAPES, hub)
    assert prepare("shapes", dataclasses.replace(SHAPES, folder="data"), hub).counts["train"] == 60


@pytest.mark.parametrize("keep", [0, 3, 2000, -10])
def test_truncated_parquet(hub: Path, keep: int) -> None:
    content = train_file(hub).read_bytes()
    train_file(hub).write_bytes(content[:keep])
    with pytest.raises(DataError, match=r"train-00000-of-00001.parquet cannot be read as parquet"):
        prepare("shapes", SHAPES, hub)


def test_damaged_rows(hub: Path) -> None:
    content = bytearray(train_file(hub).read_bytes())
    content[200:1200] = bytes(1000)
    train_file(hub).write_bytes(content)
    with pytest.raises(DataError, match=r"train-00000-of-00001.parquet"):
        prepare("shapes", SHAPES, hub)
    assert not cache.folder("shapes").exists()


def test_missing_column(hub: Path) -> None:
    wrong = dataclasses.replace(SHAPES, columns=Columns("picture", "kinds"))
    with pytest.raises(DataError, match=r"has no column 'kinds' for label: did you mean 'kind'?"):
        prepare("shapes", wrong, hub)


def test_missing_class_and_wrong_labels(hub: Path, write_parquet: Write) -> None:
    def write(labels: list[int]) -> None:
        write_parquet(train_file(hub), "picture", np.zeros((len(labels), 8, 8, 3), np.uint8),
                      {"kind": list("abcdef"), "family": ["abc", "def"]}, kind=labels, family=[0] * len(labels))

    write([0, 1, 2, 4, 5])
    with pytest.raises(DataError, match=r"no training image of 1 of the 6 classes \(d\)"):
        prepare("shapes", SHAPES, hub)
    write([0, 1, 2, 3, 4, 6])
    with pytest.raises(DataError, match="train example 5 has kind 6, but there are 6 names"):
        prepare("shapes", SHAPES, hub)


def test_no_extra(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtra, match=r"pip install 'anybit\[data\]'"):
        prepare("shapes", SHAPES, hub)


def test_a_prepared_set_as_data(hub: Path) -> None:
    prepare("shapes", SHAPES, hub)
    data = sources.images("shapes", "owner/shapes", {"label": "kind"}, crop=6, holdout=10, evaluate="holdout")
    assert (len(data.train), len(data.test)) == (50, 10)
    assert data.coarse is not None
    assert torch.equal(torch.from_numpy(data.coarse), data.train.y // 3)
    assert data.pipeline(data.test.x).shape == (10, 3, 6, 6)
    every = torch.cat([data.train.x, data.test.x]).flatten(1).double().sum(1).sort().values
    assert torch.equal(every, sources.images("shapes").train.x.flatten(1).double().sum(1).sort().values)
    assert set(data.labels()) == {"labels", "coarse", "ids"}
    for wrong, words in (({"source": "owner/other"}, "comes from 'owner/shapes'"),
                         ({"columns": {"label": "family"}}, "data.columns.label = 'family'"),
                         ({"holdout": 60}, "data.holdout = 60"), ({"evaluate": "holdout"}, "say how many")):
        with pytest.raises(DataError, match=words):
            sources.images("shapes", **wrong)  # type: ignore[arg-type]
