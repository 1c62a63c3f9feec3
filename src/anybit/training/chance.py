"""A training that ended at chance: its loss stayed finite, and nothing else says that nothing was learned."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping

import torch

from anybit.data.examples import IGNORED
from anybit.errors import AnybitWarning
from anybit.federated.metrics import accuracy
from anybit.training.course import Training

ROUNDS = 20
"""Fewer are a trial, of which nobody expects a model."""


def warn_of_chance(training: Training, scores: Mapping[str, Mapping[str, float]]) -> None:
    """Warn if no width answers better than the most frequent class of the test set, and name the usual causes.

    Guesses scatter: a share p of N examples by √(p(1 − p)/N), of which two do not count as better.
    """
    task = training.computation.task
    labels = task.data.test.y
    _, counts = torch.unique(labels[labels != IGNORED], return_counts=True)
    if training.round < ROUNDS or task.metric is not accuracy or len(counts) < 2:
        return
    share = float(counts.max() / counts.sum())
    width = max(scores, key=lambda width: scores[width]["metric"])
    loss, best = scores[width]["loss"], scores[width]["metric"]
    if best > 100 * (share + 2 * math.sqrt(share * (1 - share) / len(labels))):
        return
    where = f"{training.folder.path}: " if training.folder else ""
    warnings.warn(f"{where}after {training.round} rounds the accuracy is at best {best:.2f} ({width}, loss {loss:.3g}), and "
                  f"the most frequent class alone gives {100 * share:.2f}: {_causes(training, loss, math.log(len(counts)))}",
                  AnybitWarning, stacklevel=2)


def _causes(training: Training, loss: float, guess: float) -> str:
    """Name what usually is behind it; guess: the loss ln C of one who knows nothing of C classes."""
    config, on_clients = training.config, training.metrics[-1].get("loss") if training.metrics else None
    if on_clients is not None and on_clients < guess / 2:
        return (f"the clients' own loss is {on_clients:.3g}, so look at the test set (are its inputs scaled and its labels "
                "numbered as theirs?), or give more examples")
    rates = "too high" if loss > 1.1 * guess else "too high or too low"
    private = ", privacy.noise" if config.privacy.private else ""
    abrupt = config.server.adaptive and not config.server.warmup
    rises = " from the first round on; server.warmup=10 lets it rise" if abrupt else ""
    return (f"nothing is learned; the usual causes are client.lr (now {config.client.lr}) or server.lr (now "
            f"{config.server.rate(config.rounds)}{rises}) {rates}{private}, inputs that are not scaled, and labels in "
            "another order than the inputs")
