"""A run folder, opened: its task rebuilt, its model loaded, evaluated at any width."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from torch import nn

from anybit.config import OBJECT, Config
from anybit.engines.ranks import own_device
from anybit.errors import AnybitWarning, ModelError, RunError
from anybit.federated.metrics import Meaning, meaning_in
from anybit.federated.variants import StepRule
from anybit.quant.grid import Width
from anybit.quant.modules import Kind
from anybit.quant.ranges import StepTable
from anybit.quant.sites import step_shapes
from anybit.tensors import Tensors, moved
from anybit.training.build import build_task
from anybit.training.evaluation import Evaluator, Score, build_evaluator
from anybit.training.identity import other_parts
from anybit.training.machine import computing, device_like, open_engine
from anybit.training.per_client import per_client
from anybit.training.run_folder import RunFolder
from anybit.training.task import Task


class Run:
    """A run folder, opened."""

    def __init__(self, folder: RunFolder, config: Config, model: nn.Module | None, trusted: Collection[str]) -> None:
        self.folder, self.config, self._model, self._trusted = folder, config, model, trusted

    @classmethod
    def load(cls, path: str | Path, model: nn.Module | None = None, trusted: Collection[str] = ()) -> Self:
        """Open a run. `model` is needed only if the run was trained from a Python object; code outside anybit is
        imported only from `trusted` modules."""
        if not isinstance(path, str | Path):
            raise RunError(f"the path of a run is a {type(path).__name__}: give its folder")
        folder = RunFolder.open(Path(path))
        return cls(folder, folder.stored_config(), model, trusted)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        return self.folder.lines("metrics")

    @property
    def evaluation(self) -> dict[str, Any]:
        """All widths × step rules, as at the end of the run."""
        return self.folder.evaluation()

    @property
    def metric(self) -> Meaning:
        """The metric's name, direction and unit."""
        return meaning_in(self.evaluation)

    def task(self) -> Task:
        """Rebuild the objects that the run's config names, with the split that was saved."""
        check_named(self.folder, self.config)
        return replace(build_task(self.config, self._trusted), split=self.folder.split())

    def model(self) -> nn.Module:
        """Return the trained model, in evaluation mode."""
        model = self._model if self._model is not None else self.task().model
        if self._model is not None and (other := other_parts(self.folder.task() or {}, self._model)):
            warnings.warn(f"{self.folder.path} was trained with another model: {other}; its scores are not this one's",
                          AnybitWarning, stacklevel=2)
        return with_weights(model, self.folder.model()).eval()

    def steps(self, kind: Kind | None = None) -> StepTable:
        """Return the step sizes to quantize the model with, at every bit-width: of every site, or of those of a kind."""
        table = StepTable.from_json(self.folder.steps(), step_shapes(self.model(), self.config.sites, kind))
        return replace(table, sites=self.config.sites)

    def evaluate(self, widths: Sequence[str], steps: StepRule | None = None) -> dict[str, Score]:
        """Return {width: (loss, metric)} on the run's test set; `steps`: the step rule, the training's own unless given."""
        with computing(self.config):
            evaluator, w = self._evaluator()
            table = self.steps().to(evaluator.data.test.device)
            if steps is not None and steps != evaluator.own_steps:
                table = evaluator.finder(w, self._trained_table(evaluator, w)).table(steps)
            return evaluator.score(w, table, [Width.parse(width) for width in widths])

    def per_client(self, width: str) -> np.ndarray:
        """Return the metric of the model at a width, at the run's own steps, on each client's own training examples."""
        with computing(self.config):
            evaluator, w = self._evaluator()
            steps = self.steps().to(evaluator.data.test.device)
            return per_client(evaluator, w, steps, Width.parse(width), self.folder.split())

    def _trained_table(self, evaluator: Evaluator, w: Tensors) -> StepTable:
        newest = self.folder.newest_checkpoint(evaluator.data.test.device)
        if newest is None:
            raise RunError(f"{self.folder.path} has no checkpoint, and only that holds the steps of the training: "
                           f"evaluate it at its own steps ('{evaluator.own_steps}')")
        return newest.table(w)

    def loss_to_own(self, metrics: Mapping[str, float]) -> tuple[str, float] | None:
        """Return (width, how much worse the metric is than at the run's own step sizes), the worst; none: none is."""
        own, better = self.evaluation["grid"][self.evaluation["own"]], self.metric
        lost = {width: better.lost(own[width]["metric"], metric) for width, metric in metrics.items() if width in own}
        worst = max(lost, key=lambda width: lost[width], default=None)
        return (worst, lost[worst]) if worst is not None and lost[worst] > 0 else None

    def mixed(self, on_scores: Callable[[dict[str, Score]], None] = lambda scores: None) -> dict[str, Score]:
        """Return {width: (loss, metric)} of every pair of bits of weights and activations, kept with the run's evaluation.

        on_scores: gets them before they are written, which a disk may refuse.
        """
        with computing(self.config):
            evaluator, w = self._evaluator()
            measured = evaluator.mixed(w, self.steps().to(evaluator.data.test.device))
        scores = {width: Score(**score) for width, score in measured.items()}
        on_scores(scores)
        with self.folder.locked():
            self.folder.save_evaluation({**self.evaluation, "mixed": measured})
        return scores

    def _evaluator(self) -> tuple[Evaluator, Tensors]:
        device = own_device(device_like(self.config.device))
        evaluator = build_evaluator(self.task().to(device), self.config, open_engine(self.config, device, 0))
        return evaluator, moved(self.folder.model(), device)


def check_named(folder: RunFolder, config: Config) -> None:
    """Raise if a run was trained from Python objects, which nobody but their owner can rebuild."""
    if OBJECT in (config.data.name, config.model.name, config.variant.name):
        then = f"continue it with anybit.fit(…, path='{folder.path}', resume=True)"
        if folder.finished:
            then = (f"anybit.fit(…, path='{folder.path}', resume=True) returns it at once, to evaluate and to export, and "
                    "goes on if given more rounds")
        raise RunError(f"{folder.path} was trained from Python objects, which a folder does not hold: {then}")


def with_weights(model: nn.Module, w: Tensors) -> nn.Module:
    """Copy `model` to the CPU, with the parameters `w`."""
    model = copy.deepcopy(model).to("cpu")
    parameters = dict(model.named_parameters())
    for name, value in w.items():
        if name not in parameters or parameters[name].shape != value.shape:
            raise ModelError(f"the trained parameter '{name}' {tuple(value.shape)} does not fit the model: is it the one "
                             "that was trained?")
        parameters[name].data.copy_(value)
    return model
