"""Preparing data sets from the Hugging Face hub, or from its files in a folder. Needs the extra 'data'.

Downloaded files are read as local ones are, so both give the same set.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

from anybit.data import cache
from anybit.data.cache import Manifest
from anybit.data.decode import Table, libraries, read_image_folder, read_parquet
from anybit.data.known import Columns, Source, check_facts
from anybit.errors import DataError
from anybit.randomness import generator

HELD_OUT = 0.1
"""Share of every id's images (or of all) that becomes the test set where a source has none."""
_SHARD = re.compile(r"-\d{5}-of-(\d{5})")


def prepare(name: str, source: Source, data_dir: Path | None = None, seed: int = 0, revision: str | None = None,
            force: bool = False, say: Callable[[str], None] = lambda text: None) -> Manifest:
    """Write the set `name` into the cache, unless it is there already and intact.

    data_dir: the folder of the hub's files, `data_dir`/<hub id>/…; without it they are downloaded.
    """
    libraries()
    with cache.locked(name):
        root = _local_root(source, data_dir)
        digest = None if root is None else _files_digest(source, root)
        old = None if force else cache.verify(name)
        asked = (_label(source), seed, source.column_names(), source.options())
        if old is not None and (old.source, old.seed, dict(old.columns), dict(old.options)) == asked and \
                digest in (None, old.revision):
            say(f"{name} is prepared already")
            return old
        if root is None:
            say(f"downloading {source.id}")
            root, digest = _download(source, revision)
        say(f"reading {name}")
        shape = source.facts.shape if source.facts else None
        tables = {part: read_parquet(paths, source.columns, shape, source.size) if paths else
                  read_image_folder(_folder(source, root, part), source.size) for part, paths in _find(source, root).items()}
        manifest, arrays = _assemble(name, source, tables, seed, digest or "")
        say(f"writing {name}")
        return cache.write(manifest, arrays)


def _label(source: Source) -> str:
    """Return the hub id, or the last part of a folder's path: manifests travel to other machines."""
    return Path(source.id).resolve().name if source.is_folder else source.id


def _local_root(source: Source, data_dir: Path | None) -> Path | None:
    if source.is_folder:
        return Path(source.id)
    if data_dir is None:
        return None
    root = data_dir / source.id
    if not root.is_dir():
        raise DataError(f"{data_dir} has no folder {source.id}: it must hold {_expected(source)}, as on the hub")
    return root


def _expected(source: Source, split: str = "") -> str:
    return str(Path(_label(source), source.folder, f"{split or source.train}-00000-of-00001.parquet"))


def _parts(source: Source) -> dict[str, str]:
    return {"train": source.train, **({"test": source.test} if source.test else {})}


def _folder(source: Source, root: Path, part: str) -> Path:
    return root / source.folder / _parts(source)[part]


def _find(source: Source, root: Path) -> dict[str, list[Path]]:
    """Find the files of every part; an empty list stands for a folder of images."""
    files = {}
    for part, split in _parts(source).items():
        base = root / source.folder
        paths = sorted({p for pattern in (f"{split}-*.parquet", f"{split}.parquet", f"{split}/*.parquet")
                        for p in base.glob(pattern if source.folder else f"**/{pattern}")})
        if len({p.parent for p in paths}) > 1:
            folders = ", ".join(sorted({str(p.parent.relative_to(root)) for p in paths}))
            raise DataError(f"{root} has '{split}' files in several folders ({folders}): choose one with --folder")
        if not paths and not (source.facts is None and (base / split).is_dir()):
            raise DataError(f"{root} has no '{split}' files: expected {_expected(source, split)}, as on the hub, or "
                            "images in folders named after their classes")
        shards = [match for path in paths if (match := _SHARD.search(path.name))]
        if shards and len(shards) != (total := int(shards[0][1])):
            raise DataError(f"{paths[0].parent} has {len(shards)} of {total} files like {shards[0].string}: fetch the "
                            "others too")
        files[part] = paths
    return files


def _files_digest(source: Source, root: Path) -> str:
    """Hash the content of local files, which stands in the manifest for the hub's commit."""
    digest = hashlib.sha256()
    for part, paths in _find(source, root).items():
        for path in paths or sorted(p for p in _folder(source, root, part).rglob("*") if p.is_file()):
            digest.update(cache.file_digest(path).digest())
    return f"sha256:{digest.hexdigest()[:16]}"


def _download(source: Source, revision: str | None) -> tuple[Path, str]:
    """Fetch the parquet files into the hub's own cache; return (folder, commit)."""
    import huggingface_hub
    pattern = f"{source.folder}/*.parquet" if source.folder else "*.parquet"
    try:
        place = Path(huggingface_hub.snapshot_download(source.id, repo_type="dataset", revision=revision,
                                                       allow_patterns=[pattern]))
    except Exception as error:
        # the hub's client raises what its HTTP library raises: for the user all of it means "no download"
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{source.id} cannot be downloaded ({reason}): check the network and the name, or give "
                        f"--data-dir a folder that holds {_expected(source)}") from None
    if not any(place.rglob("*.parquet")):
        raise DataError(f"{source.id} has no parquet files on the hub: try --revision refs/convert/parquet")
    return place, place.name


def _assemble(name: str, source: Source, tables: dict[str, Table], seed: int,
              revision: str) -> tuple[Manifest, dict[str, np.ndarray]]:
    """Number classes and ids, hold out a test set if there is none, check the arrays, and describe them."""
    columns = source.columns if any(source.columns.label in t.columns for t in tables.values()) else Columns()
    labels, class_names = _numbered(tables, columns.label)
    coarse, coarse_names = _numbered(tables, columns.coarse)
    ids, id_names = _numbered(tables, columns.id)
    if missing := np.flatnonzero(np.bincount(labels["train"], minlength=len(class_names)) == 0).tolist():
        listed = ", ".join(class_names[c] for c in missing[:5]) + (" …" if len(missing) > 5 else "")
        raise DataError(f"{name}: no training image of {len(missing)} of the {len(class_names)} classes ({listed}): "
                        "the files are not complete, or their class names are wrong")
    numbers = {key: value for key, value in (("labels", labels), ("coarse", coarse), ("ids", ids)) if value}
    arrays = {part: {"images": table.images, **{key: value[part] for key, value in numbers.items()}}
              for part, table in tables.items()}
    if ids:
        arrays, id_names = _largest_first(arrays, id_names)
    if "test" not in arrays:
        arrays = _held_out(arrays["train"], seed)
    shape, mean, std = tables["train"].images.shape[1:], *_statistics(arrays["train"]["images"])
    if arrays["test"]["images"].shape[1:] != shape:
        raise DataError(f"{name}: test images are {arrays['test']['images'].shape[1:]}, training images {shape}")
    note = "" if source.facts is None else check_facts(
        name, source.facts, {part: a["labels"] for part, a in arrays.items()}, len(coarse_names), mean)
    manifest = Manifest(name, _label(source), revision, {part: len(a["labels"]) for part, a in arrays.items()}, shape,
                        class_names, mean, std, source.column_names(), source.options(), coarse_names, id_names, seed,
                        note)
    return manifest, {f"{part}_{key}": value for part, a in arrays.items() for key, value in a.items()}


def _numbered(tables: dict[str, Table], column: str) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Number the values of a column 0 … n−1; return the numbers of every part and the names that they stand for."""
    if not column or not all(column in t.columns for t in tables.values()):
        return {}, ()
    names = tables["train"].names.get(column)
    if names is not None:
        numbers = {part: t.columns[column].astype(np.int64) for part, t in tables.items()}
        for part, labels in numbers.items():
            if labels.min() < 0 or labels.max() >= len(names):
                bad = int(((labels < 0) | (labels >= len(names))).argmax())
                raise DataError(f"{part} example {bad} has {column} {int(labels[bad])}, but there are {len(names)} names")
        return numbers, names
    values, inverse = np.unique(np.concatenate([t.columns[column] for t in tables.values()]), return_inverse=True)
    ends = np.cumsum([len(t.images) for t in tables.values()])[:-1]
    return dict(zip(tables, np.split(inverse.astype(np.int64), ends), strict=True)), tuple(map(str, values))


def _largest_first(arrays: dict[str, dict[str, np.ndarray]], names: tuple[str, ...]
                   ) -> tuple[dict[str, dict[str, np.ndarray]], tuple[str, ...]]:
    """Number ids by how many images they have and sort by them: every array then starts with the n largest ids."""
    count = sum(np.bincount(a["ids"], minlength=len(names)) for a in arrays.values())
    order = np.argsort(-np.asarray(count), kind="stable")
    rank = np.empty(len(names), np.int64)
    rank[order] = np.arange(len(names))
    out = {}
    for part, a in arrays.items():
        ids = rank[a["ids"]]
        by_id = np.argsort(ids, kind="stable")
        out[part] = {key: (ids if key == "ids" else value)[by_id] for key, value in a.items()}
    return out, tuple(names[i] for i in order)


def _held_out(a: dict[str, np.ndarray], seed: int) -> dict[str, dict[str, np.ndarray]]:
    """Draw 10 % of every id's images (of all, where there are no ids) for the test set."""
    n = len(a["labels"])
    ids = a.get("ids", np.zeros(n, np.int64))
    order = np.lexsort((generator(seed, "hold-out").random(n), ids))
    size = np.bincount(ids)
    place = np.arange(n) - (np.cumsum(size) - size)[ids[order]]
    test = np.zeros(n, bool)
    test[order] = place < np.round(HELD_OUT * size)[ids[order]]
    if not test.any():
        raise DataError(f"{n} images are too few to hold out a test set: name a test split")
    return {"train": {k: v[~test] for k, v in a.items()}, "test": {k: v[test] for k, v in a.items()}}


def _statistics(images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Compute mean and standard deviation per channel of images in [0, 1], without a float copy: from value counts."""
    count = np.stack([np.bincount(images[:, c].reshape(-1), minlength=256) for c in range(images.shape[1])])
    share, value = count / count.sum(1, keepdims=True), np.arange(256) / 255
    mean = share @ value
    std = np.sqrt(np.maximum((share * (value - mean[:, None]) ** 2).sum(1), 1e-24))
    return tuple(mean.tolist()), tuple(std.tolist())
