"""Evaluation of the server model: loss and metric on the whole test set, over widths and step rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anybit.config import EvaluationOptions, RangeOptions
from anybit.data.examples import Data
from anybit.errors import ConfigError
from anybit.objective import PerExample
from anybit.quant.calibrate import activation_table, layer_health, weight_table
from anybit.quant.grid import FLOAT, SiteKinds, Width, rounding
from anybit.quant.ranges import RangeRule, StepTable
from anybit.quant.sites import SiteOptions, bind, prepare, quantizers
from anybit.randomness import generator
from anybit.variants import Steps, Variant

Tensors = Mapping[str, Tensor]


class Score(NamedTuple):
    """Means over the test set."""

    loss: float
    metric: float


def calibration_images(data: Data, count: int, seed: int) -> Tensor:
    """Training images (never test images) on which activation ranges are measured."""
    chosen = generator(seed, "calibration").permutation(len(data.train))[:count]
    return data.pipeline(data.train.x[torch.from_numpy(chosen).to(data.train.x.device)])


@dataclass(frozen=True)
class Evaluator:
    """Everything that stays the same between evaluations of one run."""

    model: nn.Module
    variant: Variant
    sites: SiteOptions
    ranges: RangeOptions
    options: EvaluationOptions
    data: Data
    images: Tensor
    loss: PerExample
    metric: PerExample
    activation_steps: Callable[[Tensors, RangeRule], StepTable] | None = None
    """Who finds activation steps; none: they are measured here, on `images`."""

    def start_table(self, w: Tensors) -> StepTable:
        """The steps fixed at the start of the training, of all weights and activations."""
        return self._estimated(w, self.ranges.weights or self.variant.start, "WA")

    def table(self, w: Tensors, trained: StepTable, steps: Steps, sites: SiteKinds = "WA") -> StepTable:
        """The steps by which the given sites of `w` are quantized; `trained` is the table of the training.

        Sites that the variant does not quantize while training have no training range: theirs are re-estimated.
        """
        if steps != "table" and steps != "rule":
            return self._estimated(w, steps, sites)
        table = self._by_rule(trained) if steps == "rule" else trained
        untrained: SiteKinds | None = {"W": "A", "A": "W"}.get(self.variant.sites)  # type: ignore[assignment]
        return table.merged(self._estimated(w, "mse", untrained)) if untrained and untrained in sites else table

    def _by_rule(self, trained: StepTable) -> StepTable:
        bits = [b for b in self.variant.bits if b != FLOAT]
        if not bits:
            raise ConfigError(f"variant '{self.variant.name}' trains at no bit-width from which the step rule could "
                              "start: use steps 'mse', 'minmax' or 'cover'")
        grids = {name: site.grid for name, site in quantizers(prepare(self.model, options=self.sites)).items()}
        return trained.by_rule(min(bits), grids)

    def _estimated(self, w: Tensors, rule: RangeRule, sites: SiteKinds) -> StepTable:
        """Steps found now: of the weights by `rule`, of the activations by the run's own rule on training images."""
        table = StepTable({})
        if "W" in sites:
            table = weight_table(prepare(self.model, options=self.sites), w, rule, self.sites.per_channel)
        if "A" in sites:
            rule = self.ranges.activations
            table = table.merged(self.activation_steps(w, rule) if self.activation_steps else
                                 activation_table(self.model, self.sites, w, self.images, rule))
        return table

    def score(self, w: Tensors, table: StepTable, widths: Sequence[Width]) -> dict[str, Score]:
        """Loss and metric at every width."""
        prepared = prepare(self.model, rounding, rounding, self.sites).eval()
        return {str(width): self._score(prepared, w, table, width) for width in widths}

    @torch.no_grad()
    def _score(self, prepared: nn.Module, w: Tensors, table: StepTable, width: Width) -> Score:
        test, total, size = self.data.test, torch.zeros(2, dtype=torch.float64), len(self.data.test)
        zero = torch.zeros((), dtype=torch.int64, device=test.x.device)
        buffers = bind(prepared, table.steps, torch.tensor(width, device=test.x.device),
                       rows=torch.ones(1, device=test.x.device), key=zero, count=zero)
        for start in range(0, size, self.options.batch_size):
            part = slice(start, start + self.options.batch_size)
            outputs = torch.func.functional_call(prepared, (dict(w), buffers), (self.data.pipeline(test.x[part]),))
            for i, each in enumerate((self.loss, self.metric)):
                total[i] += each(outputs, test.y[part]).double().sum().cpu()
        return Score(float(total[0]) / size, float(total[1]) / size)

    @property
    def own_steps(self) -> Steps:
        return self.ranges.evaluate or self.variant.evaluate

    def own(self, w: Tensors, trained: StepTable) -> dict[str, Any]:
        """The variant's own evaluation: its sites, its steps, all bit-widths, and how every layer fares at the lowest."""
        table = self.table(w, trained, self.own_steps, self.variant.sites)
        widths = [Width.of(self.variant.sites, b) for b in self.options.bits]
        lowest = min(widths)
        health = layer_health(self.model, self.sites, w, self.images, table, lowest)
        return {"steps": self.own_steps,
                "scores": {name: score._asdict() for name, score in self.score(w, table, widths).items()},
                "layers_at": str(lowest), "layers": {name: h._asdict() for name, h in health.items()}}

    def grid(self, w: Tensors, trained: StepTable) -> dict[str, Any]:
        """All widths × step rules: {steps: {width: score}}, of the variant's own sites and of those asked for."""
        kinds = dict.fromkeys([self.variant.sites, *self.options.sites])
        widths = list(dict.fromkeys(Width.of(sites, b) for sites in kinds for b in self.options.bits))
        return {steps: {name: s._asdict() for name, s in self.score(w, self.table(w, trained, steps), widths).items()}
                for steps in self.grid_steps()}

    def grid_steps(self) -> list[Steps]:
        """The step rules that make sense for the variant: one that trains in full precision has no table of its own."""
        quantized = any(b != FLOAT for b in self.variant.bits)
        wanted: list[Steps] = [self.own_steps, *self.options.steps]
        return [s for s in dict.fromkeys(wanted) if quantized or s not in ("table", "rule")]
