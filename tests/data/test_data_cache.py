"""The cache: whole or not there, checked when it is read, safe when two processes prepare at once."""

from __future__ import annotations

import json
import multiprocessing
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from anybit.data import cache, hub
from anybit.data.cache import Manifest
from anybit.data.known import Columns, Source, source
from anybit.errors import DataError


def arrays(count: int = 12) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(count)
    return {f"{part}_{stem}": value for part in cache.PARTS for stem, value in (
        ("images", draw.integers(256, size=(count, 1, 4, 4), dtype=np.uint8)), ("labels", np.arange(count) % 3))}


def manifest(count: int = 12) -> Manifest:
    return Manifest("small", "owner/small", "abc", {"train": count, "test": count}, (1, 4, 4), ("a", "b", "c"), (0.5,),
                    (0.2,))


def written(count: int = 12) -> Path:
    with cache.locked("small"):
        cache.write(manifest(count), arrays(count))
    return cache.folder("small")


def test_what_is_written_is_read_back() -> None:
    place = written()
    found = cache.load("small")
    assert all(np.array_equal(found.arrays[stem], value) for stem, value in arrays().items())
    assert found.manifest.class_names == ("a", "b", "c")
    assert cache.verify("small") == found.manifest
    assert [m.name for m in cache.ls()] == ["small"]
    assert sorted(p.name for p in place.parent.iterdir()) == [".small.lock", "small"]
    plain = np.load(place / "train_images.npy", allow_pickle=False)
    assert plain.dtype == np.uint8


def test_writing_to_a_loaded_array_leaves_the_file_alone() -> None:
    written()
    cache.load("small").arrays["train_images"][:] = 0
    assert cache.verify("small") is not None


def test_a_set_that_is_not_prepared_says_how() -> None:
    with pytest.raises(DataError, match="small is not prepared: run 'anybit data prepare small'"):
        cache.load("small")
    assert cache.verify("small") is None
    assert cache.ls() == []


@pytest.mark.parametrize("name", ["../up", "", "a/b", ".hidden"])
def test_names_stay_inside_the_cache(name: str) -> None:
    with pytest.raises(DataError, match="data set name"):
        cache.load(name)


def truncate(place: Path) -> None:
    content = (place / "train_images.npy").read_bytes()
    (place / "train_images.npy").write_bytes(content[:-5])


def lose_a_file(place: Path) -> None:
    (place / "test_labels.npy").unlink()


def lose_the_manifest(place: Path) -> None:
    (place / "manifest.json").unlink()


def cut_the_manifest(place: Path) -> None:
    (place / "manifest.json").write_text((place / "manifest.json").read_text()[:100])


def edit(place: Path, **changes: object) -> None:
    content = json.loads((place / "manifest.json").read_text())
    (place / "manifest.json").write_text(json.dumps({**content, **changes}))


def other_format(place: Path) -> None:
    edit(place, format=99)


def other_counts(place: Path) -> None:
    edit(place, counts={"train": 11, "test": 12})


def other_shape(place: Path) -> None:
    edit(place, shape=[1, 5, 5])


def path_outside(place: Path) -> None:
    edit(place, files={"../../secret.npy": {"bytes": 1, "sha256": ""}})


def pickled(place: Path) -> None:
    np.save(place / "train_labels.npy", np.array([{}], dtype=object), allow_pickle=True)
    content = json.loads((place / "manifest.json").read_text())
    content["files"]["train_labels.npy"]["bytes"] = (place / "train_labels.npy").stat().st_size
    edit(place, files=content["files"])


@pytest.mark.parametrize("damage", [truncate, lose_a_file, lose_the_manifest, cut_the_manifest, other_format,
                                    other_counts, other_shape, path_outside, pickled])
def test_a_damaged_cache_is_noticed_when_it_is_read(damage: Callable[[Path], None]) -> None:
    damage(written())
    with pytest.raises(DataError, match=r"the prepared small is damaged .*: run 'anybit data prepare small' to"):
        cache.load("small")
    assert cache.verify("small") is None


def test_a_flipped_byte_is_noticed_by_its_checksum() -> None:
    place = written()
    content = bytearray((place / "train_images.npy").read_bytes())
    content[-1] ^= 1
    (place / "train_images.npy").write_bytes(content)
    cache.load("small")
    assert cache.verify("small") is None


def test_what_a_killed_process_left_is_swept_away(cache_home: Path) -> None:
    left = cache_home / ".small.x1y2.part"
    left.mkdir(parents=True)
    (left / "train_images.npy").write_bytes(b"half")
    with pytest.raises(DataError, match="not prepared"):
        cache.load("small")
    assert cache.ls() == []
    written()
    assert not left.exists()


def _limited(limit: int) -> None:
    """In a child: files cannot grow beyond the limit, which fails as a full disk does."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        with cache.locked("small"):
            cache.write(manifest(4000), arrays(4000))
    except DataError as error:
        assert "the disk is full" in str(error)  # noqa: PT017
        assert "set ANYBIT_DATA" in str(error)  # noqa: PT017
        sys.exit(7)


def test_a_full_disk_keeps_the_old_set_and_nothing_half_written(cache_home: Path) -> None:
    written()
    child = multiprocessing.get_context("fork").Process(target=_limited, args=(20_000,))
    child.start()
    child.join()
    assert child.exitcode == 7
    verified = cache.verify("small")
    assert verified is not None
    assert verified.counts["train"] == 12
    assert sorted(p.name for p in cache_home.iterdir()) == [".small.lock", "small"]


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ANYBIT_DATA", str(tmp_path / "file" / "cache"))
    with pytest.raises(DataError, match="set ANYBIT_DATA"), cache.locked("small"):
        pass


SHAPES = Source("owner/shapes", Columns("picture", "kind", "family"))


def _prepare(root: Path, force: bool) -> None:
    hub.prepare("shapes", SHAPES, root, force=force)


def test_two_processes_prepare_at_once(hub: Path) -> None:
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=_prepare, args=(hub, force)) for force in (False, True, True)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0, 0]
    assert cache.verify("shapes") is not None


def test_loading_needs_torch_and_numpy_alone() -> None:
    written()
    code = ("import sys\n"
            "for name in ('datasets', 'pyarrow', 'PIL', 'sklearn', 'pandas', 'typer', 'matplotlib'):\n"
            "    sys.modules[name] = None\n"
            "from anybit.data.sources import images\n"
            "print(len(images('small').train))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "12\n", done.stderr


def test_a_known_set_has_its_own_columns() -> None:
    assert source("cifar10").id == "uoft-cs/cifar10"
    with pytest.raises(DataError, match="known data set"):
        source("cifar10", Columns("picture"))
