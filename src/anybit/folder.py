"""A run is a folder. Everything in it is JSON or safetensors, written whole or not at all.

config.json  environment.json  split.safetensors  metrics.jsonl  timing.jsonl  checkpoints/
and at the end: model.safetensors  steps.json  evaluation.json
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anybit.errors import RunError
from anybit.federated.algorithm import State
from anybit.quant.ranges import StepTable
from anybit.tensors import load, read_json, save, write_bytes, write_json

KEEP_CHECKPOINTS = 2
_CHECKPOINT = re.compile(r"round-(\d+)\.safetensors")


@dataclass(frozen=True)
class Checkpoint:
    """The state after `round` rounds, and how long the metrics were then."""

    round: int
    state: State
    table: StepTable
    metrics_bytes: int


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a folder; the lock ends with the process, however it ends."""
    with open(path / "lock", "w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(f"{path} is in use by another process") from None
        yield


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def file(self, name: str) -> Path:
        return self.path / name

    @staticmethod
    def create(path: Path, config: Mapping[str, Any], environment: Mapping[str, Any]) -> RunFolder:
        """Start a new run. A folder that already holds one is refused, so that nothing is overwritten."""
        if (path / "config.json").exists():
            raise RunError(f"{path} already holds a run: resume it with 'anybit resume {path}', or choose another folder")
        try:
            (path / "checkpoints").mkdir(parents=True, exist_ok=True)
            write_json(path / "environment.json", environment)
            write_json(path / "config.json", config)
        except OSError as error:
            raise RunError(f"{path} cannot be written ({error.strerror}): choose another folder with --path") from None
        return RunFolder(path)

    @staticmethod
    def open(path: Path) -> RunFolder:
        if not (path / "config.json").is_file():
            raise RunError(f"{path} is not a run: it has no config.json")
        return RunFolder(path)

    def config(self) -> Any:
        return read_json(self.file("config.json"))

    @property
    def finished(self) -> bool:
        return self.file("evaluation.json").exists()

    def locked(self) -> AbstractContextManager[None]:
        """Hold the folder while training in it."""
        return locked(self.path)

    def append(self, log: str, entry: Mapping[str, Any]) -> None:
        """One line of metrics or timing."""
        with open(self.file(f"{log}.jsonl"), "a") as file:
            file.write(json.dumps(entry, ensure_ascii=False) + "\n")

    def lines(self, log: str) -> list[dict[str, Any]]:
        """The entries of a log; a line that a crash cut short ends it."""
        entries = []
        path = self.file(f"{log}.jsonl")
        for line in path.read_text().splitlines() if path.exists() else []:
            try:
                entries.append(json.loads(line))
            except ValueError:
                break
        return entries

    def clear_logs(self) -> None:
        """Drop what was logged before the first checkpoint."""
        for log in ("metrics", "timing"):
            self.file(f"{log}.jsonl").unlink(missing_ok=True)

    def rewind_logs(self, checkpoint: Checkpoint) -> None:
        """Drop what was logged after the checkpoint; it will be logged again, the same."""
        metrics = self.file("metrics.jsonl")
        if (metrics.stat().st_size if metrics.exists() else 0) < checkpoint.metrics_bytes:
            raise RunError(f"{metrics} is shorter than its checkpoint says: it was edited or truncated")
        os.truncate(metrics, checkpoint.metrics_bytes)
        timing = [json.dumps(entry) + "\n" for entry in self.lines("timing") if entry["round"] <= checkpoint.round]
        write_bytes(self.file("timing.jsonl"), "".join(timing).encode())

    def save_checkpoint(self, round: int, state: State, table: StepTable) -> Path:
        """Write the state after `round` rounds and drop all but the newest checkpoints."""
        with open(self.file("metrics.jsonl"), "ab") as metrics:
            os.fsync(metrics.fileno())
            length = metrics.tell()
        tensors = {**{f"w/{n}": t for n, t in state.w.items()}, **{f"optimizer/{n}": t for n, t in state.optimizer.items()},
                   **{f"table/{n}": t for n, t in table.steps.items()}}
        path = self.file("checkpoints") / f"round-{round:06d}.safetensors"
        save(path, tensors, {"round": str(round), "metrics_bytes": str(length), "config": self.config_digest()})
        for old in self.checkpoints()[:-KEEP_CHECKPOINTS]:
            old.unlink()
        return path

    def checkpoints(self) -> list[Path]:
        """Oldest first."""
        found = [p for p in self.file("checkpoints").glob("*.safetensors") if _CHECKPOINT.fullmatch(p.name)]
        return sorted(found, key=self.round_of)

    @staticmethod
    def round_of(checkpoint: Path) -> int:
        match = _CHECKPOINT.fullmatch(checkpoint.name)
        return int(match[1]) if match else 0

    def load_checkpoint(self, path: Path, device: torch.device) -> Checkpoint:
        try:
            tensors, metadata = load(path)
            parts: dict[str, dict[str, Tensor]] = {"w": {}, "optimizer": {}, "table": {}}
            for name, tensor in tensors.items():
                part, _, rest = name.partition("/")
                parts[part][rest] = tensor.to(device)
            round, length, digest = int(metadata["round"]), int(metadata["metrics_bytes"]), metadata["config"]
        except (KeyError, ValueError, RunError) as error:
            older = [p for p in self.checkpoints() if p != path]
            fix = f"delete it to resume from {older[-1].name}" if older else "delete it to start again from round 0"
            raise RunError(f"checkpoint {path} cannot be read ({error}): {fix}") from None
        if digest != self.config_digest():
            raise RunError(f"{self.file('config.json')} is not the config that {path.name} was trained with: restore it, "
                           "or start a new run")
        return Checkpoint(round, State(parts["w"], parts["optimizer"]), StepTable(parts["table"]), length)

    def config_digest(self) -> str:
        """Of the config as stored, so that a run is never resumed with another one."""
        return hashlib.sha256(json.dumps(self.config(), sort_keys=True).encode()).hexdigest()

    def save_split(self, split: Sequence[np.ndarray]) -> None:
        sizes = torch.tensor([len(index) for index in split])
        every = torch.from_numpy(np.concatenate([np.asarray(index, np.int64) for index in split]))
        save(self.file("split.safetensors"), {"sizes": sizes, "examples": every}, {})

    def split(self) -> list[np.ndarray]:
        tensors, _ = load(self.file("split.safetensors"))
        try:
            every, sizes = tensors["examples"].numpy(), tensors["sizes"].numpy()
            if sizes.sum() != len(every) or (sizes < 0).any():
                raise KeyError("sizes")
        except KeyError as error:
            raise RunError(f"{self.file('split.safetensors')} is damaged ({error})") from None
        return np.split(every, np.cumsum(sizes)[:-1])

    def save_result(self, w: Mapping[str, Tensor], table: StepTable, evaluation: Mapping[str, Any]) -> None:
        """The trained model, its steps and the final evaluation; the evaluation last, as the sign of completeness."""
        save(self.file("model.safetensors"), w, {"format": "pt"})
        write_json(self.file("steps.json"), table.to_json())
        self.save_evaluation(evaluation)

    def save_evaluation(self, evaluation: Mapping[str, Any]) -> None:
        write_json(self.file("evaluation.json"), evaluation)

    def model(self) -> dict[str, Tensor]:
        if not self.file("model.safetensors").exists():
            raise RunError(f"{self.path} has no trained model yet: finish it with 'anybit resume {self.path}'")
        return load(self.file("model.safetensors"))[0]

    def evaluation(self) -> dict[str, Any]:
        if not self.finished:
            raise RunError(f"{self.path} is not finished: continue it with 'anybit resume {self.path}'")
        evaluation: dict[str, Any] = read_json(self.file("evaluation.json"))
        return evaluation

    def steps(self) -> Any:
        return read_json(self.file("steps.json"))
