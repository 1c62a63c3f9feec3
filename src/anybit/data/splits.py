"""Splits: the training examples of each client. Deterministic by seed; no example is given twice.

A split takes the labels, the seed and, if it needs them, `coarse` labels and `ids`; its other arguments are the settings
of a recipe's [split] table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from anybit.errors import DataError
from anybit.randomness import generator

Split = list[np.ndarray]

_LEAST = {"clients": 1, "examples": 0, "least": 1, "labels_per_client": 1}


def check_settings(name: str, settings: Mapping[str, Any]) -> None:
    """Raise for settings of anybit's split `name` that are wrong for any data."""
    for key, least in ({"clients": 0} if name == "by_id" else _LEAST).items():
        if settings.get(key, least) < least:
            raise DataError(f"split.{key} = {settings[key]}: must be at least {least}")
    for key in ("alpha", "beta"):
        if not (value := settings.get(key, 1.0)) > 0:
            raise DataError(f"split.{key} = {value}: must be above 0")
        # Beyond these a Dirichlet draw is one class, or the overall distribution, and its logarithms overflow.
        if not 1e-12 <= value <= 1e12:
            raise DataError(f"split.{key} = {value}: must be between 1e-12 and 1e12")


def clients_of(name: str, settings: Mapping[str, Any]) -> int | None:
    """Return how many clients a split has, or None where the data or a user's function decide."""
    return settings["clients"] or None if name in SPLITS else None


def iid(labels: np.ndarray, seed: int, clients: int = 10) -> Split:
    """Shuffle the examples and deal them out evenly."""
    check_settings("iid", {"clients": clients})
    _enough(clients, len(labels))
    return [np.sort(part) for part in np.array_split(generator(seed, "split").permutation(len(labels)), clients)]


def dirichlet(labels: np.ndarray, seed: int, clients: int = 10, alpha: float = 1.0, examples: int = 0) -> Split:
    """Draw equal-sized clients, each with its own label distribution q ~ Dirichlet(α, …, α), after Hsu et al.

    examples: of each client, the rest is left out; 0: as many as there are for all.
    Classes of unequal size share the concentration in proportion: Dirichlet(α·C·p), p the overall distribution of the
    C labels. Hsu et al.'s Dirichlet(α·p) is C times less concentrated: give α/C.
    Examples are dealt without replacement; when a class runs out, a client's q is renormalized over the others.
    """
    check_settings("dirichlet", {"clients": clients, "alpha": alpha, "examples": examples})
    _enough(clients, len(labels))
    draw = generator(seed, "split")
    pools = _Pools(draw, labels)
    concentration = alpha * len(pools.left) * pools.left / len(labels)
    size = _equal_size(len(labels), clients, examples)
    return [pools.deal(_take(draw, _log_dirichlet(draw, concentration), pools.left, size)) for _ in range(clients)]


def dirichlet_free(labels: np.ndarray, seed: int, clients: int = 10, alpha: float = 1.0, least: int = 1) -> Split:
    """Spread every class over the clients by its own q ~ Dirichlet(α, …, α), so that their sizes differ.

    All examples are used. A client below `least` examples gets more from the client that then has most.
    """
    check_settings("dirichlet_free", {"clients": clients, "alpha": alpha, "least": least})
    _enough(clients * least, len(labels), f" of at least {least}")
    _one_each(labels)
    draw = generator(seed, "split")
    owner = np.empty(len(labels), np.int64)
    for c in np.unique(labels):
        members = draw.permutation(np.flatnonzero(labels == c))
        q = np.exp(_log_dirichlet(draw, np.full(clients, alpha)))
        owner[members] = np.repeat(np.arange(clients), draw.multinomial(len(members), q / q.sum()))
    split = _by_owner(owner, clients)
    size = np.array([len(part) for part in split])
    for poor in np.flatnonzero(size < least):
        while size[poor] < least:
            rich = int(size.argmax())
            number = min(least - size[poor], max(1, (size[rich] - least) // 2))
            given = draw.choice(len(split[rich]), number, replace=False)
            split[poor] = np.sort(np.concatenate([split[poor], split[rich][given]]))
            split[rich] = np.delete(split[rich], given)
            size[poor], size[rich] = len(split[poor]), len(split[rich])
    return split


def pachinko(labels: np.ndarray, seed: int, coarse: np.ndarray | None = None, clients: int = 500, alpha: float = 0.1,
             beta: float = 10.0, examples: int = 0) -> Split:
    """Draw equal-sized clients with related labels: Reddi et al. (2020), appendix F.

    examples: of each client, the rest is left out; 0: as many as there are for all.
    Every client draws θ ~ Dirichlet(α) over the coarse labels and, below each, θ_c ~ Dirichlet(β) over its fine labels;
    an example's fine label is drawn down this tree. Labels that run out leave the tree, and θ is renormalized.
    """
    check_settings("pachinko", {"clients": clients, "alpha": alpha, "beta": beta, "examples": examples})
    _enough(clients, len(labels))
    if coarse is None:
        raise DataError("split 'pachinko' needs coarse labels, and the data set has none: use cifar100, or name its "
                        "coarse column when preparing it")
    draw = generator(seed, "split")
    pools = _Pools(draw, labels)
    tree = _children(labels, coarse, pools.classes)
    real, size, split = tree >= 0, _equal_size(len(labels), clients, examples), []
    for _ in range(clients):
        theta = _log_dirichlet(draw, np.full(len(tree), alpha))
        below = _log_dirichlet(draw, np.full(tree.shape, beta))
        left = np.where(real, pools.left[tree], 0)
        taken = _take(draw, below, left, _take(draw, theta, left.sum(1), size))
        counts = np.zeros_like(pools.left)
        counts[tree[real]] = taken[real]
        split.append(pools.deal(counts))
    return split


def by_id(labels: np.ndarray, seed: int, ids: np.ndarray | None = None, clients: int = 0, least: int = 1) -> Split:
    """Make one client of each id, e.g. of each writer, that has at least `least` examples.

    clients: only so many, with most examples; 0: all. Nothing is random here: the seed changes nothing.
    """
    check_settings("by_id", {"clients": clients})
    if ids is None:
        raise DataError("split 'by_id' needs the owner of each example, and the data set has no ids: use femnist, "
                        "or name its id column when preparing it")
    _, owner, size = np.unique(ids, return_inverse=True, return_counts=True)
    chosen = np.flatnonzero(size >= max(least, 1))
    if clients > len(chosen) or not len(chosen):
        raise DataError(f"split.clients = {clients}: the data set has {len(chosen)} ids with at least {least} examples")
    if clients:
        chosen = np.sort(chosen[np.argsort(-size[chosen], kind="stable")[:clients]])
    by_owner = _by_owner(owner, len(size))
    return [by_owner[i] for i in chosen]


def shards(labels: np.ndarray, seed: int, clients: int = 100, labels_per_client: int = 2) -> Split:
    """Give every client exactly k labels: McMahan et al. (2017), without shards that straddle two labels.

    clients·k shards are shared out over the classes in proportion to their size, each class is cut evenly into its
    shards, and classes are dealt one by one to the clients that still miss most, ties by lot. All examples are used unless
    there are fewer shards than classes; equal classes that divide clients·k give equal clients.
    """
    check_settings("shards", {"clients": clients, "labels_per_client": labels_per_client})
    _enough(clients, len(labels))
    draw = generator(seed, "split")
    pools = _Pools(draw, labels)
    k, classes = labels_per_client, len(pools.classes)
    if k > classes:
        raise DataError(f"split.labels_per_client = {k}: must be between 1 and the {classes} classes")
    number = _shards_of(pools.left, clients, k)
    missing, parts = np.full(clients, k), [list[np.ndarray]() for _ in range(clients)]
    for c in draw.permutation(classes):
        takers = np.lexsort((draw.random(clients), -missing))[:number[c]]
        missing[takers] -= 1
        for client, shard in zip(takers, np.array_split(pools.members[c], max(number[c], 1)), strict=False):
            parts[client].append(shard)
    return [np.sort(np.concatenate(p)) for p in parts]


SPLITS: Mapping[str, Callable[..., Split]] = {
    split.__name__: split for split in (iid, dirichlet, dirichlet_free, pachinko, by_id, shards)}


class _Pools:
    """Shuffled examples of every class, dealt from the end."""

    def __init__(self, draw: np.random.Generator, labels: np.ndarray) -> None:
        _one_each(labels)
        self.classes, target = np.unique(labels, return_inverse=True)
        self.members = [draw.permutation(part) for part in _by_owner(target, len(self.classes))]
        self.left = np.array([len(part) for part in self.members])

    def deal(self, counts: np.ndarray) -> np.ndarray:
        """Deal counts[c] examples of every class c."""
        taken = [self.members[c][self.left[c] - counts[c]:self.left[c]] for c in np.flatnonzero(counts)]
        self.left = self.left - counts
        return np.sort(np.concatenate(taken))


def _log_dirichlet(draw: np.random.Generator, concentration: np.ndarray) -> np.ndarray:
    """Draw q ~ Dirichlet(concentration) over the last axis; return log q up to a constant.

    Gamma(a) is Gamma(a + 1)·U^(1/a): in logarithms a small a does not underflow, so that q can still be renormalized
    over what is left after its largest entries are used up.
    """
    gamma, uniform = draw.standard_gamma(concentration + 1), 1 - draw.random(concentration.shape)
    log_q: np.ndarray = np.log(gamma) + np.log(uniform) / concentration
    log_q -= log_q.max(-1, keepdims=True)
    return log_q


def _take(draw: np.random.Generator, log_q: np.ndarray, left: np.ndarray, size: np.integer | np.ndarray) -> np.ndarray:
    """Draw counts per class (last axis): multinomial by q, capped by `left`, the excess drawn again from other classes."""
    counts = np.zeros_like(left)
    while (missing := size - counts.sum(-1)).any():
        open_q = np.where(counts < left, log_q, -np.inf)
        best = open_q.max(-1, keepdims=True)
        weights = np.exp(open_q - np.where(np.isfinite(best), best, 0))
        total = weights.sum(-1, keepdims=True)
        counts = np.minimum(counts + draw.multinomial(missing, weights / np.where(total > 0, total, 1)), left)
    return counts


def _by_owner(owner: np.ndarray, owners: int) -> Split:
    """List the positions of each owner, ascending."""
    order = np.argsort(owner, kind="stable")
    return np.split(order, np.cumsum(np.bincount(owner, minlength=owners))[:-1])


def _children(labels: np.ndarray, coarse: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return one row per coarse label: its fine labels as positions in `classes`, then −1."""
    parents, parent = np.unique(coarse, return_inverse=True)
    pairs = np.stack(np.divmod(np.unique(parent * len(classes) + np.searchsorted(classes, labels)), len(classes)))
    if len(np.unique(pairs[1])) != pairs.shape[1]:
        twice = int(classes[np.bincount(pairs[1]).argmax()])
        raise DataError(f"split 'pachinko': fine label {twice} lies under more than one coarse label")
    rows = _by_owner(pairs[0], len(parents))
    tree = np.full((len(rows), max(map(len, rows))), -1)
    for row, fine in zip(tree, rows, strict=True):
        row[:len(fine)] = pairs[1][fine]
    return tree


def _shards_of(size: np.ndarray, clients: int, k: int) -> np.ndarray:
    """Share clients·k shards over the classes in proportion to their size: at least one each if there are enough, and at
    most one per client and per example."""
    most = np.minimum(size, clients)
    if most.sum() < clients * k:
        raise DataError(f"split 'shards': {clients} clients with {k} labels each need {clients * k} shards, but the "
                        f"{len(size)} classes can give {int(most.sum())}: use fewer clients or fewer labels")
    number = np.full_like(size, clients * k >= len(size))
    while (missing := clients * k - int(number.sum())) > 0:
        room = number < most
        share = np.where(room, size, 0) / size[room].sum() * missing
        grown = np.minimum(number + np.floor(share).astype(size.dtype), most)
        if (grown == number).all():
            ahead = np.argsort(np.where(room, -share, 1.0), kind="stable")[:min(missing, int(room.sum()))]
            grown[ahead] += 1
        number = grown
    return number


def _equal_size(examples: int, clients: int, wanted: int) -> np.int64:
    """Return the examples of each of so many clients: as many as are wanted, or as there are for all."""
    most = examples // clients
    if wanted > most:
        raise DataError(f"split.examples = {wanted}: at most {most}, there are no more for each of {clients} clients")
    return np.int64(wanted or most)


def _enough(clients: int, examples: int, of: str = "") -> None:
    if clients > examples:
        raise DataError(f"split.clients = {clients}{of}: must be between 1 and the {examples} training examples")


def _one_each(labels: np.ndarray) -> None:
    if labels.ndim != 1:
        raise DataError(f"this split deals by one label per example, and the targets have shape {labels.shape}: use split "
                        "'iid', or 'by_id' where there are ids")
