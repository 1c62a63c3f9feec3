"""Theorem 3.1 against the real algorithm, on federated quadratics where every constant of the theorem is known.

    python benchmarks/theory_quadratics.py

Client i minimizes F_i(w) = ½·(w − c_i)ᵀH(w − c_i). All clients share H, so that L = 1 (its largest eigenvalue), σ_l and
σ_g are exact for all w. Variants, client update, engine and server are anybit's own; runs are computed side by side.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anybit import theory
from anybit.data.examples import Data, Examples
from anybit.engines.stacked import Stacked
from anybit.federated.algorithm import ClientStep, Loss, Rates, RoundInputs, client_weighting, federated_round, sgd_step
from anybit.federated.client import ClientOptions
from anybit.federated.cohort import Batch, Cohort, build_cohort
from anybit.federated.objective import client_loss
from anybit.federated.server import ServerOptions, pace, server
from anybit.federated.state import Given, LogSteps, State, Trainable
from anybit.federated.variants import Variant, apqn, mqat, qat
from anybit.quant.grid import BITS, FLOAT, Width
from anybit.quant.ranges import StepTable, cover_steps
from anybit.quant.sites import bind, prepare
from anybit.randomness import generator

ROOT = Path(__file__).resolve().parent.parent
WEIGHT, SITE = "0.weight", "0.weight_quantizer"
TABLE = StepTable({SITE: cover_steps(torch.tensor(-1.0), torch.tensor(1.0), "full")})
"""Δ_b for weights in [−1, 1] without clipping."""

FAMILIES: dict[theory.Method, Callable[[int], Variant]] = {
    "apqn": apqn, "qat": qat, "mqat": lambda b: mqat((b, b + 1, b + 2), start="cover")}
CLIENTS, DIMENSION, OPTIMA, LOCAL_STEPS = 32, 8, 10, 4
ETA_S, FAST, SLOW = 1.0, 0.0225, 0.0025
"""Server and client learning rates; FAST and SLOW are 0.9 and 0.1 of the largest admissible one (1/(10LK) = 0.025)."""


@dataclass(frozen=True)
class Problem:
    """Federated quadratics, one per run: (run, client, example, D) values ξ, whose mean over examples is c_i."""

    hessian: Tensor
    values: Tensor
    start: Tensor

    @property
    def optimum(self) -> Tensor:
        """w* = mean of the c_i: (run, D)."""
        return self.values.mean((1, 2))

    def measure(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """‖∇F(w)‖² and F(w) − F(w*)."""
        away = w - self.optimum
        return (away @ self.hessian).square().sum(-1), 0.5 * ((away @ self.hessian) * away).sum(-1)

    def sigmas(self) -> tuple[float, float]:
        """(σ_l, σ_g), the largest over runs and clients; a batch is one example."""
        within = ((self.values - self.values.mean(2, keepdim=True)) @ self.hessian).square().sum(-1).mean(2)
        between = ((self.values.mean(2) - self.optimum[:, None]) @ self.hessian).square().sum(-1).mean(1)
        return float(within.max()) ** 0.5, float(between.max()) ** 0.5


@dataclass(frozen=True)
class Trace:
    """What happened, double precision: w (round, run, D), the rest (round, run, …), averaged over clients."""

    w: Tensor
    drift: Tensor
    """‖w_{t,k} − w_t‖² before every local step k."""
    noise: Tensor
    """‖r‖², r = what the forward pass saw − w."""
    reach: Tensor
    """max |r_d|/Δ over all clients, steps and weights: above ½ a weight was clipped."""


def rotated_hessian(seed: int) -> Tensor:
    """A dense Hessian with eigenvalues from 0.8 to L = 1."""
    basis, _ = np.linalg.qr(generator(seed, "hessian").standard_normal((DIMENSION, DIMENSION)))
    return torch.from_numpy(basis @ np.diag(np.linspace(0.8, 1, DIMENSION)) @ basis.T)


def random_optima(points: int, seed: int = 1) -> Problem:
    """σ_l = σ_g = 0: all clients want the same w* from U[−0.7, 0.7]^D, another one in each of the OPTIMA runs."""
    optimum = generator(seed, "optima").uniform(-0.7, 0.7, (OPTIMA, 1, 1, DIMENSION))
    values = np.tile(np.repeat(optimum, CLIENTS, 1), (points, 1, 1, 1))
    return Problem(rotated_hessian(seed), torch.from_numpy(values), torch.zeros(len(values), DIMENSION))


def noisy_optima(points: int, seed: int = 1) -> Problem:
    """Clients and examples scatter by 0.2 per weight; started at w*, so that the noise terms stand alone."""
    problem, draw = random_optima(points, seed), generator(seed, "scatter")
    clients = problem.values.numpy() + 0.2 * draw.standard_normal(problem.values.shape)
    values = torch.from_numpy(clients + 0.2 * draw.standard_normal((*clients.shape[:2], 64, DIMENSION)))
    return replace(problem, values=values, start=values.mean((1, 2)))


def grid_optima(bits: Sequence[int], seed: int = 1) -> Problem:
    """The worst case for rounding: H = L·I and optima on grid points, approached from ¾ of a step away.

    A weight rests as soon as it rounds to w*, half a step before it: ‖∇F‖² → L²·D·(Δ/2)² = L²·D·R².
    """
    draw, steps = generator(seed, "grid optima"), np.array([[step_of(b)] for b in bits])
    optimum = steps * draw.integers(-1, 2, (len(bits), DIMENSION))
    away = steps * draw.choice((-0.75, 0.75), (len(bits), DIMENSION))
    values = np.repeat(optimum[:, None, None], CLIENTS, 1)
    return Problem(torch.eye(DIMENSION).double(), torch.from_numpy(values), torch.from_numpy(optimum + away))


def step_of(bits: int) -> float:
    """Δ_b."""
    return float(TABLE.steps[SITE][BITS.index(bits)])


def simulate(problem: Problem, variants: Sequence[Variant], eta_c: float, rounds: int) -> Trace:
    """Train every run, each with its variant (all with the same transform) and its noise; all clients every round.

    A client draws its K batches with replacement, as the theorem assumes.
    """
    size = problem.values.shape[2]
    targets = problem.values.reshape(len(variants), -1, DIMENSION).float()
    w, trace = problem.start[:, :, None].float(), []
    for t in range(rounds):
        picks = generator(0, "batches", t).integers(size, size=(CLIENTS, LOCAL_STEPS))
        split = list(picks + size * np.arange(CLIENTS)[:, None])
        cohort = build_cohort(0, t, range(CLIENTS), [Width(FLOAT, FLOAT)] * CLIENTS, split, ClientOptions(batch_size=1))
        drawn = {v: v.widths_of(0, t, cohort.clients) for v in set(variants)}
        widths = torch.tensor([drawn[v] for v in variants])
        keys = cohort.keys + torch.arange(len(variants))[:, None]
        step = torch.vmap(_round_of(problem.hessian.float(), variants[0], cohort, eta_c))
        after, seen = step(w, targets, widths, keys)
        trace.append((w[..., 0], seen[..., 0].mean(1), seen[..., 1].mean((1, 2)), seen[..., 2].amax((1, 2))))
        w = after
    return Trace(*(torch.stack(column).double() for column in zip(*trace, strict=True)))


def _round_of(hessian: Tensor, variant: Variant, cohort: Cohort, eta_c: float) -> Callable[..., Any]:
    """(w, targets, widths, keys) of one run → (w after the round, what `_watched` saw at every client and step)."""
    model = prepare(nn.Sequential(nn.Linear(1, DIMENSION, bias=False)), variant.transform)
    options = ServerOptions("sgd", ETA_S)
    optimizer = server(options)

    def quadratic(outputs: Tensor, targets: Tensor) -> Tensor:
        away = outputs - targets
        return 0.5 * ((away @ hessian) * away).sum(1)

    def round(w: Tensor, targets: Tensor, widths: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        examples = Examples(torch.ones(len(targets), 1), targets)
        loss = client_loss(model, variant, Data(examples, examples), quadratic, {})
        step = functools.partial(sgd_step, loss=_watched(loss, model, w), rates=Rates(eta_c, 0.0))
        client_step = ClientStep(step, lambda given: lambda w, xi: step(w, given, xi))
        now = replace(cohort, width_bits=widths[:, None].expand(-1, cohort.local_steps, -1), keys=keys)
        inputs = RoundInputs(Given(dict(TABLE.steps)), now, client_weighting(now), pace(options, now.round, now.round + 1))
        state, seen = federated_round(State({WEIGHT: w}, LogSteps({}, {}), ()), inputs, client_step, optimizer,
                                      Stacked(CLIENTS).map_clients)
        return state.w[WEIGHT], seen.movedim(-1, -2)

    return round


def _watched(loss: Loss, model: nn.Module, start: Tensor) -> Loss:
    """The same loss; instead of its value, report (drift, ‖r‖², max |r_d|/Δ) of the weights it was asked about."""
    def value(w: Trainable, given: Given, xi: Batch) -> tuple[Tensor, Tensor]:
        objective, _ = loss(w, given, xi)
        buffers = bind(model, given.step_sizes, xi.width, rows=xi.rows, key=xi.key, count=xi.local_step)
        # The layer's input is 1, so that its output is the weight as the forward pass saw it: w + r.
        seen: Tensor = torch.func.functional_call(model, {**w.w, **buffers}, (torch.ones(1, 1),))
        noise = seen[0] - w.w[WEIGHT][:, 0]
        reach = noise.abs().max() / buffers[f"{SITE}.step"]
        return objective, torch.stack([(w.w[WEIGHT] - start).square().sum(), noise.square().sum(), reach]).detach()
    return value


@dataclass(frozen=True)
class Row:
    """One point of the experiment: means over its runs in the tail, the last quarter of the rounds."""

    case: str
    variant: str
    bits: int
    step: float
    eta_c: float
    rounding: float
    """L²·D·R²."""
    gradient: float
    """Mean ‖∇F(w_t)‖²."""
    floor: float
    """Theorem 3.1 for T → ∞."""
    gradient_ratio: float
    """Mean ‖∇F‖² / Theorem 3.1: the larger of all rounds and of the tail, with the gap where it starts; worst run."""
    drift: float
    """Mean over clients of ‖w_{t,k} − w_t‖² at the worst k; `drift_bound`: Lemma 4."""
    drift_bound: float
    drift_ratio: float
    """Drift / Lemma 4, the largest of any run, round and local step."""
    noise_ratio: float
    """E‖r‖²/(D·R²)."""
    reach: float
    """max |r_d|/Δ, over all rounds."""


def measure(case: str, method: theory.Method, bits: int, problem: Problem, trace: Trace, eta_c: float) -> Row:
    """Compare runs at one bit-width (MQAT: the lowest of three) with the theorem and with Lemma 4."""
    noise = theory.noise_energy(method, [(DIMENSION, [step_of(b) for b in FAMILIES[method](bits).bits])])
    setting = theory.Setting(1.0, LOCAL_STEPS, eta_c, ETA_S, *problem.sigmas(), noise)
    (gradient, gap), rounds = problem.measure(trace.w), len(trace.w)
    tail = rounds * 3 // 4

    def ratio(start: int) -> float:
        bounds = [theory.bound(setting, float(g), rounds - start).total for g in gap[start]]
        return float((gradient[start:].mean(0) / torch.tensor(bounds)).max())

    drift_bound = gradient.clone().apply_(lambda g: theory.drift_bound(setting, g))
    return Row(case, method, bits, step_of(bits), eta_c, setting.L**2 * noise,
               gradient=float(gradient[tail:].mean()), floor=theory.bound(setting, 0.0, 1).floor,
               gradient_ratio=max(ratio(0), ratio(tail)), drift=float(trace.drift[tail:].mean((0, 1)).max()),
               drift_bound=float(drift_bound[tail:].mean()),
               drift_ratio=float((trace.drift / drift_bound[..., None]).max()),
               noise_ratio=float(trace.noise[tail:].mean()) / noise, reach=float(trace.reach.max()))


def run_case(case: str, points: Sequence[tuple[theory.Method, int]], eta_c: float, rounds: int) -> list[Row]:
    """One row per (method, bits); all points and optima train side by side, so the methods must share a transform."""
    if case == "worst":
        problem, each = grid_optima([bits for _, bits in points]), 1
    else:
        problem, each = (random_optima if case == "floor" else noisy_optima)(len(points)), OPTIMA
    families = [FAMILIES[method](bits) for method, bits in points]
    trace = simulate(problem, [family for family in families for _ in range(each)], eta_c, rounds)
    rows = []
    for i, (method, bits) in enumerate(points):
        mine = slice(i * each, (i + 1) * each)
        part = Trace(*(column[:, mine] for column in vars(trace).values()))
        rows.append(measure(case, method, bits, replace(problem, values=problem.values[mine]), part, eta_c))
    return rows


def experiment() -> list[Row]:
    """Everything that docs/theory.md shows. The tensors are small: more threads would only wait for each other."""
    torch.set_num_threads(1)
    apqn_points, qat_points, mqat_points = ([(method, b) for b in (3, 4, 5, 6)] for method in FAMILIES)
    return [*run_case("floor", apqn_points, FAST, 160), *run_case("floor", qat_points + mqat_points, FAST, 160),
            *run_case("noisy", apqn_points[-1:], SLOW, 100),
            *run_case("noisy", qat_points[-1:] + mqat_points[-1:], SLOW, 100),
            *run_case("worst", qat_points, FAST, 48), *run_case("worst", qat_points, SLOW, 48)]


def slope(rows: Sequence[Row]) -> float:
    """d log ‖∇F‖² / d log Δ, by least squares."""
    return float(np.polyfit(np.log([r.step for r in rows]), np.log([r.gradient for r in rows]), 1)[0])


def plot(rows: Sequence[Row], path: Path) -> None:
    """Measured (points) against bound (lines): ‖∇F‖² on the left, drift on the right."""
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "theory"
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
    worst = [r for r in rows if r.case == "worst" and r.eta_c == FAST]
    left.loglog([r.step for r in worst], [r.gradient for r in worst], "k^", label="QAT, worst optimum")
    for axis, what, limit, title in ((left, "gradient", "floor", "‖∇F‖², and Theorem 3.1 (dashed)"),
                                     (right, "drift", "drift_bound", "client drift, and Lemma 4 (dashed)")):
        for color, method in zip(("C0", "C1", "C2"), FAMILIES, strict=True):
            mine = [r for r in rows if r.case == "floor" and r.variant == method]
            steps, label = [r.step for r in mine], f"{method.upper()}, slope {slope(mine):.2f}"
            axis.loglog(steps, [getattr(r, what) for r in mine], "o", color=color, label=label)
            axis.loglog(steps, [getattr(r, limit) for r in mine], "--", color=color)
        axis.set(title=title, xlabel="step Δ of the lowest bit-width")
        axis.set_xticks([r.step for r in worst], [f"{r.step:.3f}\n{r.bits} bits" for r in worst])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    rows, table, picture = experiment(), ROOT / "results/theory/quadratics.csv", ROOT / "docs/img/theory.svg"
    for path in (table, picture):
        path.parent.mkdir(parents=True, exist_ok=True)
    with open(table, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(asdict(rows[0]))
        writer.writerows([f"{v:.4g}" if isinstance(v, float) else v for v in asdict(r).values()] for r in rows)
    for r in rows:
        print(f"{r.case:5} {r.variant:4} {r.bits} bits  η_c {r.eta_c:<6}  ‖∇F‖² {r.gradient:.2e}, floor {r.floor:.2e}; "
              f"measured/bound: ‖∇F‖² {r.gradient_ratio:.4f}, drift {r.drift_ratio:.4f}")
    for method in FAMILIES:
        print(f"{method}: slope {slope([r for r in rows if r.case == 'floor' and r.variant == method]):.2f}")
    plot(rows, picture)


if __name__ == "__main__":
    main()
