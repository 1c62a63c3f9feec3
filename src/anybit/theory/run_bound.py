"""Theorem 3.1 for a finished run: its constants, read or estimated, and its bound.

D·R² is taken over the quantized weights, because the others carry no noise. Sites have different step sizes, so Σ_d R_d²
stands for the theorem's D·R², and R is the root mean square of the R_d.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from anybit import theory
from anybit.config import Config
from anybit.errors import ConfigError
from anybit.federated.cohort import same_width
from anybit.federated.state import trainable_weights
from anybit.federated.variants import Variant
from anybit.quant.grid import FLOAT, Grid, Width, pseudo_noise, quantize, rounding
from anybit.quant.ranges import StepTable
from anybit.quant.sites import prepare, quantizers, weight_sites
from anybit.tensors import Tensors
from anybit.theory import Bound, Method, Setting
from anybit.theory.estimates import Known, Probe, estimate
from anybit.training.run import Run
from anybit.training.task import Task


@dataclass(frozen=True)
class RunBound:
    """The statement of Theorem 3.1 about a run; `bound` is None if a condition is violated."""

    setting: Setting
    gap: float
    rounds: int
    quantized: int
    """D: the number of quantized weights."""
    sources: dict[str, str]
    """{constant: its source in words}."""
    gradient: float
    """‖∇F(w)‖² at the trained weights, over the sampled clients."""
    bound: Bound | None
    violation: str | None
    outside: list[str]
    """Departures of the run from the assumptions of the theorem."""

    @property
    def radius(self) -> float:
        """R, the root mean square over the quantized weights."""
        return math.sqrt(self.setting.noise / max(self.quantized, 1))

    def constants(self) -> dict[str, float]:
        s = self.setting
        return {"K": s.K, "T": self.rounds, "eta_c": s.eta_c, "eta_s": s.eta_s, "D": self.quantized, "R": self.radius,
                "sum_R2": s.noise, "L": s.L, "sigma_l": s.sigma_l, "sigma_g": s.sigma_g, "gap": self.gap}

    def meaning(self) -> list[str]:
        """Describe the figures in sentences."""
        least = f"no learning rate brings the quantization term below 16/3·L²·ΣR² = {theory.irreducible(self.setting):.4g}"
        measured = f"measured at the trained weights: ‖∇F‖² = {self.gradient:.4g}"
        if self.bound is None:
            excess = self.setting.eta_c / min(c.limit for c in theory.conditions(self.setting))
            return [f"the theorem makes no statement about this run: its η_c is {excess:.3g} times the limit", least,
                    measured]
        terms = self.bound.terms()
        largest = max(terms, key=terms.__getitem__)
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
                "coefficients": vars(theory.coefficients(self.setting)),
                "conditions": [vars(c) for c in theory.conditions(self.setting)],
                "largest_eta_c": theory.largest_eta_c(self.setting), "violation": self.violation,
                "terms": self.bound.terms() if self.bound else None, "bound": self.bound.total if self.bound else None,
                "irreducible": theory.irreducible(self.setting), "gradient": self.gradient, "outside": self.outside,
                "meaning": self.meaning()}


def run_bound(run: Run, given: Known = Known()) -> RunBound:
    """Read a finished run, estimate what was not given, and apply the theorem."""
    config, table = run.config, run.steps()
    task = replace(run.task(), split=run.folder.split())
    probe, w, first = Probe(task, config), run.folder.model(), trainable_weights(task.model)
    last = {name: w[name].to(probe.device) for name in first}
    estimates = estimate(probe, first, last, given)
    noise, quantized = weight_noise(task, config, table)
    # K of every client
    local_steps = [config.client.steps_of(len(index)) for index in task.split]
    eta_s = config.server.rate(config.rounds) if given.eta_s is None else given.eta_s
    setting = Setting(estimates.L, max(local_steps), config.client.lr, eta_s, estimates.sigma_l, estimates.sigma_g, noise)
    violation = theory.violation(setting)
    bound = None if violation else theory.bound(setting, estimates.gap, config.rounds)
    return RunBound(setting, estimates.gap, config.rounds, quantized, estimates.sources, estimates.gradient, bound,
                    violation, departures(task, config, setting, local_steps, clipped_share(task, config, table, w)))


def method_of(variant: Variant) -> Method | None:
    """Return the method whose R applies; None if the training quantizes no weights, so that R = 0."""
    if variant.transform is None or "W" not in variant.sites:
        return None
    if variant.transform is pseudo_noise:
        return "apqn"
    if variant.transform is rounding:
        return "qat" if len(variant.bits) == 1 else "mqat"
    raise ConfigError(f"variant '{variant.name}' has a transform of its own: Theorem 3.1 covers APQN, QAT and MQAT")


def _weight_grids(task: Task, config: Config, table: StepTable) -> Iterator[tuple[str, list[Grid]]]:
    """List (parameter, its grids at the bit-widths of the training)."""
    prepared, widths = prepare(task.model, options=config.sites), [Width(bits, FLOAT) for bits in task.variant.bits]
    for name, parameter in weight_sites(prepared, trainable_weights(task.model)).items():
        site = quantizers(prepared)[name]
        distinct = {site.bits_at(width): width for width in widths if site.bits_at(width) != FLOAT}
        if distinct:
            yield parameter, [site.grid_at(width, table.steps[name]) for width in distinct.values()]


def weight_noise(task: Task, config: Config, table: StepTable) -> tuple[float, int]:
    """Return (Σ_d R_d², the number of quantized weights)."""
    method, sizes = method_of(task.variant), {n: p.numel() for n, p in task.model.named_parameters()}
    if method is None:
        return 0.0, 0
    energy, total = 0.0, 0
    for name, grids in _weight_grids(task, config, table):
        channels = torch.stack([grid.step.flatten() for grid in grids], 1).tolist()
        energy += theory.noise_energy(method, [(sizes[name] // len(channels), row) for row in channels])
        total += sizes[name]
    return energy, total


def clipped_share(task: Task, config: Config, table: StepTable, w: Tensors) -> float:
    """Return the share of trained weights with a rounding error above Δ/2, against Assumption 3, at the worst bit-width."""
    method, clipped, total = method_of(task.variant), 0, 0
    for name, grids in _weight_grids(task, config, table) if method in ("qat", "mqat") else ():
        clipped += max(int(((quantize(w[name], grid) - w[name]).abs() > 0.5001 * grid.step).sum()) for grid in grids)
        total += w[name].numel()
    return clipped / max(total, 1)


def departures(task: Task, config: Config, s: Setting, local_steps: list[int], clipped: float) -> list[str]:
    """List the departures of a run from the assumptions of the theorem."""
    variant = task.variant
    facts = {
        f"the server runs {config.server.optimizer}, the theorem is about SGD: the figures are those of SGD with η_s = "
        f"{s.eta_s:g}": config.server.optimizer != "sgd",
        f"{config.places()} of {len(task.split)} clients take part in a round, the theorem takes all":
            config.places() < len(task.split),
        f"clients make {min(local_steps)} to {max(local_steps)} local steps, the theorem one number: K = {s.K} is used":
            min(local_steps) < max(local_steps),
        "an epoch draws batches without replacement, the theorem takes independent ones": max(local_steps) > 1,
        f"{100 * clipped:.2g} % of the trained weights are clipped, beyond the Δ/2 of Assumption 3": clipped > 0,
        "activations are quantized too, the theorem is about weights":
            variant.transform is not None and "A" in variant.sites,
        "clients do not run plain SGD at one learning rate, as the theorem's do: the figures are those of plain SGD":
            not config.client.plain,
        "steps are learned, the theorem takes them as fixed: those at the end are used": bool(config.ranges.learned),
        "the server's learning rate changes, the theorem takes it as fixed: the highest is used":
            config.server.schedule not in (None, "constant") or bool(config.server.warmup),
        "step sizes follow the weights, the theorem takes them as fixed: those at the end are used":
            bool(config.ranges.follow),
        "the server's weights are clipped to their range, the theorem leaves them": bool(config.ranges.project),
        "the local steps of a client have widths of their own, the theorem gives it one":
            variant.step_widths is not same_width,
        "deltas are averaged by examples, the theorem takes 1/|S|": config.weighting != "uniform",
        "deltas are clipped for privacy, and noise may be added, the theorem takes them as they are":
            config.privacy.clip is not None,
        f"variant '{variant.name}' quantizes no weight while training: R = 0, the bound of plain FedAvg":
            method_of(variant) is None,
    }
    return [text for text, applies in facts.items() if applies]
