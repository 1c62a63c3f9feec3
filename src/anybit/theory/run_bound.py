"""Theorem 3.1 for a finished run: its constants read or estimated, its bound, and what that means for the run.

D·R² is taken over the weights that are quantized: the others carry no noise. Sites have different steps, so the sum
Σ_d R_d² stands where the theorem has D·R², and R is the root mean square of the R_d.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from anybit.config import Config
from anybit.errors import ConfigError
from anybit.federated.state import trainable_weights
from anybit.federated.variants import Variant
from anybit.quant.grid import FLOAT, Grid, Width, pseudo_noise, quantize, rounding
from anybit.quant.ranges import StepTable
from anybit.quant.sites import prepare, quantizers, weight_sites
from anybit.tensors import Tensors
from anybit.theory import theorem
from anybit.theory.estimates import Known, Probe, estimate
from anybit.theory.theorem import Bound, Setting
from anybit.training.run import Run
from anybit.training.task import Task


@dataclass(frozen=True)
class RunBound:
    """What Theorem 3.1 says of a run; `bound` is None where a condition is violated."""

    setting: Setting
    gap: float
    rounds: int
    quantized: int
    """D: how many weights are quantized."""
    sources: dict[str, str]
    """Where each constant comes from."""
    gradient: float
    """‖∇F(w)‖² at the trained weights, over the sampled clients."""
    bound: Bound | None
    violation: str | None
    outside: list[str]
    """Where the run departs from what the theorem assumes."""

    @property
    def radius(self) -> float:
        """R as a root mean square over the quantized weights."""
        return math.sqrt(self.setting.noise / max(self.quantized, 1))

    def constants(self) -> dict[str, float]:
        s = self.setting
        return {"K": s.K, "T": self.rounds, "eta_c": s.eta_c, "eta_s": s.eta_s, "D": self.quantized, "R": self.radius,
                "sum_R2": s.noise, "L": s.L, "sigma_l": s.sigma_l, "sigma_g": s.sigma_g, "gap": self.gap}

    def meaning(self) -> list[str]:
        """The figures in sentences."""
        least = ("no learning rate brings the quantization term below 16/3·L²·ΣR² = "
                 f"{theorem.irreducible(self.setting):.4g}")
        measured = f"measured at the trained weights: ‖∇F‖² = {self.gradient:.4g}"
        if self.bound is None:
            times = self.setting.eta_c / min(c.limit for c in theorem.conditions(self.setting))
            return [f"the theorem makes no statement about this run: its η_c is {times:.3g} times the limit", least,
                    measured]
        terms = self.bound.terms()
        largest = max(terms, key=lambda name: terms[name])
        share = 100 * terms[largest] / self.bound.total
        out = [f"the largest term is {largest.replace('_', ' ')}, {share:.0f} % of the bound", least,
               f"{measured}, {self.gradient / self.bound.total:.2g} of the bound"]
        if self.bound.floor > 0:
            enough = math.ceil(self.rounds * self.bound.optimization / self.bound.floor)
            out.append(f"from round {enough} on the optimization term is below the others together: more rounds lower "
                       "the bound by less than half")
        return out

    def as_json(self) -> dict[str, Any]:
        return {"constants": self.constants(), "sources": self.sources,
                "coefficients": vars(theorem.coefficients(self.setting)),
                "conditions": [vars(c) for c in theorem.conditions(self.setting)],
                "largest_eta_c": theorem.largest_eta_c(self.setting), "violation": self.violation,
                "terms": self.bound.terms() if self.bound else None, "bound": self.bound.total if self.bound else None,
                "irreducible": theorem.irreducible(self.setting), "gradient": self.gradient, "outside": self.outside,
                "meaning": self.meaning()}


def run_bound(run: Run, given: Known = Known()) -> RunBound:
    """Read a finished run, estimate what was not given, and apply the theorem."""
    config, table = run.config, run.steps()
    task = replace(run.task(), split=run.folder.split())
    probe, w = Probe(task, config), run.folder.model()
    found = estimate(probe, trainable_weights(task.model), {name: p.to(probe.device) for name, p in w.items()}, given)
    noise, size = weight_noise(task, config, table)
    steps = local_steps(task, config)
    eta_s = config.server.lr if given.eta_s is None else given.eta_s
    setting = Setting(found.L, max(steps), config.client.lr, eta_s, found.sigma_l, found.sigma_g, noise)
    violation = theorem.violation(setting)
    bound = None if violation else theorem.bound(setting, found.gap, config.rounds)
    clipped = clipped_share(task, config, table, w)
    return RunBound(setting, found.gap, config.rounds, size, found.sources, found.gradient, bound, violation,
                    departures(task, config, setting, steps, clipped))


def method_of(variant: Variant) -> theorem.Method | None:
    """Which R applies; None: weights are not quantized while training, R = 0."""
    if variant.transform is None or "W" not in variant.sites:
        return None
    if variant.transform is pseudo_noise:
        return "apqn"
    if variant.transform is rounding:
        return "qat" if len(variant.bits) == 1 else "mqat"
    raise ConfigError(f"variant '{variant.name}' has a transform of its own: Theorem 3.1 covers APQN, QAT and MQAT")


def _weight_grids(task: Task, config: Config, table: StepTable) -> Iterator[tuple[str, list[Grid]]]:
    """List (parameter, its grid at every bit-width it trains at)."""
    prepared, widths = prepare(task.model, options=config.sites), [Width(bits, FLOAT) for bits in task.variant.bits]
    for name, parameter in weight_sites(prepared).items():
        site = quantizers(prepared)[name]
        distinct = {site.bits_at(width): width for width in widths if site.bits_at(width) != FLOAT}
        if distinct:
            yield parameter, [site.grid_at(width, table.steps[name]) for width in distinct.values()]


def weight_noise(task: Task, config: Config, table: StepTable) -> tuple[float, int]:
    """(Σ_d R_d², how many weights are quantized)."""
    method, sizes = method_of(task.variant), {n: p.numel() for n, p in task.model.named_parameters()}
    if method is None:
        return 0.0, 0
    energy, total = 0.0, 0
    for name, grids in _weight_grids(task, config, table):
        channels = torch.stack([grid.step.flatten() for grid in grids], 1).tolist()
        energy += theorem.noise_energy(method, [(sizes[name] // len(channels), row) for row in channels])
        total += sizes[name]
    return energy, total


def clipped_share(task: Task, config: Config, table: StepTable, w: Tensors) -> float:
    """The share of trained weights whose rounding error exceeds Δ/2, against Assumption 3, at the worst bit-width."""
    method, clipped, total = method_of(task.variant), 0, 0
    for name, grids in _weight_grids(task, config, table) if method in ("qat", "mqat") else ():
        beyond = [(quantize(w[name], grid) - w[name]).abs() > 0.5001 * grid.step for grid in grids]
        clipped += max(int(outside.sum()) for outside in beyond)
        total += w[name].numel()
    return clipped / max(total, 1)


def local_steps(task: Task, config: Config) -> list[int]:
    """K of every client."""
    return [config.client.epochs * math.ceil(len(index) / config.client.batch_size) for index in task.split]


def departures(task: Task, config: Config, s: Setting, steps: list[int], clipped: float) -> list[str]:
    """Everything in which the run is not what the theorem assumes."""
    variant = task.variant
    facts = {
        f"the server runs {config.server.optimizer}, the theorem is about SGD: the figures are those of SGD with η_s = "
        f"{s.eta_s:g}": config.server.optimizer != "sgd",
        f"{config.cohort} of {len(task.split)} clients take part in a round, the theorem takes all":
            config.cohort < len(task.split),
        f"clients make {min(steps)} to {max(steps)} local steps, the theorem one number: K = {s.K} is used":
            min(steps) < max(steps),
        "an epoch draws batches without replacement, the theorem takes independent ones": max(steps) > 1,
        f"{100 * clipped:.2g} % of the trained weights are clipped, beyond the Δ/2 of Assumption 3": clipped > 0,
        "activations are quantized too, the theorem is about weights":
            variant.transform is not None and "A" in variant.sites,
        "steps are learned, the theorem takes them as fixed: those at the end are used": config.ranges.learned,
        "deltas are averaged by examples, the theorem takes 1/|S|": config.weighting != "uniform",
        f"variant '{variant.name}' quantizes no weight while training: R = 0, the bound of plain FedAvg":
            method_of(variant) is None,
    }
    return [text for text, applies in facts.items() if applies]
