"""Client-level differential privacy: clipped deltas, Gaussian noise, secret cohorts (McMahan et al., ICLR 2018).

Δ_t = 1/m·(Σ_i δ_i·min(1, C/‖δ_i‖) + N(0, (z·C)²)), with m the expected cohort, whoever took part. What one client can change
is at most C/m, so the noise hides it; everything that is made of Δ_t afterwards is as private as Δ_t.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from anybit.errors import ConfigError, at_least, positive
from anybit.federated.algorithm import Combine, mean_delta
from anybit.federated.cohort import sample_clients
from anybit.federated.state import Trainable
from anybit.federated.variants import Variant
from anybit.randomness import generator
from anybit.schema import check_types
from anybit.tensors import Part, Tree, picked


@dataclass(frozen=True)
class PrivacyOptions:
    """Differential privacy of clients. Without `clip` and `noise` nothing is clipped, hidden or promised."""

    clip: float | None = None
    """C: longest delta of a client, weights and learned step sizes together; longer ones are clipped to it."""
    noise: float | None = None
    """z: standard deviation of the noise in units of `clip`, on the sum of a cohort (central) or on every delta (local)."""
    where: Literal["central", "local"] = "central"
    """Where noise is added: by the server, which sees the deltas, or by every client before it sends its own."""
    sampling: Literal["uniform", "poisson"] = "uniform"
    """How a cohort is drawn: a fixed number without replacement, or each client independently with q = cohort/clients."""
    delta: float | None = None
    """δ of (ε, δ); none: clients^-1.1. It must be below 1/clients, at which publishing one client's data would pass."""
    clients: int | None = None
    """Number of clients from which cohorts are drawn, if devices come and go; none: those of the split."""
    secret: bool | None = None
    """Draw noise and cohorts from the system's entropy instead of the seed, which anyone with the config knows; none: true
    on a fleet, false in a simulation, which stays repeatable but hides nothing from those who know the seed."""

    def __post_init__(self) -> None:
        check_types(self)
        positive(clip=self.clip, noise=self.noise, delta=self.delta)
        at_least(1, clients=self.clients)
        if self.noise is not None and self.clip is None:
            raise ConfigError(f"noise = {self.noise}: is in units of clip; set privacy.clip, e.g. to 0.5")
        if self.delta is not None and self.delta >= 1:
            raise ConfigError(f"delta = {self.delta}: must be below 1, and far below 1/clients")
        if self.noise is None and (self.where, self.sampling) != ("central", "uniform"):
            raise ConfigError(f"where = {self.where}, sampling = {self.sampling}: without privacy.noise nothing is private")
        if self.where == "local" and self.sampling == "poisson":
            raise ConfigError("where = local: needs sampling = uniform, where every client brings part of the noise")

    @property
    def private(self) -> bool:
        """Whether anything is promised; a clip alone promises nothing."""
        return self.noise is not None

    def deviation(self, places: int) -> float:
        """Return the standard deviation of the noise: z·C/m on the mean of a cohort (central), z·C on a delta (local)."""
        return 0.0 if self.noise is None or self.clip is None else \
            self.noise * self.clip / (places if self.where == "central" else 1)


def clipped_deltas(deltas: Tree, clip: float) -> Tree:
    """Return δ·min(1, C/‖δ‖) of every client, the first dimension; ‖δ‖ over all tensors; 0 if it is not finite."""
    leaves = pytree.tree_leaves(deltas)
    norm = torch.stack([leaf.double().flatten(1).square().sum(1) for leaf in leaves]).sum(0).sqrt()
    factor, finite = clip / norm.clamp_min(clip), torch.isfinite(norm)

    def cut(leaf: Tensor) -> Tensor:
        shape = (-1, *[1] * (leaf.dim() - 1))
        return torch.where(finite.reshape(shape), leaf * factor.to(leaf.dtype).reshape(shape), 0.0)
    return pytree.tree_map(cut, deltas)  # type: ignore[no-any-return]


def private_combiner(options: PrivacyOptions, like: Trainable, noise: Trainable, together: Any = None,
                     sent: bool = False) -> Combine:
    """Return the mean of clipped deltas and the noise: a sum over the cohort, times a weighting that is 1/m for everybody.

    Learned step sizes are clipped with the weights and divided by m too: how many trained at a width is nobody's business.
    like: the form of a delta · noise: of the mean (central), or of each delta (local) · together: as in `mean_delta` · sent:
    with local noise, deltas come from devices that have clipped and hidden them themselves.
    """
    assert options.clip is not None
    local, clip = options.where == "local", options.clip

    def treated(parts: Iterable[Part]) -> Iterable[Part]:
        for clients, deltas, losses in parts:
            cut = deltas if local and sent else clipped_deltas(deltas, clip)
            if local and not sent:
                cut = pytree.tree_map(torch.add, cut, picked(noise, clients))
            yield clients, Trainable(cut.named()), losses

    def combine(parts: Iterable[Part], width_bits: Tensor, weighting: Tensor) -> tuple[Trainable, Tensor]:
        if len(width_bits):
            total, losses = mean_delta(treated(parts), width_bits, weighting, together)
            delta = like.from_names(total.w)
        else:  # a Poisson cohort of nobody: noise alone
            delta, losses = pytree.tree_map(torch.zeros_like, like), torch.zeros(0, 1)
        return (delta if local or not noise.w else pytree.tree_map(torch.add, delta, noise)), losses
    return combine


def drawn_noise(options: PrivacyOptions, like: Trainable, seed: int, round: int, clients: Sequence[int],
                places: int) -> Trainable:
    """Draw the noise of a round on the host, in the form of a delta (local: with the client first); empty without noise."""
    if not options.private:
        return Trainable({})
    deviation = options.deviation(places)
    if options.where == "central":
        return _normal(_draw(options, seed, "privacy central", round), like, deviation)
    each = [client_noise(options, like, seed, round, client) for client in clients]
    return pytree.tree_map(lambda *leaves: torch.stack(leaves), *each)  # type: ignore[no-any-return]


def client_noise(options: PrivacyOptions, like: Trainable, seed: int, round: int, client: int) -> Trainable:
    """Draw the noise that a client adds to its own delta."""
    return _normal(_draw(options, seed, "privacy local", round, client), like, options.deviation(1))


class SystemDraws:
    """Draws from the system's entropy, every bit of them: no state, nothing to repeat or to guess."""

    def random(self, count: int) -> np.ndarray:
        """Draw U[0, 1) in 53 bits."""
        return (np.frombuffer(os.urandom(8 * count), np.uint64) >> np.uint64(11)) * 2.0**-53

    def standard_normal(self, shape: tuple[int, ...]) -> np.ndarray:
        """Draw N(0, 1): √(−2·ln(1 − u))·cos(2πv) (Box and Muller)."""
        u, v = self.random(2 * math.prod(shape)).reshape(2, *shape)
        return np.asarray(np.sqrt(-2 * np.log1p(-u)) * np.cos(2 * np.pi * v))


def _draw(options: PrivacyOptions, seed: int, purpose: str, round: int,
          client: int = 0) -> SystemDraws | np.random.Generator:
    return SystemDraws() if options.secret else generator(seed, purpose, round, client)


def _normal(draw: SystemDraws | np.random.Generator, like: Trainable, deviation: float) -> Trainable:
    def normal(leaf: Tensor) -> Tensor:
        return torch.from_numpy(deviation * draw.standard_normal(tuple(leaf.shape))).to(leaf.dtype)
    return pytree.tree_map(normal, like)  # type: ignore[no-any-return]


def drawn_clients(options: PrivacyOptions, seed: int, round: int, clients: int, size: int,
                  population: int | None = None) -> tuple[int, ...]:
    """Draw S_t among `clients`: `size` of them, or (Poisson) each with q = size/population, `clients` unless given."""
    if options.sampling == "poisson":
        chance = _draw(options, seed, "poisson", round).random(clients)
        return tuple(int(i) for i in np.flatnonzero(chance < size / (population or clients)))
    if options.secret:
        return tuple(int(i) for i in np.argsort(SystemDraws().random(clients))[:size])
    return sample_clients(seed, round, clients, size)


def check_widths(variant: Variant, options: PrivacyOptions, seed: int, clients: int) -> None:
    """Raise if a client's width depends on who else is in the cohort: then one client changes more than its own delta."""
    some = range(min(clients, 16))
    for round in range(4 if options.private else 0):
        if variant.widths_of(seed, round, some) != [variant.widths_of(seed, round, [client])[0] for client in some]:
            raise ConfigError(f"privacy.noise: variant '{variant.name}' deals widths out to a cohort, so that one client "
                              "changes the deltas of others; for carousel use variant.widths=steps or clients")


def fixed_weighting(clients: int, places: int) -> Tensor:
    """Return 1/m for every client of a cohort, however many there are: the size of a cohort is not to be told."""
    return torch.full((clients,), 1 / places)
