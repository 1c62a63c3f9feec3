"""anybit from Python: train with your own model and arrays, evaluate at any width, open finished runs."""

from __future__ import annotations

import copy
import functools
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
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
    RangeOptions,
)
from anybit.data.clients import gathered, pair_of
from anybit.data.examples import Data, Pipeline, as_examples
from anybit.errors import ConfigError, DataError, Interrupted
from anybit.federated.objective import PerExample, accuracy, cross_entropy
from anybit.federated.sampling import SamplingOptions
from anybit.federated.server import ServerOptions
from anybit.federated.state import trainable_weights
from anybit.federated.variants import StepRule, Variant, baseline, mqat
from anybit.files.schema import plain, read
from anybit.quant.grid import FLOAT, Width
from anybit.quant.ranges import StepTable
from anybit.quant.sites import SiteOptions
from anybit.training.callbacks import EachRound
from anybit.training.course import Callback, Progress, Watch
from anybit.training.evaluation import Evaluator, Score
from anybit.training.loop import Simulation, begin, train
from anybit.training.opening import open_run
from anybit.training.run import with_weights
from anybit.training.stopping import stoppable
from anybit.training.task import Task, Trained

if TYPE_CHECKING:
    from anybit.export.artifact import Artifact


def fit(model: nn.Module, clients: Iterable[Any], test: Any, variant: Variant | None = None, *,
        rounds: int = Config.rounds, cohort: int = Config.cohort, sampling: SamplingOptions = SamplingOptions(),
        seed: int = Config.seed, weighting: Literal["uniform", "examples"] = Config.weighting,
        client: ClientOptions = ClientOptions(), server: ServerOptions = ServerOptions(),
        sites: SiteOptions = SiteOptions(), ranges: RangeOptions = RangeOptions(),
        evaluation: EvaluationOptions = EvaluationOptions(), pipeline: Pipeline = Pipeline(),
        loss: PerExample = cross_entropy, metric: PerExample = accuracy,
        engine: EngineName = "auto", device: str = "auto", compute: ComputeOptions = ComputeOptions(),
        checkpoint_every: int = Config.checkpoint_every,
        path: str | Path | None = None, resume: bool = False,
        on_round: Callable[[Progress], None] | None = None, callbacks: Sequence[Callback] = ()) -> Fitted:
    """Train `model` over `clients` so that it can be quantized to every bit-width.

    clients: per client a pair (inputs, targets), a torch Dataset or DataLoader, a Hugging Face Dataset, or a function that
    loads one of these when the client is drawn · test: the same, on which the server model is evaluated · variant: how
    clients train, `mqat()` if not given · path: a folder to keep the run in; with `resume` an interrupted run there
    goes on, and where there is none yet, it starts; Ctrl-C ends such a run after its round, with a checkpoint · on_round:
    called after every round; callbacks: the same with more to hear, and to see. The model is not changed; the result holds
    the trained copy.
    """
    variant = variant or mqat()
    if not isinstance(model, nn.Module) or not isinstance(variant, Variant):
        raise ConfigError("model must be a torch.nn.Module, and variant a Variant: anybit.mqat(), anybit.baseline(), …")
    examples, split = gathered(clients)
    data = Data(examples, as_examples(*pair_of(test, "test"), "test data"), pipeline)
    task = Task(copy.deepcopy(model), variant, data, split, loss, metric)
    config: Config = read(Config, plain({
        "data": Component(OBJECT), "split": Component(OBJECT), "model": Component(OBJECT),
        "variant": Component(OBJECT, {"is": variant.name}), "rounds": rounds, "cohort": cohort, "sampling": sampling,
        "seed": seed, "weighting": weighting, "client": client, "server": server, "sites": sites, "ranges": ranges,
        "evaluation": evaluation, "engine": engine, "device": device, "compute": compute,
        "checkpoint_every": checkpoint_every}))
    if resume and path is None:
        raise ConfigError("resume=True needs path=…: the folder of the run that goes on")
    opened = open_run(None if path is None else Path(path), config, lambda stored: task, resume=resume)
    watch = Watch()
    told = [*callbacks, *([EachRound(on_round)] if on_round else [])]
    interrupts = [signal.SIGINT] if signal.getsignal(signal.SIGINT) is signal.default_int_handler else []
    with opened.held(), stoppable(watch, functools.partial(print, file=sys.stderr), interrupts if path else ()):
        training = begin(opened.computation, opened.folder, resume, watch, told)
        try:
            trained = train(training, Simulation(training))
        except Interrupted:
            if path is None:
                raise
            raise KeyboardInterrupt(f"stopped after round {training.round} of {rounds}; fit(…, path={str(path)!r}, "
                                    "resume=True) goes on from there") from None
    return _fitted(opened.computation.task, opened.config, trained)


@dataclass(frozen=True)
class Fitted:
    """A trained model with its scores."""

    model: nn.Module
    """A copy of the user's model with the server's weights, on the CPU."""
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

    def export(self, out: str | Path, widths: Sequence[str] = ("W8", "W4", "W2"),
               runtime: Literal["onnx", "executorch", "archive"] = "onnx") -> list[Artifact]:
        """Write an artifact per width into the folder `out`, run each and compare it with the evaluation.

        What `anybit export` does for a run whose model and data have names; needs the extra `export`.
        """
        from anybit.export.fitted import export_fitted

        return export_fitted(self.model, self.steps, self.task, self.config, Path(out),
                             [Width.parse(width) for width in widths], runtime)


def _fitted(task: Task, config: Config, trained: Trained) -> Fitted:
    grid = trained.evaluation["grid"][trained.evaluation["own"]] if trained.evaluation else {}
    scores = {width: Score(**score) for width, score in grid.items()}
    return Fitted(with_weights(task.model, trained.w), trained.table.to(torch.device("cpu")),
                  scores, trained.evaluation, trained.metrics, task, config)


def evaluate(model: nn.Module, test: Any, widths: Sequence[str] = ("FP32", "W8", "W6", "W4", "W3", "W2"), *,
             steps: StepRule = "mse", calibration: Any = None, table: StepTable | None = None,
             sites: SiteOptions = SiteOptions(), ranges: RangeOptions = RangeOptions(), pipeline: Pipeline = Pipeline(),
             loss: PerExample = cross_entropy, metric: PerExample = accuracy) -> dict[str, Score]:
    """Return {width: (loss, metric)} of any model, quantized to each width.

    steps: the step rule (after training), or "table" with a `table` of your own · calibration: training inputs on which
    activation ranges are measured, needed for widths that quantize activations.
    """
    wanted = [Width.parse(w) for w in widths]
    if steps not in ("mse", "minmax", "cover", "table") or (steps == "table") != (table is not None):
        raise ConfigError("steps: use 'mse', 'minmax' or 'cover', or 'table' together with table=…")
    if calibration is None and any(w.activations != FLOAT for w in wanted) and table is None:
        raise DataError("widths with quantized activations need calibration=…: training inputs to measure ranges on")
    examples = as_examples(*pair_of(test, "test"), "test data")
    seen = examples.x[:1] if calibration is None else as_examples(calibration, np.zeros(len(calibration)), "calibration").x
    evaluator = Evaluator(model, baseline(), sites, ranges, EvaluationOptions(), Data(examples, examples, pipeline),
                          pipeline(seen), loss, metric)
    w = trainable_weights(model)
    if table is None:
        table = evaluator.finder(w, StepTable({})).table(steps, "W" if calibration is None else "WA")
    return evaluator.score(w, table, wanted)
