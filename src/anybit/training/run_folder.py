"""A run is a folder. Everything in it is JSON or safetensors, written whole or not at all.

config.json  environment.json  task.json  split.safetensors  metrics.jsonl  timing.jsonl  checkpoints/
at the end: model.safetensors  steps.json  evaluation.json; of a run that was extended: extended.json
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anybit.config import Config
from anybit.errors import ConfigError, RunError
from anybit.federated.state import State
from anybit.files.holding import locked, no_link, own_folder
from anybit.files.reading import read_json
from anybit.files.safetensors import load, save
from anybit.files.writing import stale, sync_folder, write_bytes, write_json, writing
from anybit.quant.ranges import StepTable
from anybit.schema import read
from anybit.tensors import Tensors, moved
from anybit.training.checkpoint import Checkpoint, named
from anybit.training.records import checked_evaluation
from anybit.training.run_files import check_free, entry_of, lines_of, resume_with, rewound, split_of

KEEP_CHECKPOINTS = 2
_CHECKPOINT = re.compile(r"round-(\d+)\.safetensors")


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def file(self, name: str) -> Path:
        return self.path / name

    @staticmethod
    def create(path: Path, config: Mapping[str, Any], environment: Mapping[str, Any],
               split: Sequence[np.ndarray] | None = None, task: Mapping[str, Any] | None = None) -> RunFolder:
        """Start a new run. A folder that holds one, or anything else, is refused, so that nothing is overwritten.

        The config comes last, as the sign that there is a run: one that was killed before can be started again.
        """
        check_free(path)
        folder = RunFolder(path)
        with writing(path, "choose another folder with --path"):
            path.mkdir(parents=True, exist_ok=True)
        with locked(path), writing(path, "choose another folder with --path"):
            check_free(path)  # somebody may have started here before we held it
            folder.kept.mkdir(exist_ok=True)
            if split is not None:
                folder.save_split(split)
            if task is not None:
                write_json(path / "task.json", task)
            write_json(path / "environment.json", environment)
            write_json(path / "config.json", config)
        return folder

    @staticmethod
    def open(path: Path) -> RunFolder:
        if not (path / "config.json").is_file():
            raise RunError(f"{path} is not a run: it has no config.json" if path.exists() else f"{path} does not exist")
        own_folder(path / "checkpoints")
        return RunFolder(path)

    @property
    def kept(self) -> Path:
        """The folder of the checkpoints."""
        return own_folder(self.file("checkpoints"))

    def config(self) -> Any:
        """Read the config as it is stored."""
        return read_json(self.file("config.json"))

    def stored_config(self) -> Config:
        """Read the config as an object."""
        try:
            config: Config = read(Config, self.config())
            return config
        except ConfigError as error:
            raise RunError(f"{self.file('config.json')}: {error}") from None

    def task(self) -> dict[str, Any] | None:
        """Read the identity of the task; none in folders of versions that did not record it."""
        return self._table("task.json") if self.file("task.json").exists() else None

    def extended_from(self) -> list[int]:
        """List the numbers of rounds that the run had before it was extended."""
        rounds = self._table("extended.json").get("from") if self.file("extended.json").exists() else []
        if not isinstance(rounds, list) or not all(type(number) is int for number in rounds):
            raise RunError(f"{self.file('extended.json')} is damaged: 'from' must list whole numbers")
        return rounds

    def _table(self, name: str) -> dict[str, Any]:
        content = read_json(self.file(name))
        if not isinstance(content, dict):
            raise RunError(f"{self.file(name)} is damaged: it must be a table")
        return content

    @property
    def finished(self) -> bool:
        return self.file("evaluation.json").exists()

    @property
    def whole(self) -> bool:
        """Finished, with nothing of the result gone: else it can be made anew from the last checkpoint."""
        return all(self.file(name).exists() for name in ("evaluation.json", "model.safetensors", "steps.json"))

    def locked(self) -> AbstractContextManager[None]:
        """Hold the folder while training in it."""
        return locked(self.path)

    @contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        """Stop the run when a disk is full or broken; what is there stays, and the run can go on from it."""
        try:
            yield
        except OSError as error:
            kept = self.checkpoints()
            again = f"continue with '{resume_with(self.path)}'" + (f" from {kept[-1].name}" if kept else "")
            with writing(self.file(name), f"fix the disk, then {'do it again' if self.whole else again}"):
                raise error

    def append(self, log: str, entry: Mapping[str, Any]) -> None:
        """Add a line to a log."""
        line = (json.dumps(entry, ensure_ascii=False) + "\n").encode()
        name = f"{log}.jsonl"
        with self._writing(name), open(self.file(name), "ab", opener=no_link) as file:
            file.write(line)

    def lines(self, log: str) -> list[dict[str, Any]]:
        """Read the entries of a log. A last line that a crash cut short is left out; any other damage is an error."""
        path = self.file(f"{log}.jsonl")
        entries = []
        for number, line in enumerate(lines_of(path), 1):
            entry = entry_of(line)
            if entry is None:
                raise RunError(f"{path}, line {number}, is damaged: '{resume_with(self.path)}' writes anew what came "
                               "after the last checkpoint")
            entries.append(entry)
        return entries

    def clear_logs(self) -> None:
        """Drop what was logged before the first checkpoint."""
        for log in ("metrics", "timing"):
            with self._writing(f"{log}.jsonl"):
                self.file(f"{log}.jsonl").unlink(missing_ok=True)

    def rewind_logs(self, checkpoint: Checkpoint) -> None:
        """Drop what was logged after the checkpoint; it will be logged again, the same."""
        if checkpoint.round in self.extended_from():
            self._rewind_to_former_end(checkpoint.round)
        else:
            self._truncate_metrics(checkpoint.metrics_bytes)
        # Times are no part of the result: what is damaged of them does not keep a run from going on.
        timing = [entry for line in lines_of(self.file("timing.jsonl")) if (entry := entry_of(line)) is not None
                  and type(entry.get("round")) is int and entry["round"] <= checkpoint.round]
        with self._writing("timing.jsonl"):
            write_bytes(self.file("timing.jsonl"), "".join(json.dumps(entry) + "\n" for entry in timing).encode())

    def _truncate_metrics(self, length: int) -> None:
        metrics = self.file("metrics.jsonl")
        if (metrics.stat().st_size if metrics.exists() else 0) < length:
            raise self._too_short(metrics)
        with self._writing("metrics.jsonl"), open(metrics, "ab", opener=no_link) as file:
            file.truncate(length)

    def _rewind_to_former_end(self, round: int) -> None:
        """Make the metrics those of a run that was longer from the start, whose round this was not its last."""
        metrics, config = self.file("metrics.jsonl"), self.stored_config()
        try:
            content = rewound(metrics, round, config.evaluation.due(round) or round == config.rounds)
        except ValueError:
            raise self._too_short(metrics) from None
        with self._writing("metrics.jsonl"):
            write_bytes(metrics, content)

    @staticmethod
    def _too_short(metrics: Path) -> RunError:
        return RunError(f"{metrics} is shorter than its checkpoint says: it was edited or truncated; restore it, or "
                        "delete the folder 'checkpoints' beside it to start again from round 0")

    def tidy(self) -> None:
        """Remove the temporary files of a process that was killed while writing. The caller holds the lock."""
        for part in (*stale(self.path), *stale(self.kept)):
            with self._writing(part.name):
                part.unlink(missing_ok=True)

    def save_checkpoint(self, round: int, state: State, table: StepTable) -> Path:
        """Write the state after `round` rounds and drop all but the newest checkpoints."""
        path = self.kept / f"round-{round:06d}.safetensors"
        with self._writing(f"checkpoints/{path.name}"):
            self._write_checkpoint(path, round, state, table)
            for old in self.checkpoints()[:-KEEP_CHECKPOINTS]:
                old.unlink()
        return path

    def _write_checkpoint(self, path: Path, round: int, state: State, table: StepTable) -> None:
        """Sync the metrics first: a checkpoint that says how long they are must not outlive them in a power cut."""
        with open(self.file("metrics.jsonl"), "ab", opener=no_link) as metrics:
            os.fsync(metrics.fileno())
            length = metrics.tell()
        sync_folder(self.path)
        save(path, named(state, table), {"round": str(round), "metrics_bytes": str(length), "config": self.config_digest()})

    def checkpoints(self) -> list[Path]:
        """List the checkpoints, oldest first."""
        files = self.kept.glob("*.safetensors")
        return sorted((path for path in files if _CHECKPOINT.fullmatch(path.name)), key=self.round_of)

    @staticmethod
    def round_of(checkpoint: Path) -> int:
        match = _CHECKPOINT.fullmatch(checkpoint.name)
        return int(match[1]) if match else 0

    def load_checkpoint(self, path: Path, device: torch.device) -> Checkpoint:
        try:
            tensors, metadata = load(path)
            length, digest = int(metadata["metrics_bytes"]), metadata["config"]
            checkpoint = Checkpoint(path, int(metadata["round"]), moved(tensors, device), length)
            checkpoint.check()
            if checkpoint.round != self.round_of(path) or length < 0:
                raise ValueError(f"it says round {checkpoint.round}, {length} bytes of metrics")
        except (KeyError, ValueError, RunError) as error:
            older = [p for p in self.checkpoints() if p != path]
            fix = f"delete it to resume from {older[-1].name}" if older else "delete it to start again from round 0"
            raise RunError(f"checkpoint {path} cannot be read ({error}): {fix}") from None
        if digest not in (self.config_digest(), *map(self.config_digest, self.extended_from())):
            raise RunError(f"{self.file('config.json')} is not the config that {path.name} was trained with: restore it, "
                           "or start a new run")
        return checkpoint

    def newest_checkpoint(self, device: torch.device) -> Checkpoint | None:
        """Read the newest checkpoint; none if there is none yet."""
        checkpoints = self.checkpoints()
        return self.load_checkpoint(checkpoints[-1], device) if checkpoints else None

    def config_digest(self, rounds: int | None = None) -> str:
        """Digest the config as stored, so that a run is never resumed with another one; rounds: as they were once."""
        config = self.config() if rounds is None else {**self.config(), "rounds": rounds}
        return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()

    def save_split(self, split: Sequence[np.ndarray]) -> None:
        sizes = torch.tensor([len(index) for index in split])
        every = torch.from_numpy(np.concatenate([np.asarray(index, np.int64) for index in split]))
        with self._writing("split.safetensors"):
            save(self.file("split.safetensors"), {"sizes": sizes, "examples": every}, {})

    def split(self) -> list[np.ndarray]:
        return split_of(self.file("split.safetensors"))

    def save_result(self, w: Tensors, table: StepTable, evaluation: Mapping[str, Any]) -> None:
        """Write the trained model, its step sizes and the final evaluation, which comes last as the sign of completeness."""
        with self._writing("model.safetensors"):
            save(self.file("model.safetensors"), w, {"format": "pt"})
            write_json(self.file("steps.json"), table.to_json())
        self.save_evaluation(evaluation)

    def save_evaluation(self, evaluation: Mapping[str, Any]) -> None:
        with self._writing("evaluation.json"):
            write_json(self.file("evaluation.json"), evaluation)

    def model(self) -> dict[str, Tensor]:
        if not self.file("model.safetensors").exists():
            raise RunError(f"{self.path} has no trained model yet: finish it with '{resume_with(self.path)}'")
        with self._again("model.safetensors"):
            return load(self.file("model.safetensors"))[0]

    def evaluation(self) -> dict[str, Any]:
        if not self.finished:
            raise RunError(f"{self.path} is not finished: continue it with '{resume_with(self.path)}'")
        with self._again("evaluation.json"):
            return checked_evaluation(read_json(self.file("evaluation.json")), self.file("evaluation.json"))

    def steps(self) -> Any:
        if not self.file("steps.json").exists():
            raise RunError(f"{self.path} has no steps yet: finish it with '{resume_with(self.path)}'")
        with self._again("steps.json"):
            return read_json(self.file("steps.json"))

    @contextmanager
    def _again(self, name: str) -> Iterator[None]:
        """Say how the last checkpoint makes a damaged result anew."""
        try:
            yield
        except RunError as error:
            anew = f"; delete it, and '{resume_with(self.path)}' makes it anew from {self.checkpoints()[-1].name}"
            raise RunError(f"{error}{anew if self.file(name).exists() and self.checkpoints() else ''}") from None
