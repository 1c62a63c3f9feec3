"""anybit from Python: train with your own model and arrays, evaluate at any width, open finished runs."""

from __future__ import annotations

import copy
import functools
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import nn

from anybit.config import (
    OBJECT,
    ClientOptions,
    Component,
    ComputeOptions,
    Config,
    EngineName,
    EvaluationOptions,
    PrivacyOptions,
    RangeOptions,
)
from anybit.data.clients import Clients, gathered, pair_of
from anybit.data.examples import Data, Pipeline, as_examples, as_inputs, check_alike
from anybit.errors import ConfigError, DataError, Interrupted
from anybit.federated.metrics import LOSSES, Metric, PerExample, cross_entropy, meaning
from anybit.federated.own import Course, Sampler
from anybit.federated.sampling import SamplingOptions
from anybit.federated.server import ServerOptimizer, ServerOptions
from anybit.federated.state import finite
from anybit.federated.variants import StepRule, Variant, baseline, mqat
from anybit.quant.at_width import at_width
from anybit.quant.checks import check_is_model
from anybit.quant.grid import FLOAT, Width
from anybit.quant.ranges import StepTable
from anybit.quant.sites import SiteOptions, all_parameters
from anybit.schema import plain, read
from anybit.tensors import picked
from anybit.training import run
from anybit.training.build import loss_and_metric
from anybit.training.callbacks import EachRound
from anybit.training.checks import check_outputs
from anybit.training.course import Callback, Progress, Watch
from anybit.training.evaluation import Evaluator, Score, build_evaluator
from anybit.training.identity import qualified_name
from anybit.training.loop import Simulation, begin, train
from anybit.training.machine import computing
from anybit.training.opening import open_run
from anybit.training.per_client import per_client
from anybit.training.progress_line import ProgressLine
from anybit.training.records import promise
from anybit.training.stopping import stoppable
from anybit.training.task import Task, Trained

if TYPE_CHECKING:
    from anybit.export.artifact import Artifact


def fit(model: nn.Module, clients: Iterable[Any], test: Any, variant: Variant | None = None, *,
        rounds: int = Config.rounds, cohort: int | None = None, sampling: SamplingOptions = SamplingOptions(),
        seed: int = Config.seed, weighting: Literal["uniform", "examples"] = Config.weighting,
        client: ClientOptions = ClientOptions(), server: ServerOptions = ServerOptions(),
        sites: SiteOptions = SiteOptions(), ranges: RangeOptions = RangeOptions(),
        evaluation: EvaluationOptions = EvaluationOptions(), privacy: PrivacyOptions = PrivacyOptions(),
        pipeline: Pipeline = Pipeline(),
        loss: PerExample | str = cross_entropy, metric: PerExample | str | None = None, output: str | int | None = None,
        engine: EngineName = "auto", device: str = "auto", compute: ComputeOptions = ComputeOptions(),
        threads: int | None = None, checkpoint_every: int = Config.checkpoint_every,
        path: str | Path | None = None, resume: bool = False,
        on_round: Callable[[Progress], None] | None = None, callbacks: Sequence[Callback] = (),
        server_optimizer: ServerOptimizer | None = None, sampler: Sampler | None = None,
        schedule: Course | None = None, progress: bool | None = None) -> Fitted:
    """Train `model` over `clients` so that it can be quantized to every bit-width.

    clients: per client a pair (inputs, targets), a torch Dataset or DataLoader, a Hugging Face Dataset, or a function that
    loads one of these when the client is drawn · test: the same, on which the server model is evaluated · variant: how
    clients train, `mqat()` if not given · cohort: clients of a round, 10 (or all, where there are fewer) if not given ·
    loss, metric: functions of (outputs, targets) that return one value per example, or names ("mse"); without a metric it is
    accuracy for scores of classes with whole-number labels, and else the loss itself; an `anybit.Metric` says its unit and
    which direction is better · output: the key or position of the model's output, where it returns several; none: "logits",
    or the only tensor · threads: of the CPU; none: torch's choice · path: a folder to keep the run in; with `resume` an
    interrupted run there goes on, if model, variant, data, loss and metric are still the same, also to more `rounds` than it
    was begun with, and where there is none yet, it starts; Ctrl-C ends such a run after its round, with a checkpoint ·
    on_round: called after every round; callbacks: the same with more to hear, and to see · server_optimizer, sampler,
    schedule: of your own, in place of those that `server` and `sampling` name: ServerOptimizer(init, step), f(seed, rounds
    before, clients, size) → client numbers, f(rounds before, rounds) → factor of the server's learning rate · progress: a
    line on stderr; none: in a terminal or a notebook, and elsewhere plain lines if it takes longer. The model is not
    changed; the result holds the trained copy.
    """
    variant = variant or mqat()
    if not isinstance(model, nn.Module):
        what = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
        raise ConfigError(f"model must be a torch.nn.Module, and is {what}")
    if not isinstance(variant, Variant):
        raise ConfigError(f"variant must be a Variant, and is {variant!r:.40}: give anybit.mqat(), anybit.baseline(), …")
    if not isinstance(pipeline, Pipeline):
        raise ConfigError(f"pipeline is a {type(pipeline).__name__}: give an anybit.Pipeline, or change the inputs before")
    _check_followers(on_round, callbacks)
    _check_options(sampling=sampling, client=client, server=server, sites=sites, ranges=ranges, evaluation=evaluation,
                   compute=compute, privacy=privacy)
    examples, split = gathered(clients)
    data = Data(examples, as_examples(*pair_of(test, "test"), "test data"), pipeline)
    check_alike(data.test, data.train, "test data", "the clients")
    check_is_model(model)
    model = copy.deepcopy(model)
    ids = clients.known_ids() if isinstance(clients, Clients) else None
    task = Task(model, variant, data, split, *loss_and_metric(loss, metric, model, data, output), output, server_optimizer,
                sampler, schedule, ids)
    config: Config = read(Config, plain({
        "data": Component(OBJECT), "split": Component(OBJECT), "model": Component(OBJECT),
        "variant": Component(OBJECT, {"is": variant.name}), "rounds": rounds, "cohort": cohort, "sampling": sampling,
        "seed": seed, "weighting": weighting, "client": client, "server": server, "sites": sites, "ranges": ranges,
        "evaluation": evaluation, "privacy": privacy, "loss": _named(task.loss), "metric": _named(task.metric),
        "output": output, "engine": engine, "device": device, "compute": compute, "threads": threads,
        "checkpoint_every": checkpoint_every}))
    if path is not None and not isinstance(path, str | os.PathLike):
        raise ConfigError(f"path is a {type(path).__name__}: give the folder to keep the run in, as text or a Path")
    if resume and path is None:
        raise ConfigError("resume=True needs path=…: the folder of the run that goes on")
    config, say = _with_own(config, task), functools.partial(print, file=sys.stderr)
    opened = open_run(None if path is None else Path(path), config, lambda stored: task, resume=resume, warn=say,
                      rounds=rounds if resume else None)
    watch, line = Watch(), ProgressLine(live=bool(progress) or ProgressLine.watched())
    told = [*callbacks, *([EachRound(on_round)] if on_round else []), *([] if progress is False else [line])]
    interrupts = [signal.SIGINT] if signal.getsignal(signal.SIGINT) is signal.default_int_handler else []
    with opened.held(), stoppable(watch, say, interrupts if path else ()), closing(line):
        training = begin(opened.computation, opened.folder, resume, watch, told)
        try:
            trained = train(training, Simulation(training))
        except Interrupted:
            if path is None:
                raise
            raise KeyboardInterrupt(f"stopped after round {training.round} of {rounds}; fit(…, path={str(path)!r}, "
                                    "resume=True) goes on from there") from None
    return _fitted(opened.computation.task, opened.config, trained)


def _check_followers(on_round: Any, callbacks: Any) -> None:
    if on_round is not None and not callable(on_round):
        raise ConfigError(f"on_round is a {type(on_round).__name__}: give a function of an anybit.Progress")
    if isinstance(callbacks, Callback):
        raise ConfigError(f"callbacks is a single {type(callbacks).__name__}: give a list, callbacks=[…]")
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise ConfigError(f"callbacks holds a {type(callback).__name__}: derive it from anybit.Callback, or pass a "
                              "function as on_round")


def _check_options(**given: Any) -> None:
    wanted = {f.name: f.default for f in fields(Config)}
    for name, options in given.items():
        if not isinstance(options, kind := type(wanted[name])):
            raise ConfigError(f"{name} is a {type(options).__name__}: give an anybit.{kind.__name__}")


def _named(function: PerExample) -> str:
    """Return the name of a loss or metric as a config has it: anybit's own, and those with a name, by their short one."""
    short = isinstance(function, Metric) or function in LOSSES.values()
    return meaning(function).name if short else qualified_name(function)


def _with_own(config: Config, task: Task) -> Config:
    """Return the config with the user's own parts in it, as objects."""
    server = replace(config.server, optimizer=OBJECT if task.server else config.server.optimizer,
                     schedule=OBJECT if task.schedule else config.server.schedule)
    sampling = replace(config.sampling, policy=OBJECT) if task.sampler else config.sampling
    return replace(config, server=server, sampling=sampling)


@dataclass(frozen=True)
class Fitted:
    """A trained model with its scores."""

    model: nn.Module
    """A copy of the user's model with the server's weights, on the CPU, in evaluation mode."""
    steps: StepTable = field(repr=False)
    """The steps to quantize it with, of every site at every bit-width."""
    scores: dict[str, Score]
    """{width: (loss, metric)} at the variant's own steps, e.g. scores["W2"].metric."""
    evaluation: dict[str, Any] = field(repr=False)
    """All widths × step rules."""
    metrics: list[dict[str, Any]] = field(repr=False)
    """One entry per round."""
    task: Task = field(repr=False)
    config: Config = field(repr=False)

    def quantized(self, width: str) -> nn.Module:
        """Return the model at a width, e.g. "W4", as the evaluation computes it: a copy for evaluation, at the run's steps.

        Weights are rounded; a width that quantizes activations, as "WA4", puts sites in front of the layers.
        """
        return at_width(self.model, self.steps, Width.parse(width), self.config.sites)

    def evaluate(self, widths: Sequence[str], steps: StepRule | None = None) -> dict[str, Score]:
        """Return {width: (loss, metric)} on the test set, any width; `steps`: the step rule, the run's own unless given."""
        with computing(self.config):
            evaluator = build_evaluator(self.task.to(torch.device("cpu")), self.config)
            w = {name: p.detach() for name, p in self.model.named_parameters()}
            table = self.steps if steps is None else evaluator.finder(w, self.steps).table(steps)
            return evaluator.score(w, table, Width.parse_all(widths))

    @property
    def client_ids(self) -> list[Any]:
        """The owner of each client's data, in the order of `per_client`: ids of `by_client`, else 0, 1, …"""
        return list(range(len(self.task.split)) if self.task.client_ids is None else self.task.client_ids)

    def per_client(self, width: str) -> np.ndarray:
        """Return the metric of the model at a width on each client's own training examples, in the order of `client_ids`."""
        task = self.task.to(torch.device("cpu"))
        w = {name: p.detach() for name, p in self.model.named_parameters()}
        with computing(self.config):
            return per_client(build_evaluator(task, self.config), w, self.steps, Width.parse(width), task.split)

    def export(self, out: str | Path, widths: Sequence[str] = ("W8", "W4", "W2"),
               runtime: Literal["onnx", "executorch", "archive", "c"] = "onnx",
               min_accuracy: float | None = None) -> list[Artifact]:
        """Write an artifact per width into the folder `out`, run each and compare it with the evaluation.

        A width that scores worse than `min_accuracy` is an error and is not written; by default, one that keeps less than
        half of what full precision gains over chance; 0: none is.

        What `anybit export` does for a run whose model and data have names; needs the extra `export`.
        """
        from anybit.export.fitted import export_fitted

        _check_runtime(runtime)
        return export_fitted(self.model, self.steps, self.task, self.config, Path(out), Width.parse_all(widths), runtime,
                             min_accuracy, promise(self.evaluation))


class Run(run.Run):
    """A run folder, opened."""

    def export(self, out: str | Path | None = None, widths: Sequence[str] = ("W8", "W4", "W2"),
               runtime: Literal["onnx", "executorch", "archive", "c"] = "onnx",
               min_accuracy: float | None = None) -> list[Artifact]:
        """Write an artifact per width, as `Fitted.export`; `out`: if not given, the folder `export` of the run."""
        from anybit.export.fitted import export_run

        _check_runtime(runtime)
        return export_run(self, None if out is None else Path(out), Width.parse_all(widths), runtime, min_accuracy)


def _check_runtime(runtime: str) -> None:
    if runtime not in ("onnx", "executorch", "archive", "c"):
        raise ConfigError(f"runtime {runtime!r}: use 'onnx', 'executorch', 'archive' or 'c'")


def _fitted(task: Task, config: Config, trained: Trained) -> Fitted:
    grid = trained.evaluation["grid"][trained.evaluation["own"]] if trained.evaluation else {}
    scores = {width: Score(**score) for width, score in grid.items()}
    table = replace(trained.table.to(torch.device("cpu")), sites=config.sites)
    model = run.with_weights(task.model, trained.w).eval()
    return Fitted(model, table, scores, trained.evaluation, trained.metrics, task, config)


def evaluate(model: nn.Module, test: Any, widths: Sequence[str] = ("FP32", "W8", "W6", "W4", "W3", "W2"), *,
             steps: StepRule = "mse", calibration: Any = None, table: StepTable | None = None,
             sites: SiteOptions | None = None, ranges: RangeOptions = RangeOptions(), pipeline: Pipeline = Pipeline(),
             loss: PerExample | str = cross_entropy, metric: PerExample | str | None = None,
             output: str | int | None = None) -> dict[str, Score]:
    """Return {width: (loss, metric)} of any model, quantized to each width.

    steps: the step rule (after training), or "table" with a `table` of your own · calibration: training inputs on which
    activation ranges are measured, needed for widths that quantize activations · sites: those of the table unless given ·
    output: as in `fit`.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model must be a torch.nn.Module, and is a {type(model).__name__}")
    wanted = Width.parse_all(widths)
    if steps not in ("mse", "minmax", "cover", "table") or (steps == "table") != (table is not None):
        raise ConfigError("steps: use 'mse', 'minmax' or 'cover', or 'table' together with table=…")
    if table is not None and not isinstance(table, StepTable):
        raise ConfigError(f"table is a {type(table).__name__}: give a StepTable, such as the steps of what fit returned")
    if calibration is None and any(w.activations != FLOAT for w in wanted) and table is None:
        raise DataError("widths with quantized activations need calibration=…: training inputs to measure ranges on")
    sites = sites or (table.sites if table else None) or SiteOptions()
    examples = as_examples(*pair_of(test, "test"), "test data")
    seen = picked(examples.x, slice(1)) if calibration is None else as_inputs(calibration, "calibration")
    data = Data(examples, examples, pipeline)
    functions = loss_and_metric(loss, metric, model, data, output)
    for inputs in (examples.x, seen):
        one = pipeline(picked(inputs, slice(1)))
        check_outputs(model, sites, one, output, examples if functions[0] is cross_entropy else None)
    evaluator = Evaluator(model, baseline(), sites, ranges, EvaluationOptions(), data, pipeline(seen), *functions,
                          output=output)
    w = finite(all_parameters(model, {}))
    if table is None:
        table = evaluator.finder(w, StepTable({})).table(steps, "W" if calibration is None else "WA")
    return evaluator.score(w, table, wanted)
