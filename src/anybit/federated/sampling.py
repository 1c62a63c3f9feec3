"""Sampling of the clients of a round: uniform, or by the widths that they have (stratified, weighted)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from anybit.errors import ConfigError
from anybit.federated.cohort import sample_clients
from anybit.federated.own import check_name, not_at_hand
from anybit.quant.grid import Width
from anybit.randomness import generator
from anybit.schema import check_types

POLICIES = ("uniform", "stratified", "weighted")


@dataclass(frozen=True)
class SamplingOptions:
    """Policy that draws the cohort S_t. Uniform is the paper's; the others depend on each client's width in the round."""

    policy: str = "uniform"
    """stratified: all widths equally often · weighted: in proportion to `weights` · 'module:function': your own
    sampler, (seed, rounds before, clients, size) → client numbers."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """{width: weight} of the weighted policy, e.g. {W2 = 3}; other widths have weight 1."""

    def __post_init__(self) -> None:
        check_types(self)
        check_name("policy", self.policy, POLICIES)
        for width, weight in self.weights.items():
            Width.parse(width)
            if not isinstance(weight, int | float) or not 0 <= weight < math.inf:
                raise ConfigError(f"weights.{width} = {weight!r}: must be a number, 0 or above")
        if bool(self.weights) != (self.policy == "weighted"):
            raise ConfigError(f"weights = {dict(self.weights)}: policy 'weighted' needs weights by width, others take none")


def check_cohort(size: int, clients: int) -> None:
    """Raise if a cohort, which is drawn without replacement, has more places than there are clients."""
    if size > clients:
        raise ConfigError(f"cohort = {size}, but there are only {clients} clients")


def sample_cohort(options: SamplingOptions, seed: int, round: int, clients: int, size: int,
                  widths_of: Callable[[Sequence[int]], Sequence[Width]]) -> tuple[int, ...]:
    """Draw S_t by the policy: `size` of the clients without replacement; widths_of: positions → widths in the round."""
    if options.policy == "uniform":
        return sample_clients(seed, round, clients, size)
    widths, draw = widths_of(range(clients)), generator(seed, "cohort", round)
    if options.policy not in POLICIES:
        raise not_at_hand("sampling.policy", options.policy)
    if options.policy == "stratified":
        return _stratified(widths, size, draw)
    share = shares(options, widths)
    if (eligible := np.count_nonzero(share)) < size:
        raise ConfigError(f"sampling.weights: only {eligible} clients have a weight above 0, but cohort = {size}")
    return tuple(int(i) for i in draw.choice(clients, size, replace=False, p=share / share.sum()))


def shares(options: SamplingOptions, widths: Sequence[Width]) -> np.ndarray:
    """Return the weight of every client; 1 unless the policy is weighted."""
    weights = {Width.parse(name): weight for name, weight in options.weights.items()}
    return np.array([weights.get(width, 1.0) for width in widths])


def _stratified(widths: Sequence[Width], size: int, draw: np.random.Generator) -> tuple[int, ...]:
    """Give the places of the cohort to the widths in turn, skipping widths without clients left."""
    order = draw.permutation(len(widths))
    waiting = {width: [int(i) for i in order if widths[i] == width] for width in sorted(set(widths))}
    chosen: list[int] = []
    while len(chosen) < size:
        turn = [width for width in waiting if waiting[width]]
        for i in draw.permutation(len(turn))[:size - len(chosen)]:
            chosen.append(waiting[turn[int(i)]].pop())
    return tuple(chosen)
