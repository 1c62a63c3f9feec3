"""Callbacks to watch a training with: loggers to CSV, TensorBoard and Weights & Biases, and early stopping."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from anybit.engines.ranks import world
from anybit.errors import ConfigError, did_you_mean
from anybit.files.writing import writing
from anybit.schema import plain
from anybit.training.course import Callback, Progress, Training


def logged(loss: float, evaluation: Mapping[str, Any] | None) -> dict[str, float]:
    """Return the numbers of a round by name: loss (unless private), and where it was evaluated "W4 loss", "W4 metric", …"""
    scores = evaluation["scores"] if evaluation else {}
    named = {f"{width} {what}": score[what] for width, score in scores.items() for what in ("loss", "metric")}
    return named if math.isnan(loss) else {"loss": loss, **named}


class CsvLogger(Callback):
    """Writes a line per round into a CSV file: round, loss, and the scores of the rounds that were evaluated.

    A run that goes on begins its file anew from what it has logged, so that no round is in it twice.
    """

    def __init__(self, path: str | Path) -> None:
        self.path, self.columns = Path(path), ["round", "loss"]

    def on_begin(self, training: Training) -> None:
        if training.computation.engine.leads:
            widths = training.computation.evaluator.own_widths
            self.columns = ["round", "loss", *(f"{width} {what}" for width in widths for what in ("loss", "metric"))]
            rows = [{"round": entry["round"], **logged(entry.get("loss", math.nan), entry.get("evaluation"))}
                    for entry in training.metrics]
            with writing(self.path, "choose another place for the log"):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._write("w", [dict(zip(self.columns, self.columns, strict=True)), *rows])

    def after_round(self, training: Training, progress: Progress) -> None:
        if training.computation.engine.leads:
            with writing(self.path, "fix the disk, then resume the run"):
                self._write("a", [{"round": progress.round, **logged(progress.loss, progress.evaluation)}])

    def _write(self, mode: str, rows: list[dict[str, Any]]) -> None:
        with open(self.path, mode, newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self.columns, lineterminator="\n").writerows(rows)


class TensorBoardLogger(Callback):
    """Writes the loss, the scores, seconds and bytes of every round as scalars for TensorBoard into a folder."""

    def __init__(self, folder: str | Path) -> None:
        self.folder, self.writer = Path(folder), None
        _imported("tensorboard", "TensorBoardLogger")

    def on_begin(self, training: Training) -> None:
        if training.computation.engine.leads:
            writer = import_module("torch.utils.tensorboard").SummaryWriter
            self.writer = writer(str(self.folder), purge_step=training.round + 1)

    def after_round(self, training: Training, progress: Progress) -> None:
        if self.writer is not None:
            for name, value in {**logged(progress.loss, progress.evaluation), **_costs(progress)}.items():
                self.writer.add_scalar(name.replace(" ", "/"), value, progress.round)

    def on_end(self, training: Training) -> None:
        if self.writer is not None:
            self.writer.close()


class WandbLogger(Callback):
    """Sends the same to Weights & Biases, with the run's config; settings: of `wandb.init`."""

    def __init__(self, project: str, **settings: Any) -> None:
        self.settings, self.run = {"project": project, **settings}, None
        self.wandb = _imported("wandb", "WandbLogger")

    def on_begin(self, training: Training) -> None:
        if training.computation.engine.leads:
            self.run = self.wandb.init(config=plain(training.config), **self.settings)

    def after_round(self, training: Training, progress: Progress) -> None:
        if self.run is not None:
            self.run.log({**logged(progress.loss, progress.evaluation), **_costs(progress)}, step=progress.round)

    def on_end(self, training: Training) -> None:
        if self.run is not None:
            self.run.finish()


class EarlyStopping(Callback):
    """Ends a training, with its final evaluation, when the metric at a width has not improved for `patience` evaluations.

    It looks at the logged evaluations alone, so that a run that goes on ends where it would have ended.
    """

    def __init__(self, width: str, patience: int = 3) -> None:
        if patience < 1:
            raise ConfigError(f"patience = {patience}: must be at least 1")
        self.width, self.patience = width, patience

    def on_begin(self, training: Training) -> None:
        widths = list(map(str, training.computation.evaluator.own_widths))
        if self.width not in widths:
            raise ConfigError(f"EarlyStopping(width='{self.width}') is not evaluated: {did_you_mean(self.width, widths)}")
        if world() > 1:
            raise ConfigError("EarlyStopping works in one process: leave out torchrun, or the callback")
        self._look(training)

    def after_round(self, training: Training, progress: Progress) -> None:
        if progress.evaluation:
            self._look(training)

    def _look(self, training: Training) -> None:
        sign = -1 if getattr(training.computation.task.metric, "better", "higher") == "lower" else 1
        values = [sign * entry["evaluation"]["scores"][self.width]["metric"] for entry in training.metrics
                  if entry.get("evaluation")]
        if values and len(values) - 1 - values.index(max(values)) >= self.patience:
            training.ends_early = True


LOGGERS: Mapping[str, Callable[[str], Callback]] = {
    "csv": CsvLogger, "tensorboard": TensorBoardLogger, "wandb": WandbLogger}


def logger(text: str) -> Callback:
    """Make a logger of 'csv:FILE', 'tensorboard:FOLDER' or 'wandb:PROJECT'."""
    kind, _, target = text.partition(":")
    if kind not in LOGGERS:
        raise ConfigError(f"--log {text}: {did_you_mean(kind, LOGGERS)}")
    if not target:
        raise ConfigError(f"--log {text}: write {kind}:NAME, the file, folder or project to log to")
    return LOGGERS[kind](target)


def _costs(progress: Progress) -> dict[str, float]:
    return {"seconds": progress.seconds, "bytes down": progress.bytes_down, "bytes up": progress.bytes_up}


def _imported(package: str, what: str) -> Any:
    try:
        return import_module(package)
    except ImportError:
        raise ConfigError(f"{what} needs the package '{package}': pip install {package}") from None
