"""Every kind of file that anybit reads, with an intact example and everything that looks at it."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fuzz import Reader
from fuzz_runs import small_model, trained
from fuzz_strangers import devices, digests, gate, hello, links
from mutate import Mutate, mutate_bytes, mutate_json, mutate_lines, mutate_safetensors, mutate_toml

import anybit
from anybit import recipes
from anybit.config import from_recipe
from anybit.data import cache, sources
from anybit.data.cache import Manifest
from anybit.data.examples import check_split
from anybit.errors import RunError
from anybit.export.archive import FORMAT, read_archive
from anybit.export.fleet import read_fleet
from anybit.export.packing import pack
from anybit.federated.state import Trainable
from anybit.files.reading import read_json
from anybit.files.safetensors import save, to_bytes
from anybit.quant.grid import Width
from anybit.quant.ranges import StepTable
from anybit.report import accuracy_table, read_runs
from anybit.reproduction.compare import compare
from anybit.reproduction.text import as_json
from anybit.schema import plain
from anybit.sweeps.plan import SweepFolder, groups, plan
from anybit.sweeps.results import read_results, write_results
from anybit.training.build import written_out
from anybit.training.loop import begin

FLEET = """[[device]]
name = "phone"
width = "W4A8"
runtime = "onnx"
count = 12

[[device]]
name = "board"
width = "W2"
"""

def recipe(home: Path) -> Reader:
    file = home / "recipes/mine.toml"
    file.parent.mkdir()
    file.write_text(recipes.as_toml(recipes.load("paper/cifar10-resnet20/mqat-wa")))

    def look() -> None:
        config = from_recipe(str(file), ["rounds=3"])
        recipes.as_toml(recipes.load(str(file)))
        json.dumps(plain(written_out(config)))
    return Reader(file, mutate_toml, look)


def config(home: Path) -> Reader:
    _, folder = trained(home)
    return Reader(folder.file("config.json"), mutate_json, lambda: (anybit.Run.load(folder.path), read_runs([folder.path])))


def checkpoint(home: Path) -> Reader:
    computation, folder = trained(home)
    metrics, timing = (folder.file(f"{log}.jsonl").read_bytes() for log in ("metrics", "timing"))

    def look() -> None:
        folder.file("metrics.jsonl").write_bytes(metrics)
        folder.file("timing.jsonl").write_bytes(timing)
        begin(computation, folder, resume=True)
    return Reader(folder.checkpoints()[-1], mutate_safetensors, look)


def steps(home: Path) -> Reader:
    _, folder = trained(home)
    shapes = dict[str, tuple[int, ...]].fromkeys(folder.steps(), ())
    return Reader(folder.file("steps.json"), mutate_json, lambda: (StepTable.from_json(folder.steps(), shapes),
                                                                   read_runs([folder.path])))


def archive(home: Path) -> Reader:
    file = home / "export/model.safetensors"
    file.parent.mkdir()
    codes = np.arange(12, dtype=np.uint8).reshape(4, 3) % 8
    packed = {"head.weight": {"bits": 3, "low": -4, "shape": [4, 3]}}
    save(file, {"head.weight": torch.from_numpy(pack(codes, 3)), "head.weight.step": torch.full((4, 1), 0.5),
                "head.bias": torch.zeros(4), "head.input_quantizer.step": torch.tensor(0.1)},
         {"format": FORMAT, "width": "W3A8", "packed": json.dumps(packed), "steps": "",
          "activations": json.dumps({"head.input_quantizer": {"bits": 8, "low": -128, "high": 127}})})
    return Reader(file, mutate_safetensors, lambda: read_archive(file))


def _cached(home: Path) -> Path:
    draw = np.random.default_rng(0)
    arrays = {f"{part}_{stem}": value for part in cache.PARTS for stem, value in (
        ("images", draw.integers(256, size=(12, 3, 4, 4), dtype=np.uint8)), ("labels", np.arange(12) % 3),
        ("ids", np.arange(12) // 4))}
    with cache.locked("small"):
        cache.write(Manifest("small", "owner/small", "abc", {"train": 12, "test": 12}, (3, 4, 4), ("a", "b", "c"),
                             (0.5,) * 3, (0.2,) * 3, {"image": "image"}, {}, (), ("x", "y", "z")), arrays)
    return home / "small"


def _look_at_cache() -> None:
    data = sources.images("small")
    data.pipeline(data.train.images[:2])
    data.labels()
    cache.verify("small")
    cache.ls()


def manifest(home: Path) -> Reader:
    return Reader(_cached(home) / "manifest.json", mutate_json, _look_at_cache)


def npy(home: Path) -> Reader:
    return Reader(_cached(home) / "train_images.npy", mutate_bytes, _look_at_cache)


def split(home: Path) -> Reader:
    _, folder = trained(home)
    return Reader(folder.file("split.safetensors"), mutate_safetensors, lambda: check_split(folder.split(), 24))


def fleet(home: Path) -> Reader:
    file = home / "fleet/fleet.toml"
    file.parent.mkdir()
    file.write_text(FLEET)
    return Reader(file, mutate_toml, lambda: read_fleet(file))


def results(home: Path) -> Reader:
    _, folder = trained(home)
    file = folder.file("results.json")
    write_results(read_results([folder.path]).results, file)

    def look() -> None:
        found = read_results([file]).results
        write_results(found, folder.file("out.csv"))
        as_json(compare(found))
    return Reader(file, mutate_json, _paper_aside(look))


def _paper_aside(look: Callable[[], None]) -> Callable[[], None]:
    """An intact file without a column of the paper is refused by the comparison, which is right."""
    def checked() -> None:
        try:
            look()
        except anybit.errors.RunError as error:
            if "column of the paper" not in str(error):
                raise
    return checked


def sweep(home: Path) -> Reader:
    held = SweepFolder.begin(home / "sweep", plan(["quickstart"], ["rounds=3"], [1, 2]))
    (held.path / "manifest.json").unlink()

    def look() -> None:
        found = SweepFolder.open(held.path)
        groups(found.unfinished())
    return Reader(held.path / "sweep.json", mutate_json, look)


def _of_run(name: str, home: Path) -> Reader:
    _, folder = trained(home)

    def look() -> None:
        accuracy_table(read_runs([folder.path])).as_json()
        read_results([folder.path])
        read_json(folder.file("evaluation.json"))
    return Reader(folder.file(name), mutate_json if name.endswith(".json") else mutate_lines, look)


def _answer(file: Path, mutate: Mutate, values: Callable[[], dict[str, Any]], delta: Callable[[], bytes],
            bits: int) -> Reader:
    """What the server does with the answer of a device. Flower hands over values of plain types and bytes."""
    from anybit.config import FleetOptions
    from anybit.fleet.checks import check_update
    from anybit.fleet.exchange import Reply
    from anybit.fleet.flower import Array, ArrayRecord, ConfigRecord, RecordDict
    from anybit.fleet.wire import FORMAT, KEY, Refused

    def look() -> None:
        data = delta()
        try:
            record = ConfigRecord(values())
        except (TypeError, ValueError):
            raise RunError("Flower does not make a message of it") from None
        content = RecordDict({"answer": record, "delta": ArrayRecord({KEY: Array("uint8", (len(data),), FORMAT, data)})})
        try:
            check_update(Reply(3, content, "", False, len(data)), 7, Width(4, 32), _weights(),
                         FleetOptions(uplink_bits=bits, norm_bound=10.0))
        except Refused as error:
            raise RunError(str(error)) from None
    return Reader(file, mutate, look)


_VALUES: dict[str, Any] = {"client": 3, "round": 7, "examples": 24, "seconds": 0.5, "width": "W4", "losses": [0.5, 0.25],
                           "score": 50.0}


def _weights(factor: float = 1.0) -> Trainable:
    return Trainable({name: factor * p.detach() for name, p in small_model().named_parameters()})


def delta(bits: int, home: Path) -> Reader:
    """The tensors of an answer."""
    from anybit.fleet.traffic import round_delta

    file = home / "answer/delta.safetensors"
    file.parent.mkdir()
    small = _weights(0.01)
    file.write_bytes(to_bytes(small.named() if bits == 32 else round_delta(small, bits, 1), {}))
    return _answer(file, mutate_safetensors, lambda: _VALUES, file.read_bytes, bits)


def answer(home: Path) -> Reader:
    """The values of an answer."""
    file = home / "answer/values.json"
    file.parent.mkdir()
    file.write_text(json.dumps(_VALUES))
    whole = to_bytes(_weights(0.01).named(), {})
    return _answer(file, mutate_json, lambda: dict(read_json(file)), lambda: whole, 32)


READERS: dict[str, Callable[[Path], Reader]] = {
    "recipe": recipe, "config": config, "checkpoint": checkpoint, "steps": steps, "archive": archive, "manifest": manifest,
    "npy": npy, "split": split, "fleet": fleet, "results": results, "sweep": sweep,
    "evaluation": functools.partial(_of_run, "evaluation.json"), "metrics": functools.partial(_of_run, "metrics.jsonl"),
    "timing": functools.partial(_of_run, "timing.jsonl"), "digests": digests, "links": links, "hello": hello,
    "devices": devices, "gate": gate, "answer": answer, "delta": functools.partial(delta, 32),
    "delta4": functools.partial(delta, 4)}
