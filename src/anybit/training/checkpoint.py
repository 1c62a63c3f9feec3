"""A checkpoint: the state of a training after some rounds, as named tensors in one file.

w/<parameter>  w/log_step/<site>  optimizer/…  average/<parameter>  table/<site>  rms/<site>
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from anybit.errors import ModelError
from anybit.federated.state import State, trained_table
from anybit.quant.ranges import StepTable
from anybit.tensors import Tensors

_SLOTS = ("w", "optimizer", "average", "table", "rms")
_LEARNED = "log_step"


@dataclass(frozen=True)
class Checkpoint:
    """The state after `round` rounds, and how long the metrics were then."""

    path: Path
    round: int
    tensors: Mapping[str, Tensor]
    metrics_bytes: int

    def restored(self, state: State, table: StepTable) -> tuple[State, StepTable]:
        """Return what was kept, in the form and order of `state` and `table`: sums must add up in the same order as before.

        The file must have the same names, shapes and types as these.
        """
        wanted = named(state, table)
        for name in {**wanted, **self.tensors}:
            ours, theirs = wanted.get(name), self.tensors.get(name)
            if ours is None or theirs is None or (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
                raise ModelError(f"{self.path} does not fit the model ('{name.partition('/')[2]}' differs): was the model "
                                 "changed?")
        slots = {slot: _rebuilt(part, slot, self.tensors) for slot, part in _slots(state, table).items()}
        w, log_steps = state.trainable.from_names(slots["w"])
        return State(w, log_steps, slots["optimizer"], slots["average"]), StepTable(slots["table"], slots["rms"])

    def weights(self) -> dict[str, Tensor]:
        """Return the server's last weights."""
        return {name: tensor for name, tensor in self._slot("w").items() if not name.partition("/")[2]}

    def average(self) -> dict[str, Tensor]:
        """Return the average of the weights; empty where none is kept."""
        return self._slot("average")

    def table(self, w: Tensors | None = None) -> StepTable:
        """Return the step sizes that belong to the weights (or to w, their average): learned ones, those that follow."""
        learned = {site: tensor for name, tensor in self._slot("w").items() if (site := name.partition("/")[2])}
        return trained_table(StepTable(self._slot("table"), self._slot("rms")), w or self.weights(), learned)

    def _slot(self, slot: str) -> dict[str, Tensor]:
        parts = ((name.partition("/"), tensor) for name, tensor in self.tensors.items())
        return {rest: tensor for (first, _, rest), tensor in parts if first == slot}

    def check(self) -> None:
        """Raise for a tensor that belongs to nothing."""
        for name in self.tensors:
            slot, _, rest = name.partition("/")
            first, below, _ = rest.partition("/")
            if slot not in _SLOTS or (slot == "w" and below and first != _LEARNED):
                raise KeyError(name)


def named(state: State, table: StepTable) -> dict[str, Tensor]:
    """Return all tensors of a training under the names that its checkpoints give them."""
    return {name: leaf for slot, part in _slots(state, table).items() for name, leaf in _leaves(part, slot).items()}


def _slots(state: State, table: StepTable) -> dict[str, Any]:
    parts = (state.trainable.named(), state.optimizer, state.average, dict(table.steps), dict(table.start_rms))
    return dict(zip(_SLOTS, parts, strict=True))


def _branches(tree: Any) -> dict[str, Any]:
    """Return what lies one level below, by name: entries of a dict, fields of a named tuple, places in another."""
    if isinstance(tree, dict):
        return tree
    return tree._asdict() if hasattr(tree, "_asdict") else {str(i): part for i, part in enumerate(tree)}


def _leaves(tree: Any, name: str) -> dict[str, Tensor]:
    """List the tensors of a tree as {name/below/…: tensor}."""
    if isinstance(tree, Tensor):
        return {name: tree}
    return {path: leaf for key, part in _branches(tree).items() for path, leaf in _leaves(part, f"{name}/{key}").items()}


def _rebuilt(tree: Any, name: str, tensors: Mapping[str, Tensor]) -> Any:
    """Build a tree of the same form from its named tensors."""
    if isinstance(tree, Tensor):
        return tensors[name]
    parts = {key: _rebuilt(part, f"{name}/{key}", tensors) for key, part in _branches(tree).items()}
    if isinstance(tree, dict):
        return parts
    return type(tree)(**parts) if hasattr(tree, "_asdict") else type(tree)(parts.values())
