"""A run is a folder. Everything in it is JSON or safetensors, written whole or not at all, with its digest in manifest.json.

config.json  environment.json  task.json  split.safetensors  metrics.jsonl  timing.jsonl  checkpoints/  manifest.json
at the end: model.safetensors  steps.json  evaluation.json; of a run that was extended: extended.json
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anybit.config import Config, before_younger_settings
from anybit.errors import ConfigError, RunError, option
from anybit.federated.state import State
from anybit.files.digests import Digest, Digests, marked, unmarked
from anybit.files.holding import locked, own_folder
from anybit.files.safetensors import to_bytes
from anybit.files.writing import stale, to_json, write_bytes, writing
from anybit.quant.ranges import StepTable
from anybit.schema import read
from anybit.tensors import Tensors, moved
from anybit.training.checkpoint import Checkpoint, named
from anybit.training.ledger import METRICS
from anybit.training.records import checked_evaluation
from anybit.training.run_files import check_free, resume_with, split_bytes, split_of
from anybit.training.run_logs import Logs

KEEP_CHECKPOINTS = 2


class RunFolder(Logs):
    """The files of one run."""

    @staticmethod
    def create(path: Path, config: Mapping[str, Any], environment: Mapping[str, Any],
               split: Sequence[np.ndarray] | None = None, task: Mapping[str, Any] | None = None) -> RunFolder:
        """Start a new run. A folder that holds one, or anything else, is refused, so that nothing is overwritten.

        The config comes last, as the sign that there is a run: one that was killed before can be started again.
        """
        check_free(path)
        folder = RunFolder(path)
        with writing(path, f"choose another folder with {option('path')}"):
            path.mkdir(parents=True, exist_ok=True)
        first = {**({} if split is None else {"split.safetensors": split_bytes(split)}),
                 **({} if task is None else {"task.json": to_json(task)}),
                 "environment.json": to_json(marked(environment))}
        last = {"config.json": to_json(config)}
        with locked(path), writing(path, f"choose another folder with {option('path')}"):
            check_free(path)  # somebody may have started here before we held it
            folder.kept.mkdir(exist_ok=True)
            for name, content in first.items():
                write_bytes(path / name, content)
            Digests({name: (Digest.of(content),) for name, content in (first | last).items()}).write(path)
            for name, content in last.items():
                write_bytes(path / name, content)
        return folder

    @staticmethod
    def open(path: Path) -> RunFolder:
        if not (path / "config.json").is_file():
            raise RunError(f"{path} is not a run: it has no config.json" if path.exists() else f"{path} does not exist")
        own_folder(path / "checkpoints")
        folder = RunFolder(path)
        folder.check()
        return folder

    def config(self) -> Any:
        """Read the config as it is stored."""
        return self.json("config.json")

    def environment(self) -> dict[str, Any]:
        """Read what the run was trained with; empty where nobody recorded it."""
        return unmarked(self._table("environment.json")) if self.file("environment.json").exists() else {}

    def stored_config(self) -> Config:
        """Read the config as an object."""
        try:
            config: Config = read(Config, self.config())
            return before_younger_settings(config)
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
        content = self.json(name)
        if not isinstance(content, dict):
            raise RunError(f"{self.file(name)} is damaged: it must be a table")
        return content

    def rewind_logs(self, checkpoint: Checkpoint) -> None:
        """Drop what was logged after the checkpoint; it will be logged again, the same."""
        if checkpoint.round in self.extended_from():
            config = self.stored_config()
            self.rewind_to_former_end(checkpoint.round, config.evaluation.due(checkpoint.round)
                                      or checkpoint.round == config.rounds)
        else:
            self.rewind_to_round(checkpoint.round, checkpoint.metrics_bytes)

    def tidy(self) -> None:
        """Clear away what a process left that was killed while writing. The caller holds the lock."""
        newest = max(map(self.round_of, self.checkpoints()), default=0)
        left = [path for path in self.found() if path not in self.checkpoints() and self.round_of(path) < newest]
        for part in (*stale(self.path), *stale(self.kept), *left):
            with self.writing(part.name):
                part.unlink(missing_ok=True)
        self.settle()

    def save_checkpoint(self, round: int, state: State, table: StepTable) -> Path:
        """Write the state after `round` rounds and drop all but the newest checkpoints.

        It counts once the manifest knows it; before, the metrics are synced: a checkpoint that says how long they are must
        not outlive them in a power cut.
        """
        path = self.kept / f"round-{round:06d}.safetensors"
        with self.writing(f"checkpoints/{path.name}"):
            metrics = self.synced_metrics()
            content = to_bytes(named(state, table), {"round": str(round), "metrics_bytes": str(metrics.size),
                                                     "config": self.config_digest()})
            write_bytes(path, content)
            kept = [p for p in self.checkpoints() if p != path][1 - KEEP_CHECKPOINTS:]
            names = {f"checkpoints/{p.name}" for p in kept}
            known = self.digests.files if self.digests else {}
            gone = {name: None for name in known if name.startswith("checkpoints/") and name not in names}
            self.record({**gone, METRICS: (metrics,), f"checkpoints/{path.name}": (Digest.of(content),)})
            for old in self.found():
                if old not in (*kept, path) and self.round_of(old) < round:
                    old.unlink()
        return path

    def load_checkpoint(self, path: Path, device: torch.device) -> Checkpoint:
        try:
            tensors, metadata = self.tensors(f"checkpoints/{path.name}")
            length, digest = int(metadata["metrics_bytes"]), metadata["config"]
            checkpoint = Checkpoint(path, int(metadata["round"]), moved(tensors, device), length)
            checkpoint.check()
            if checkpoint.round != self.round_of(path) or length < 0:
                raise ValueError(f"it says round {checkpoint.round}, {length} bytes of metrics")
        except (KeyError, ValueError, RunError) as error:
            older = [p for p in self.checkpoints() if p != path]
            fix = f"delete it to resume from {older[-1].name}" if older else "delete it to start again from round 0"
            if self.finished and not older:
                fix = "without it a finished run cannot go on; its model is still there"
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
        self.replace("split.safetensors", split_bytes(split))

    def split(self) -> list[np.ndarray]:
        return split_of(self.tensors("split.safetensors")[0], self.file("split.safetensors"))

    def save_result(self, w: Tensors, table: StepTable, evaluation: Mapping[str, Any]) -> None:
        """Write the trained model, its step sizes and the final evaluation, which comes last as the sign of completeness."""
        first = {"model.safetensors": to_bytes(w, {"format": "pt"}), "steps.json": to_json(table.to_json())}
        last = {"evaluation.json": to_json(evaluation)}
        with self.writing("evaluation.json"):
            self.file("evaluation.json").unlink(missing_ok=True)
        for name, content in first.items():
            with self.writing(name):
                write_bytes(self.file(name), content)
        self.record({name: (Digest.of(content),) for name, content in (first | last).items()})
        for name, content in last.items():
            with self.writing(name):
                write_bytes(self.file(name), content)

    def save_evaluation(self, evaluation: Mapping[str, Any]) -> None:
        """Exchange the final evaluation."""
        self.replace("evaluation.json", to_json(evaluation))

    def model(self) -> dict[str, Tensor]:
        if not self.file("model.safetensors").exists():
            raise RunError(f"{self.path} has no trained model yet: finish it with '{resume_with(self.path)}'")
        with self._again("model.safetensors"):
            return self.tensors("model.safetensors")[0]

    def evaluation(self) -> dict[str, Any]:
        if not self.finished:
            raise RunError(f"{self.path} is not finished: continue it with '{resume_with(self.path)}'")
        with self._again("evaluation.json"):
            return checked_evaluation(self.json("evaluation.json"), self.file("evaluation.json"))

    def steps(self) -> Any:
        if not self.file("steps.json").exists():
            raise RunError(f"{self.path} has no steps yet: finish it with '{resume_with(self.path)}'")
        with self._again("steps.json"):
            return self.json("steps.json")

    @contextmanager
    def _again(self, name: str) -> Iterator[None]:
        """Say how the last checkpoint makes a damaged result anew."""
        try:
            yield
        except RunError as error:
            anew = f"; delete it, and '{resume_with(self.path)}' makes it anew from {self.checkpoints()[-1].name}" \
                if self.file(name).exists() and self.checkpoints() else ""
            raise RunError(f"{error}{'' if anew in str(error) else anew}") from None
