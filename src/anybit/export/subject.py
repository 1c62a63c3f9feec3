"""The subject of an export: a trained model, its step sizes, and the data on which artifacts are verified."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx, nn

from anybit.config import Config, chosen
from anybit.data.examples import Data
from anybit.environment import environment
from anybit.errors import ConfigError, RunError
from anybit.export.packing import Codes
from anybit.federated.variants import StepRule
from anybit.files.reading import read_json
from anybit.inputs import Inputs, length
from anybit.quant.calibrate import activation_table
from anybit.quant.grid import FLOAT, Grid, Width, codes
from anybit.quant.modules import Quantizer
from anybit.quant.ranges import StepTable
from anybit.quant.sites import input_of, parameter_of, prepare, quantizers
from anybit.tensors import picked
from anybit.training.evaluation import Evaluator, build_evaluator
from anybit.training.machine import computing
from anybit.training.records import promise
from anybit.training.run import Run
from anybit.training.run_folder import RunFolder
from anybit.training.task import Task

Trace = tuple[fx.Graph, dict[str, Tensor]]
"""A network's operations on one example, and {placeholder: the parameter or buffer that it stands for}."""
_MEASURED = "; activations measured on "


class Integers(NamedTuple):
    """A weight in whole numbers alone: Q(w) = step · (factor · codes + low)."""

    factor: int
    low: int
    step: Tensor


@dataclass(frozen=True)
class QuantizedWeight:
    """A weight on its grid: Q(w) = step · (codes + low); low is a whole number, or lies halfway between two."""

    codes: Codes
    step: Tensor
    low: float
    bits: int

    def integers(self) -> Integers:
        """Return the weight as integer kernels take it: half-integer levels are odd numbers at half the step size.

        At 2 bits step · (codes − 1½) = step/2 · (2 · codes − 3). Files hold the codes themselves, in `bits` bits.
        """
        factor = 1 if self.low == int(self.low) else 2
        return Integers(factor, int(factor * self.low), self.step / factor)


@dataclass(frozen=True)
class Subject:
    """A trained model with its step sizes, on the CPU and in evaluation mode."""

    model: nn.Module
    evaluator: Evaluator
    table: StepTable
    steps: str
    """The source of the step sizes, in words."""
    title: str
    config: Config | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)
    """The environment of the training."""
    measured: bool = False
    """Whether step sizes of activations were measured for the export."""
    privacy: str | None = None
    """The promise of the training to its clients; none: none."""

    @property
    def data(self) -> Data:
        return self.evaluator.data

    @property
    def images(self) -> Inputs:
        """Training images, as the model sees them."""
        return self.evaluator.images

    @property
    def from_bytes(self) -> bool:
        """Whether the data are bytes, of which the model sees 1/255."""
        return isinstance(self.data.test.x, Tensor) and self.data.test.x.dtype == torch.uint8

    @property
    def output(self) -> str | int | None:
        """Key or position of the model's output, where it returns several."""
        return self.evaluator.output

    def test_batches(self, size: int) -> Iterator[Inputs]:
        """Yield the test inputs in batches, as the model sees them."""
        test = self.data.test
        return (self.data.pipeline(picked(test.x, slice(i, i + size))) for i in range(0, len(test), size))

    def w(self) -> dict[str, Tensor]:
        """Return the parameters by name."""
        return {name: p.detach() for name, p in self.model.named_parameters()}

    @cached_property
    def quantizers(self) -> dict[str, Quantizer]:
        """All sites by name."""
        return quantizers(prepare(self.model, options=self.evaluator.sites))

    def bits(self, site: str, width: Width) -> int:
        """Return the bits of a site at a width: 32 where it is not quantized."""
        return self.quantizers[site].bits_at(width)

    def activation_sites(self) -> list[str]:
        return [name for name, site in self.quantizers.items() if site.kind == "activations"]

    def grid(self, site: str, width: Width) -> Grid:
        """Return the grid of a site that `width` quantizes."""
        return self.quantizers[site].grid_at(width, self.table.steps[site])

    @cached_property
    def layers(self) -> list[str]:
        """The names of the quantized layers; of those with several inputs, of the inputs."""
        return [input_of(site) for site in self.activation_sites()]

    @cached_property
    def matrices(self) -> dict[str, list[str]]:
        """{quantized parameter: the layers (or inputs) that it, or its parts in this order, is multiplied with}."""
        return {parameter_of(name): [input_of(x) for x in site.fed_by] for name, site in self.quantizers.items()
                if site.kind == "weights"}

    @cached_property
    def input_sites(self) -> dict[str, str]:
        """{layer or input: its activation site}."""
        return {input_of(site): site for site in self.activation_sites()}

    @cached_property
    def weight_of(self) -> dict[str, str]:
        """{layer or input: the parameter that it is multiplied with}."""
        return {layer: parameter for parameter, layers in self.matrices.items() for layer in layers}

    def fed(self, parameter: str, layer: str) -> tuple[str, str | None]:
        """Return (the layer, the activation site of its input) where a parameter is used; of tied layers, the first's."""
        fed_by = self.matrices.get(parameter, [])
        layer = layer if layer in fed_by or not fed_by else fed_by[0]
        return layer, self.input_sites.get(layer) if fed_by else None

    @property
    def float_bytes(self) -> int:
        """Bytes of the model as it was trained; tied parameters count once."""
        tensors = {t.data_ptr(): t for t in self.model.state_dict().values()}
        return sum(t.numel() * t.element_size() for t in tensors.values())

    def quantized_weights(self, width: Width) -> dict[str, QuantizedWeight]:
        """Return {parameter: its integers} of every weight that `width` quantizes."""
        out, w = {}, self.w()
        for name in self.matrices:
            if (bits := self.bits(f"{name}_quantizer", width)) != FLOAT:
                grid = self.grid(f"{name}_quantizer", width)
                out[name] = QuantizedWeight(codes(w[name], grid).numpy().astype(np.uint8), grid.step, float(grid.low), bits)
        return out

    def steps_at(self, width: Width) -> str:
        """Return the source of the step sizes that a width needs: an artifact does not depend on others beside it."""
        return self.steps.partition(_MEASURED)[0] if width.activations == FLOAT else self.steps

    def untrained(self, width: Width) -> str:
        """Return a warning if the model was not trained for a width; empty if it was."""
        variant = self.evaluator.variant
        if all(bits == FLOAT or (kind in variant.sites and bits in variant.bits)
               for kind, bits in (("W", width.weights), ("A", width.activations))):
            return ""
        trained = ", ".join(str(Width.of(variant.sites, b)) for b in variant.bits)
        return f"{width} was not trained for (variant '{variant.name}' trains at {trained})"


def from_run(run: Run, steps: StepRule | None = None, calibrate: bool = False, activations: bool = True) -> Subject:
    """Make the subject of a finished run, with the run's own step rule unless `steps` names another.

    activations: True if a width quantizes them. A run that trained only weights has its activation step sizes measured on
    its training images, by the rule of its config; `calibrate` does so for any run.
    """
    run.folder.evaluation()
    evaluator = _evaluator(run.task(), run.config, run.model())
    rule = steps or evaluator.own_steps
    measured = activations and (calibrate or not _trained_activations(evaluator, rule))
    if activations and not measured:
        _check_activation_steps(run, evaluator)
    known = run.steps("weights" if measured or not activations else None)
    title = f"{run.config.model.name} on {run.config.data.name}, {evaluator.variant.name}"
    return replace(_subject(evaluator, run.config, known, rule, measured, title), environment=_environment(run.folder),
                   privacy=promise(run.evaluation))


def from_fitted(model: nn.Module, steps: StepTable, task: Task, config: Config, activations: bool = True) -> Subject:
    """Make the subject of a model that was trained in this process, with the variant's own step rule."""
    evaluator = _evaluator(task, config, copy.deepcopy(model))
    measured = activations and not _trained_activations(evaluator, evaluator.own_steps)
    title = f"{type(model).__name__}, {evaluator.variant.name}"
    return replace(_subject(evaluator, config, steps, evaluator.own_steps, measured, title), environment=environment())


def _environment(folder: RunFolder) -> Mapping[str, Any]:
    path = folder.file("environment.json")
    stored = read_json(path) if path.exists() else {}
    return stored if isinstance(stored, dict) else {}


def _evaluator(task: Task, config: Config, model: nn.Module) -> Evaluator:
    task = replace(task, model=model.eval()).to(torch.device("cpu"))
    return build_evaluator(task, chosen(config, task.variant.choices))


def _trained_activations(evaluator: Evaluator, rule: StepRule) -> bool:
    """Return True if the training had step sizes for activations and the rule keeps them."""
    return "A" in evaluator.variant.sites and rule in ("table", "rule")


def _subject(evaluator: Evaluator, config: Config, known: StepTable, rule: StepRule, measured: bool, title: str) -> Subject:
    w = {name: p.detach() for name, p in evaluator.model.named_parameters()}
    with computing(config):
        table = evaluator.finder(w, known).table(rule, "W")
    words = {"table": "the table of the training", "rule": "the step rule from the trained bit-width"}
    text = words.get(rule, f"estimated from the trained model ({rule})")
    if measured:
        with computing(config):
            calibrated = activation_table(evaluator.model, evaluator.sites, w, evaluator.images,
                                          evaluator.ranges.activations)
        kind = "test" if config.privacy.private else "training"
        table, text = table.merged(calibrated), f"{text}{_MEASURED}{length(evaluator.images)} {kind} images"
    return Subject(evaluator.model, evaluator, table, text, title, config, measured=measured)


def _check_activation_steps(run: Run, evaluator: Evaluator) -> None:
    """Raise an error if step sizes at which activations were trained are missing."""
    stored = run.folder.steps()
    sites = quantizers(prepare(evaluator.model, options=evaluator.sites), "activations")
    missing = [site for site in sites if not isinstance(stored, Mapping) or site not in stored]
    if missing:
        raise RunError(f"{run.folder.file('steps.json')} has no activation steps (site '{missing[0]}'): measure them on "
                       f"the run's training images with 'anybit export {run.folder.path} --calibrate'")


def check_width(width: Width) -> Width:
    """Return the width if an artifact can have it."""
    if width.weights == FLOAT and width.activations != FLOAT:
        raise ConfigError(f"width {width}: with weights in full precision an artifact is neither smaller nor faster; "
                          f"write W8A{width.activations}")
    return width
