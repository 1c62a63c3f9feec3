"""Accounting of privacy: from noise, cohort and rounds to (ε, δ), by Google's dp-accounting (Rényi divergences).

Two data sets are neighbours if one has a client that the other has not (Poisson), or another client in its place (uniform,
and local noise). One client changes a sum of clipped deltas by C at most in the first case, by 2·C in the second, where its
delta may turn around: there the same noise counts half.
"""

from __future__ import annotations

import functools
import importlib.metadata
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from anybit.errors import ConfigError, MissingExtra
from anybit.federated.privacy import PrivacyOptions

ORDERS = (*(2 + k / 4 for k in range(32)), *range(10, 64), 128, 256, 512, 1024)
"""Orders of Rényi divergences of sampled rounds; below 2 the library's series do not converge for large shares."""

Neighbours = Literal["add or remove a client", "replace a client"]


@dataclass(frozen=True)
class Mechanism:
    """One round, for the accountant."""

    noise: float
    """Standard deviation of the noise on the sum of deltas, in units of the most that one client can change it."""
    neighbours: Neighbours
    cohort: int
    clients: int | None = None
    """Clients among which a cohort is drawn in secret; none: that draw is not counted on."""

    def epsilon(self, rounds: int, delta: float) -> float:
        """Return ε after so many rounds."""
        return _epsilon(self, rounds, delta) if rounds else 0.0


@dataclass(frozen=True)
class Accountant:
    """The promise of a training: to whoever sees its models, and for local noise also to the server."""

    options: PrivacyOptions
    delta: float
    model: Mechanism
    server: Mechanism | None = None
    """What the server sees of a client in one answer; none: the server is trusted, and sees everything."""

    def epsilon(self, rounds: int) -> float:
        """Return ε of all models up to this round together."""
        return self.model.epsilon(rounds, self.delta)

    def statement(self, rounds: int) -> dict[str, Any]:
        """Return the promise as a run keeps it: (ε, δ), between which data sets, what it rests on. No ε: beyond numbers."""
        o, seen = self.options, {}
        if self.server:
            # Who answers is known to the server: a client may have answered in every round.
            seen = {"epsilon_server": finite(self.server.epsilon(rounds, self.delta))}
        return {"epsilon": finite(self.epsilon(rounds)), **seen, "delta": self.delta, "rounds": rounds,
                "neighbours": self.model.neighbours, "where": o.where, "sampling": o.sampling, "clip": o.clip,
                "noise": o.noise, "cohort": self.model.cohort, "clients": self.model.clients, "secret": bool(o.secret),
                "accountant": f"dp-accounting {importlib.metadata.version('dp-accounting')}, RDP"}


def accountant(options: PrivacyOptions, places: int, clients: int | None, noises: int | None = None) -> Accountant:
    """Make the accountant of a training with cohorts of `places` among `clients`; none: their draw is not counted on.

    noises: the fewest clients that bring local noise in a round; none: all of a cohort.
    """
    assert options.noise is not None
    population = options.clients or clients
    if clients is not None and population != clients:
        raise ConfigError(f"privacy.clients = {options.clients}: is for fleets; the split has {clients} clients, leave it "
                          "out")
    if population is None and options.delta is None:
        raise ConfigError("privacy.delta: nobody knows how many devices there are; set it, far below 1/devices, or set "
                          "privacy.clients")
    if population is not None and places > population:
        raise ConfigError(f"cohort = {places}, but privacy.clients = {population}")
    delta = options.delta or default_delta(population or 1)
    if population is not None and delta >= 1 / population:
        raise ConfigError(f"privacy.delta = {delta}: must be below 1/clients = {1 / population:.2g}, where publishing "
                          "all of one client would pass")
    if options.sampling == "poisson":
        if population is None:
            raise ConfigError("privacy.sampling = poisson: set privacy.clients, the devices of which q = cohort/clients is "
                              "asked in a round")
        made = Accountant(options, delta, Mechanism(options.noise, "add or remove a client", places, population))
    elif options.where == "central":
        made = Accountant(options, delta, Mechanism(options.noise / 2, "replace a client", places, clients))
    else:
        many = options.noise * math.sqrt(noises or places) / 2
        made = Accountant(options, delta, Mechanism(many, "replace a client", places, clients),
                          Mechanism(options.noise / 2, "replace a client", 1))
    _library()
    return made


def default_delta(clients: int) -> float:
    """Return δ = clients^-1.1, to two digits: below 1/clients, which would let one client's data out."""
    return float(f"{max(clients, 2) ** -1.1:.1e}")


def finite(epsilon: float) -> float | None:
    """Return ε as files hold it; none beyond all numbers."""
    return epsilon if math.isfinite(epsilon) else None


def _library() -> Any:
    try:
        import dp_accounting
        import dp_accounting.rdp
    except ImportError:
        raise MissingExtra("dp-accounting", "privacy", "ε of privacy.noise") from None
    return dp_accounting


@functools.lru_cache(maxsize=4096)
def _epsilon(mechanism: Mechanism, rounds: int, delta: float) -> float:
    """Return the smaller of ε with and without a secret draw: both hold, and its bound is loose for little noise."""
    dp, clients = _library(), mechanism.clients
    replaced = mechanism.neighbours == "replace a client"
    relation = dp.NeighboringRelation.REPLACE_ONE if replaced else dp.NeighboringRelation.ADD_OR_REMOVE_ONE

    def composed(event: Any, orders: Sequence[float] | None = None) -> float:
        books = dp.rdp.RdpAccountant(orders, relation)
        books.compose(event, rounds)
        return float(books.get_epsilon(delta))

    noise = dp.GaussianDpEvent(mechanism.noise)
    if clients is None or mechanism.cohort >= clients:
        return composed(noise)
    sampled = dp.SampledWithoutReplacementDpEvent(clients, mechanism.cohort, noise) if replaced else \
        dp.PoissonSampledDpEvent(mechanism.cohort / clients, noise)
    return min(composed(sampled, ORDERS), composed(noise))
