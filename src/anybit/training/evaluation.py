"""Evaluation of the server model: loss and metric on the whole test set, over widths and step rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anybit.config import Config, EvaluationOptions, RangeOptions
from anybit.data.examples import Data
from anybit.engines.base import Engine
from anybit.engines.capture import Replayed
from anybit.errors import ConfigError
from anybit.federated.metrics import PerExample, per_example
from anybit.federated.variants import StepRule, Variant
from anybit.inputs import Inputs, device_of, mapped, selected
from anybit.kernels import has_kernels, use_kernels
from anybit.quant.calibrate import activation_table, following, health_seen, layer_health, weight_table
from anybit.quant.grid import FLOAT, SiteKinds, Width, rounding
from anybit.quant.ranges import ActivationRule, RangeRule, StepTable
from anybit.quant.sites import SiteOptions, bind, call, prepare, quantizers
from anybit.randomness import generator
from anybit.tensors import Tensors
from anybit.training.task import Task


class StepFinder:
    """Finds the step sizes of one set of weights, by any rule; activations are measured once for all of them."""

    def __init__(self, evaluator: Evaluator, w: Tensors, trained: StepTable) -> None:
        self.evaluator, self.w, self.trained = evaluator, w, trained

    def table(self, rule: StepRule, sites: SiteKinds = "WA") -> StepTable:
        """Return the step sizes by which the given sites are quantized.

        Sites that the variant does not quantize while training have no training range: theirs are re-estimated.
        """
        if rule != "table" and rule != "rule":
            return self.estimated(rule, sites)
        table = self._by_rule() if rule == "rule" else self.trained
        untrained: SiteKinds | None = {"W": "A", "A": "W"}.get(self.evaluator.variant.sites)  # type: ignore[assignment]
        return table.merged(self.estimated("mse", untrained)) if untrained and untrained in sites else table

    def _by_rule(self) -> StepTable:
        variant = self.evaluator.variant
        bits = [b for b in variant.bits if b != FLOAT]
        if not bits:
            raise ConfigError(f"variant '{variant.name}' trains at no bit-width from which the step rule could "
                              "start: use steps 'mse', 'minmax' or 'cover'")
        grids = {name: site.grid for name, site in quantizers(self.evaluator.plain).items()}
        return self.trained.by_rule(min(bits), grids)

    def estimated(self, rule: RangeRule, sites: SiteKinds) -> StepTable:
        """Find step sizes now: of the weights by `rule`, of the activations by the run's own rule on training images."""
        table = StepTable({})
        if "W" in sites:
            table = weight_table(self.evaluator.plain, self.w, rule, self.evaluator.sites.per_channel,
                                 self.evaluator.ranges.spread)
        return table.merged(self._of_activations) if "A" in sites else table

    @cached_property
    def _of_activations(self) -> StepTable:
        e, rule = self.evaluator, self.evaluator.ranges.activations
        if e.activation_steps is not None:
            return e.activation_steps(self.w, rule)
        return activation_table(e.model, e.sites, self.w, e.images, rule)


class Score(NamedTuple):
    """Means over the test set."""

    loss: float
    metric: float


def calibration_images(data: Data, count: int, seed: int, private: bool = False) -> Inputs:
    """Draw training images (never test images) on which activation ranges are measured.

    private: the clients' ranges are not to be told; test images, which are the server's own, stand in for theirs.
    """
    own = data.test if private else data.train
    chosen = generator(seed, "calibration").permutation(len(own))[:count]
    return data.pipeline(own.rows(torch.from_numpy(chosen).to(own.device)).x)


@dataclass(frozen=True)
class Evaluator:
    """Scores a model at any width: everything that stays the same between evaluations of one run."""

    model: nn.Module
    variant: Variant
    sites: SiteOptions
    ranges: RangeOptions
    options: EvaluationOptions
    data: Data
    images: Inputs
    loss: PerExample
    metric: PerExample
    kernels: bool = False
    """Use the GPU's kernels in place of the library's."""
    bf16: bool = False
    """Compute evaluations on the way in bfloat16, as the training does; the grid at the end never is."""
    activation_steps: Callable[[Tensors, ActivationRule], StepTable] | None = None
    """(w, rule) → activation step sizes; none: they are measured here, on `images`."""
    channels_last: bool = False
    """Compute on a CPU with the channel last in memory."""
    engine: Engine = Engine()
    """Computes the scores where they are computed width by width."""
    output: str | int | None = None
    """Key or position of the model's output, where it returns several."""

    def start_table(self, w: Tensors) -> StepTable:
        """Find the step sizes of the start of the training, fixed from then on unless they are learned or follow."""
        table = StepFinder(self, w, StepTable({})).estimated(self.ranges.weights or self.variant.start, "WA")
        return following(self.plain, w, table, self.ranges.spread) if self.ranges.follow else table

    def finder(self, w: Tensors, trained: StepTable) -> StepFinder:
        """Find step sizes of `w` by any rule; `trained` is the table of the training."""
        return StepFinder(self, w, trained)

    @torch.no_grad()
    def score(self, w: Tensors, table: StepTable, widths: Sequence[Width], on_the_way: bool = False) -> dict[str, Score]:
        """Measure loss and metric at every width: on a GPU all widths in one pass over the test set, on a CPU one by one."""
        device = self.data.test.device.type
        with torch.autocast(device, torch.bfloat16, enabled=on_the_way and self.bf16):
            if device == "cuda":
                return dict(zip(map(str, widths), self._pass(w, table, widths, on_the_way), strict=True))
            for width in widths:
                self._rounded([width])  # here, where it is remembered, and not in a process of the engine's
            laid = {name: self._laid(value) for name, value in w.items()}
            scores = self.engine.each(lambda width: self._pass(laid, table, [width], on_the_way)[0], widths)
            return {str(width): Score(*score) for width, score in zip(widths, scores, strict=True)}

    def _laid(self, images_or_weights: Tensor) -> Tensor:
        last = self.channels_last and images_or_weights.ndim == 4
        return images_or_weights.contiguous(memory_format=torch.channels_last) if last else images_or_weights

    def _rounded(self, widths: Sequence[Width]) -> nn.Module:
        """Return the model that rounds the kinds of sites which some of the widths rounds."""
        kinds = tuple(any(bits != FLOAT for bits in column) for column in zip(*widths, strict=True))
        if kinds not in self._prepared:
            weights, activations = (rounding if kind else None for kind in kinds)
            self._prepared[kinds] = prepare(self.model, weights, activations, self.sites).eval()
            if self.kernels:
                use_kernels(self._prepared[kinds])
        return self._prepared[kinds]

    @cached_property
    def _prepared(self) -> dict[tuple[bool, ...], nn.Module]:
        """Made once each, because a copy of a deep model takes longer than a pass."""
        return {}

    @cached_property
    def plain(self) -> nn.Module:
        """The model with its sites, none of them rounded."""
        return prepare(self.model, options=self.sites).eval()

    def _pass(self, w: Tensors, table: StepTable, widths: Sequence[Width], on_the_way: bool) -> list[Score]:
        test, start, size = self.data.test, 0, self.batch_size
        total = torch.zeros(len(widths), 2, dtype=torch.float64, device=test.device)
        outputs = self._repeated(f"outputs {widths}", lambda: self._outputs(widths)) if on_the_way else self._outputs(widths)
        while start < len(test):
            part = test.part(start, start + size)
            try:
                stacked = outputs(dict(w), dict(table.steps), mapped(self.data.pipeline(part.x), self._laid))
            except torch.OutOfMemoryError:
                if size == 1:
                    raise
                size = (size + 1) // 2
                continue
            answers, y = stacked.flatten(0, 1), torch.cat([part.y] * len(widths))
            sums = [per_example(of, what, answers, y).double().reshape(len(widths), -1).sum(1)
                    for what, of in (("loss", self.loss), ("metric", self.metric))]
            total += torch.stack(sums, 1)
            start += size
        return [Score(*sums) for sums in (total / len(test)).tolist()]

    def _outputs(self, widths: Sequence[Width]) -> Callable[..., Tensor]:
        """Make (w, step sizes, inputs) → the model's answers at every width: (width, image, …)."""
        device, model = self.data.test.device, self._rounded(widths)
        ones, zero = torch.ones(1, device=device), torch.zeros((), dtype=torch.int64, device=device)
        bits = torch.tensor(widths, device=device)

        def outputs(w: Tensors, steps: Tensors, inputs: Inputs) -> Tensor:
            kind = next(iter(w.values())).dtype  # of the outputs too, in autocast; the inputs may be whole numbers

            def at(width: Tensor) -> Tensor:
                buffers = bind(model, steps, width, rows=ones, key=zero, count=zero)
                out = selected(call(model, {**w, **buffers}, inputs), self.output)
                return out.to(kind) if out.is_floating_point() else out
            return torch.func.vmap(at)(bits) if len(widths) > 1 else at(bits[0])[None]
        return outputs

    def _repeated(self, name: str, make: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
        """Make a function of tensors once for all evaluations; on a GPU it is recorded and replayed."""
        if name not in self._programs:
            function = make()
            self._programs[name] = Replayed(function) if device_of(self.images).type == "cuda" else function
        return self._programs[name]

    @cached_property
    def _programs(self) -> dict[str, Callable[..., Any]]:
        return {}

    @property
    def batch_size(self) -> int:
        return self.options.batch_size or (2500 if self.data.test.device.type == "cuda" else 250)

    @property
    def own_steps(self) -> StepRule:
        return self.ranges.evaluate or self.variant.evaluate

    def own(self, w: Tensors, trained: StepTable) -> dict[str, Any]:
        """Evaluate the variant's own sites at its own step sizes and all bit-widths, and every layer at the lowest."""
        table, lowest = self._own_table(w, trained), min(self.own_widths)
        width = torch.tensor(lowest, device=device_of(self.images))
        seen = self._repeated("health", lambda: partial(health_seen, self.plain))
        health = layer_health(self.plain, seen(dict(w), dict(table.steps), self.images, width), lowest)
        return {"steps": self.own_steps, "scores": self._own_scores(w, table),
                "layers_at": str(lowest), "layers": {name: h._asdict() for name, h in health.items()}}

    def own_scores(self, w: Tensors, trained: StepTable) -> dict[str, Any]:
        """Return the scores of `own` alone."""
        return self._own_scores(w, self._own_table(w, trained))

    def _own_scores(self, w: Tensors, table: StepTable) -> dict[str, Any]:
        scores = self.score(w, table, self.own_widths, on_the_way=True)
        return {name: score._asdict() for name, score in scores.items()}

    @property
    def own_widths(self) -> list[Width]:
        """The widths of an evaluation on the way: the variant's own sites at every bit-width."""
        return [Width.of(self.variant.sites, b) for b in self.options.bits]

    def _own_table(self, w: Tensors, trained: StepTable) -> StepTable:
        def find(w: Tensors, trained: Tensors) -> Tensors:
            return self.finder(w, StepTable(trained)).table(self.own_steps, self.variant.sites).steps

        # Trained step sizes are at hand, and what activations are like is looked at on the host, too.
        if self.own_steps in ("table", "rule") or self.variant.sites != "W":
            return StepTable(find(w, trained.steps))
        return StepTable(self._repeated("steps", lambda: find)(dict(w), dict(trained.steps)))

    def grid(self, finder: StepFinder, done: Callable[[int, int], None] = lambda parts, of: None) -> dict[str, Any]:
        """Score all widths × step rules: {rule: {width: score}}, of the variant's own sites and of those asked for."""
        widths, rules, grid = self.grid_widths(), self.grid_rules(), dict[str, Any]()
        for i, rule in enumerate(rules, 1):
            grid[rule] = {name: s._asdict() for name, s in self.score(finder.w, finder.table(rule), widths).items()}
            done(i, len(rules))
        return grid

    def mixed(self, w: Tensors, table: StepTable) -> dict[str, Any]:
        """Score every pair of bits of weights and activations at the step sizes of `table`: devices multiply W4 with A8."""
        pairs = [Width(weights, activations) for weights in self.options.bits for activations in self.options.bits]
        return {name: score._asdict() for name, score in self.score(w, table, pairs).items()}

    def grid_widths(self) -> list[Width]:
        """List the widths of the evaluation at the end."""
        kinds = dict.fromkeys([self.variant.sites, *self.options.sites])
        return list(dict.fromkeys(Width.of(sites, b) for sites in kinds for b in self.options.bits))

    def grid_rules(self) -> list[StepRule]:
        """List the step rules that suit the variant: one that trains in full precision has no table of its own."""
        quantized = any(b != FLOAT for b in self.variant.bits)
        wanted: list[StepRule] = [self.own_steps, *self.options.steps]
        return [s for s in dict.fromkeys(wanted) if quantized or s not in ("table", "rule")]


CHANNELS_LAST = ("channels-last", "native")
"""Evaluation has no native kernels: the next best where those are chosen is the library with the channel last in memory."""


def build_evaluator(task: Task, config: Config, engine: Engine = Engine()) -> Evaluator:
    """Make the evaluator of a task, on the device where its data are."""
    device, precision = task.data.test.device, config.compute.precision
    images = calibration_images(task.data, config.ranges.calibration_images, config.seed, config.privacy.private)
    return Evaluator(task.model, task.variant, config.sites, config.ranges, config.evaluation, task.data, images, task.loss,
                     task.metric, uses_kernels(device, config), precision == "bf16", engine=engine,
                     channels_last=device.type == "cpu" and config.compute.convolution in CHANNELS_LAST,
                     output=task.output)


def uses_kernels(device: torch.device, config: Config) -> bool:
    """Tell if the GPU's kernels may stand in for the library's: not where exact products are asked for."""
    return device.type == "cuda" and config.compute.precision != "fp32" and has_kernels()
