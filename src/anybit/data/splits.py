"""Splits: which client holds which examples. Deterministic by seed."""

from __future__ import annotations

import numpy as np

from anybit.errors import DataError
from anybit.randomness import generator

Split = list[np.ndarray]


def iid(labels: np.ndarray, seed: int, clients: int = 10) -> Split:
    """Shuffled and dealt out evenly."""
    _enough(clients, len(labels))
    return [np.sort(part) for part in np.array_split(generator(seed, "split").permutation(len(labels)), clients)]


def dirichlet(labels: np.ndarray, seed: int, clients: int = 10, alpha: float = 1.0) -> Split:
    """Hsu et al.: equal-sized clients, each with its own label distribution q ~ Dirichlet(α·p), p the overall one.

    Examples are dealt without replacement; when a class runs out, a client's q is renormalized over the others.
    """
    _enough(clients, len(labels))
    if not alpha > 0:
        raise DataError(f"split.alpha = {alpha}: must be above 0")
    draw = generator(seed, "split")
    classes, target = np.unique(labels, return_inverse=True)
    pools = [draw.permutation(np.flatnonzero(target == c)) for c in range(len(classes))]
    prior = np.bincount(target) / len(labels)
    left = np.array([len(pool) for pool in pools])
    size, split = len(labels) // clients, []
    for _ in range(clients):
        counts = _take(draw, draw.dirichlet(alpha * prior), left, size)
        taken = [pools[c][left[c] - n:left[c]] for c, n in enumerate(counts)]
        left -= counts
        split.append(np.sort(np.concatenate(taken)))
    return split


def _take(draw: np.random.Generator, q: np.ndarray, left: np.ndarray, size: int) -> np.ndarray:
    """Counts per class: multinomial by q, capped by what is left, the rest drawn again from the classes that remain."""
    counts = np.zeros_like(left)
    while (missing := size - int(counts.sum())) > 0:
        open_classes = counts < left
        weights = np.where(open_classes, np.maximum(q, 1e-12), 0)
        counts = np.minimum(counts + draw.multinomial(missing, weights / weights.sum()), left)
    return counts


def _enough(clients: int, examples: int) -> None:
    if not 1 <= clients <= examples:
        raise DataError(f"split.clients = {clients}: must be between 1 and the {examples} training examples")
