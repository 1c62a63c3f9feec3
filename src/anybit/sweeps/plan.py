"""A sweep is many runs: recipes × varied settings × seeds. It is a folder, too, with one ordinary run folder per run.

sweep.json  <recipe>-seed<n>/  <recipe>-<setting>-<value>-seed<n>/ …
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from anybit import recipes
from anybit.config import Config, from_recipe
from anybit.errors import AnybitError, ConfigError, RunError
from anybit.files.digests import MANIFEST, Digest, Digests
from anybit.files.holding import locked, own_folder
from anybit.files.reading import TEXT_LIMIT, parse_json, read_bytes
from anybit.files.signatures import SUFFIX
from anybit.files.writing import stale, to_json, write_bytes, writing
from anybit.schema import plain, read

_SHARED = ("data", "engine", "device", "threads", "compute")
"""Settings that runs of a group share: one copy of the data, and settings of the whole process."""

_LONGEST_NAME = 200
"""Bytes of a run's name: file systems take 255, and temporary names are longer."""


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep."""

    name: str
    """Its folder inside the sweep's."""
    recipe: str
    overrides: tuple[str, ...]
    seed: int
    config: Config
    """Recipe, overrides and seed resolved, so that a sweep goes on where its recipes are not."""


def plan(names: Sequence[str], overrides: Sequence[str] = (), seeds: Sequence[int] | None = None,
         vary: Sequence[str] = ()) -> list[PlannedRun]:
    """Plan every recipe of `names` (a recipe, or a folder of recipes) with every seed; without seeds, with its own.

    vary: 'key=a,b' for settings of which every combination is trained, e.g. 'model.init=torch,he'.
    """
    choices = [recipes.parse_choices(text) for text in vary]
    _check_keys(overrides, [several[0] for several in choices], seeds)
    chosen_recipes = list(dict.fromkeys(recipe for name in names for recipe in recipes.expand(name)))
    if not chosen_recipes:
        raise ConfigError("a sweep needs at least one recipe: 'anybit ls' lists all")
    runs = []
    for recipe, leaf in zip(chosen_recipes, _leaves(chosen_recipes), strict=True):
        for chosen in product(*choices):
            settings = (*overrides, *chosen)
            for seed in dict.fromkeys(seeds) if seeds is not None else (from_recipe(recipe, settings).seed,):
                config = from_recipe(recipe, [*settings, f"seed={seed}"])
                varied = (setting for setting in chosen if not setting.startswith("seed="))  # the name ends in it
                name = "-".join((leaf, *map(_label, varied), f"seed{seed}"))
                runs.append(PlannedRun(name, recipe, settings, seed, config))
    return _distinct(runs)


def _check_keys(overrides: Sequence[str], varied: Sequence[str], seeds: Sequence[int] | None) -> None:
    keys = [override.partition("=")[0] for override in overrides]
    for key in (override.partition("=")[0] for override in varied):
        if key in keys:
            raise ConfigError(f"{key} is said twice: give all its values to one --vary")
        keys.append(key)
    if seeds is not None and "seed" in keys:
        raise ConfigError("seed=… together with seeds: give one of them")


def _label(override: str) -> str:
    """Write a varied setting as part of a folder's name.

    >>> _label("variant.bits=[2, 4]"), _label("split.alpha=0.1")
    ('bits-2-4', 'alpha-0.1')
    """
    key, _, value = override.partition("=")
    return "-".join((key.rpartition(".")[2], *re.findall(r"[\w.+-]+", value)))


def _distinct(runs: list[PlannedRun]) -> list[PlannedRun]:
    owner: dict[str, PlannedRun] = {}
    for run in runs:
        other = owner.setdefault(run.name, run)
        if other != run:
            one, two = (" ".join((planned.recipe, *planned.overrides)) for planned in (other, run))
            raise ConfigError(f"{one} and {two} would both be trained in the folder '{run.name}': rename a recipe, or "
                              "train them in two sweeps")
        _check_name(run.name)
    return runs


def _check_name(name: str) -> None:
    """Raise unless a folder can have this name."""
    if Path(name).name != name or name in ("", ".", "..") or not name.isprintable() or len(name.encode()) > _LONGEST_NAME:
        raise ConfigError(f"'{name[:60]}' is no name of a folder: at most {_LONGEST_NAME} bytes, without / and such")


def _leaves(names: Sequence[str]) -> list[str]:
    """Return the last part of each recipe's name, preceded by as many parts as it takes to tell them apart.

    >>> _leaves(["paper/a/mqat", "paper/b/mqat", "paper/b/qat"])
    ['a-mqat', 'b-mqat', 'qat']
    """
    parts = [Path(recipe.removesuffix(".toml")).parts for recipe in names]
    leaves = []
    for path in parts:
        others = [other for other in parts if other != path]
        length = next((n for n in range(1, len(path)) if all(other[-n:] != path[-n:] for other in others)), len(path))
        leaves.append("-".join(part.strip("/") for part in path[-length:] if part.strip("./")))
    return leaves


def group_key(config: Config) -> str:
    """Return a key that is equal for runs on one copy of the data."""
    content = plain(config)
    return json.dumps({key: content[key] for key in _SHARED}, sort_keys=True)


def groups(runs: Sequence[PlannedRun]) -> list[list[PlannedRun]]:
    """Group the runs, in the order of the plan."""
    by_key: dict[str, list[PlannedRun]] = {}
    for run in runs:
        by_key.setdefault(group_key(run.config), []).append(run)
    return list(by_key.values())


class SweepFolder:
    """The files of a sweep."""

    def __init__(self, path: Path, runs: Sequence[PlannedRun]) -> None:
        self.path, self.runs = path, list(runs)

    @staticmethod
    def begin(path: Path, runs: Sequence[PlannedRun]) -> SweepFolder:
        """Start a sweep, or go on with the one that is there, if `runs` are its runs or these and more."""
        if is_sweep(path):
            return SweepFolder.open(path)._with(runs)
        if (path / "config.json").exists():
            raise RunError(f"{path} holds a run, not a sweep: choose another folder with --path")
        with writing(path, "choose another folder with --path"):
            path.mkdir(parents=True, exist_ok=True)
        with locked(path), writing(path, "choose another folder with --path"):
            if not (begun := is_sweep(path)):  # somebody may have started one before we held the folder
                SweepFolder(path, runs)._write()
        return SweepFolder.open(path)._with(runs) if begun else SweepFolder(path, runs)

    @staticmethod
    def open(path: Path) -> SweepFolder:
        if not is_sweep(path):
            raise RunError(f"{path} is not a sweep: it has no sweep.json")
        digests, raw = Digests.read(path), read_bytes(path / "sweep.json", TEXT_LIMIT)
        if digests is not None and digests.state("sweep.json", raw) != "ok":
            raise RunError(f"{path / 'sweep.json'} is damaged, edited or another sweep's: its SHA-256 is not the one in "
                           f"{MANIFEST}; restore it from a copy")
        content = parse_json(raw, path / "sweep.json")
        try:
            runs = [_planned(entry) for entry in content["runs"]]
        except (KeyError, IndexError, TypeError, AnybitError) as error:
            raise RunError(f"{path / 'sweep.json'} is not a sweep ({error})") from None
        return SweepFolder(path, runs)

    def _with(self, runs: Sequence[PlannedRun]) -> SweepFolder:
        """Return this sweep with `runs`, written down if there are new ones."""
        if not self._lacks(runs):
            return self
        if (self.path / f"{MANIFEST}{SUFFIX}").exists():
            raise RunError(f"{self.path} is signed, and gets no more runs: choose another folder with --path")
        with self.locked(), writing(self.path, "free some space, then run the sweep again"):
            begun = SweepFolder.open(self.path)
            if begun._lacks(runs):
                SweepFolder(self.path, runs)._write(read_bytes(self.path / "sweep.json", TEXT_LIMIT))
        return SweepFolder(self.path, runs)

    def _lacks(self, runs: Sequence[PlannedRun]) -> bool:
        """Tell if there are more runs than here; raise unless all of these are among them, as they are: results of two
        definitions must not mix in one folder."""
        now = {run.name: run for run in runs}
        for run in self.runs:
            if run != now.get(run.name):
                how = "with other settings of" if run.name in now else "it also has"
                raise RunError(f"{self.path} holds another sweep ({how} {run.name}): continue it with 'anybit sweep "
                               f"{self.path}', or choose another folder with --path")
        return len(now) > len(self.runs)

    def _write(self, before: bytes | None = None) -> None:
        """Write sweep.json, in place of what was there, so that a process killed in between leaves either."""
        content = to_json({"runs": [plain(run) for run in self.runs]})
        old, new = () if before is None else (Digest.of(before),), (Digest.of(content),)
        Digests({"sweep.json": old + new}).write(self.path)
        write_bytes(self.path / "sweep.json", content)
        if old:
            Digests({"sweep.json": new}).write(self.path)

    def run_path(self, run: PlannedRun) -> Path:
        return own_folder(self.path / run.name)

    def finished(self, run: PlannedRun) -> bool:
        return (self.run_path(run) / "evaluation.json").exists()

    def unfinished(self) -> list[PlannedRun]:
        return [run for run in self.runs if not self.finished(run)]

    def tidy(self) -> None:
        """Remove the temporary files of a process that was killed while writing. The caller holds the lock."""
        for part in stale(self.path):
            with writing(part, "fix the disk, then run the sweep again"):
                part.unlink(missing_ok=True)

    def locked(self) -> AbstractContextManager[None]:
        """Hold the sweep while training its runs."""
        return locked(self.path)


def is_sweep(path: Path) -> bool:
    return (path / "sweep.json").is_file()


def _planned(entry: Any) -> PlannedRun:
    run: PlannedRun = read(PlannedRun, entry)
    _check_name(run.name)
    return run
