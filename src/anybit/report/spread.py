"""The spread of labels and sizes over the clients, as numbers and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anybit.errors import DataError, MissingExtra
from anybit.federated.client import ClientOptions
from anybit.federated.cohort import build_cohort, sample_clients
from anybit.quant.grid import FLOAT, Width

MOST_CLIENTS = 100
"""The most columns that can be told apart in the picture; clients in between are left out."""
_ROUNDS = 20


@dataclass(frozen=True)
class Spread:
    """The labels per (client, class), of which an example may have several, and the examples of each client."""

    counts: np.ndarray
    class_names: tuple[str, ...]
    sizes: np.ndarray

    @property
    def shares(self) -> np.ndarray:
        """The share of every label among a client's."""
        return np.asarray(self.counts / self.counts.sum(1, keepdims=True))

    def numbers(self) -> dict[str, float]:
        """Summarize the spread; effective labels: exp of the entropy of a client's labels."""
        share = self.shares
        entropy = -(share * np.log(np.where(share > 0, share, 1))).sum(1)
        return {"clients": len(self.sizes), "examples": int(self.sizes.sum()),
                "smallest": int(self.sizes.min()), "median": float(np.median(self.sizes)),
                "mean": float(self.sizes.mean()), "largest": int(self.sizes.max()),
                "labels": float((self.counts > 0).sum(1).mean()), "effective_labels": float(np.exp(entropy).mean())}


def spread(labels: np.ndarray, split: Sequence[np.ndarray], class_names: tuple[str, ...] = ()) -> Spread:
    """Count every client's labels."""
    classes = max(int(labels.max()) + 1, len(class_names))
    counts = np.stack([np.bincount(labels[index].reshape(-1), minlength=classes) for index in split])
    return Spread(counts, class_names or tuple(map(str, range(classes))), np.array([len(index) for index in split]))


def padding(split: Sequence[np.ndarray], cohort: int, options: ClientOptions, seed: int) -> dict[str, float]:
    """Compute the share of padding among the samples of stacked clients, over the first rounds of a run.

    padded_to_largest: the share if every client were padded to the largest of its cohort.
    """
    shares = []
    for round in range(_ROUNDS):
        clients = sample_clients(seed, round, len(split), cohort)
        built = build_cohort(seed, round, clients, [Width(FLOAT, FLOAT)] * cohort, split, options)
        shares.append((built.padding_share(), built.padding_share(segmented=False)))
    mean = np.mean(shares, 0)
    return {"padding": float(mean[0]), "padded_to_largest": float(mean[1])}


def draw(found: Spread, path: Path, heading: str) -> None:
    """Draw a heat map of labels over clients beside a histogram of their sizes."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "report", "drawing a picture") from None
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    figure.suptitle(heading)
    labels, sizes = figure.subplots(1, 2, width_ratios=[1.7, 1])
    _heat_map(figure, labels, found)
    smallest, largest = int(found.sizes.min()), int(found.sizes.max())
    sizes.hist(found.sizes, bins=30, range=(0, largest), color="#4472a8")
    title = f"{smallest} to {largest} examples" if smallest < largest else f"every client has {largest} examples"
    sizes.set(xlabel="examples of a client", ylabel="clients", title=title)
    try:
        figure.savefig(path, dpi=110)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be written ({error}): name a .png or .svg file in a folder that exists") from None


def _heat_map(figure: Any, axes: Any, spread: Spread) -> None:
    from matplotlib.colors import PowerNorm

    clients, classes = spread.counts.shape
    shown = np.linspace(0, clients - 1, min(clients, MOST_CLIENTS)).round().astype(int)
    image = axes.imshow(spread.shares[shown].T, aspect="auto", interpolation="nearest", cmap="viridis",
                        norm=PowerNorm(0.5, vmin=0))
    omission = "" if len(shown) == clients else f" ({len(shown)} of {clients})"
    axes.set(xlabel=f"client{omission}", title="share of each label among a client's")
    ticks = np.unique(np.linspace(0, classes - 1, min(classes, 31)).round().astype(int))
    axes.set_yticks(ticks, [spread.class_names[i] for i in ticks], fontsize=8 if classes <= 20 else 6)
    places = np.unique(np.linspace(0, len(shown) - 1, 6).round().astype(int))
    axes.set_xticks(places, shown[places])
    figure.colorbar(image, ax=axes, pad=0.01)
