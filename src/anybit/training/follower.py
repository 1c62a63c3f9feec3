"""The run folder of ranks that do not lead: another process writes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from anybit.federated.state import State
from anybit.files.digests import Accepted
from anybit.quant.ranges import StepTable
from anybit.training.checkpoint import Checkpoint
from anybit.training.run_folder import RunFolder


class Follower(RunFolder):
    """A run that another process writes: it can be read, and everything else does nothing."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        yield

    def append(self, log: str, entry: Mapping[str, Any]) -> None: ...

    def clear_logs(self) -> None: ...

    def rewind_logs(self, checkpoint: Checkpoint) -> None: ...

    def tidy(self) -> None: ...

    def save_split(self, split: Sequence[np.ndarray]) -> None: ...

    def save_checkpoint(self, round: int, state: State, table: StepTable) -> Path:
        return self.path

    def save_result(self, w: Mapping[str, Tensor], table: StepTable, evaluation: Mapping[str, Any]) -> None: ...

    def record(self, changes: Mapping[str, Accepted | None]) -> None: ...

    def save_evaluation(self, evaluation: Mapping[str, Any]) -> None: ...
