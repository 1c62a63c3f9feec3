"""anybit from Python: train with your own model and arrays, evaluate at any width, open finished runs."""

from __future__ import annotations

import copy
import functools
import signal
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from anybit.config import ClientOptions, Component, ComputeOptions, Config, EngineName, EvaluationOptions, RangeOptions
from anybit.data.examples import Data, Examples, Pipeline, as_examples
from anybit.environment import environment
from anybit.errors import ConfigError, DataError, Interrupted, ModelError, RunError
from anybit.federated.objective import PerExample, accuracy, cross_entropy
from anybit.federated.sampling import SamplingOptions
from anybit.federated.server import ServerOptions
from anybit.federated.variants import Steps, Variant, baseline, mqat
from anybit.federated.weights import learned_table, trainable
from anybit.files.schema import plain, read
from anybit.quant.grid import FLOAT, Width
from anybit.quant.ranges import StepTable
from anybit.quant.sites import Kind, SiteOptions, step_shapes
from anybit.training.build import build_task
from anybit.training.engine_choice import calibrated
from anybit.training.evaluation import Evaluator, Score
from anybit.training.follower import Follower
from anybit.training.loop import Training
from anybit.training.run_folder import RunFolder
from anybit.training.stopping import stoppable
from anybit.training.task import Progress, Task, Trained, Watch

if TYPE_CHECKING:
    from anybit.export.exporting import Artifact

Arrays = tuple[Any, Any]
"""(inputs, targets): numpy arrays or tensors with the example as first dimension."""

OBJECT = "<python object>"
"""What a config says of a model, data or variant that was passed as an object."""


def fit(model: nn.Module, clients: Sequence[Arrays], test: Arrays, variant: Variant | None = None, *,
        rounds: int = Config.rounds, cohort: int = Config.cohort, sampling: SamplingOptions = SamplingOptions(),
        seed: int = Config.seed, weighting: Literal["uniform", "examples"] = Config.weighting,
        client: ClientOptions = ClientOptions(), server: ServerOptions = ServerOptions(),
        sites: SiteOptions = SiteOptions(), ranges: RangeOptions = RangeOptions(),
        evaluation: EvaluationOptions = EvaluationOptions(), pipeline: Pipeline = Pipeline(),
        loss: PerExample = cross_entropy, metric: PerExample = accuracy,
        engine: EngineName = "auto", device: str = "auto", compute: ComputeOptions = ComputeOptions(),
        checkpoint_every: int = Config.checkpoint_every,
        path: str | Path | None = None, resume: bool = False,
        on_round: Callable[[Progress], None] | None = None) -> Fitted:
    """Train `model` over `clients` so that it can be quantized to every bit-width.

    clients: one (inputs, targets) pair per client · test: the pair the server model is evaluated on · variant: how
    clients train, `mqat()` if not given · path: a folder to keep the run in; with `resume` an interrupted run there
    goes on, and where there is none yet, it starts; Ctrl-C ends such a run after its round, with a checkpoint. The model
    is not changed; the result holds the trained copy.
    """
    variant = variant or mqat()
    if not isinstance(model, nn.Module) or not isinstance(variant, Variant):
        raise ConfigError("model must be a torch.nn.Module, and variant a Variant: anybit.mqat(), anybit.baseline(), …")
    parts = [as_examples(*_pair(arrays, f"client {i}"), f"client {i}") for i, arrays in enumerate(clients)]
    if not parts:
        raise DataError("clients is empty: give one (inputs, targets) pair per client")
    ends = np.cumsum([len(part) for part in parts])
    split = np.split(np.arange(ends[-1]), ends[:-1])
    try:
        train = Examples(torch.cat([p.x for p in parts]), torch.cat([p.y for p in parts]))
    except RuntimeError as error:
        raise DataError(f"the clients' arrays do not fit together ({str(error).splitlines()[0]})") from None
    data = Data(train, as_examples(*_pair(test, "test"), "test data"), pipeline)
    task = Task(copy.deepcopy(model), variant, data, split, loss, metric)
    config: Config = read(Config, plain({
        "data": Component(OBJECT), "split": Component(OBJECT), "model": Component(OBJECT),
        "variant": Component(OBJECT, {"is": variant.name}), "rounds": rounds, "cohort": cohort, "sampling": sampling,
        "seed": seed, "weighting": weighting, "client": client, "server": server, "sites": sites, "ranges": ranges,
        "evaluation": evaluation, "engine": engine, "device": device, "compute": compute,
        "checkpoint_every": checkpoint_every}))
    if resume and path is None:
        raise ConfigError("resume=True needs path=…: the folder of the run that goes on")
    folder = RunFolder(Path(path)) if path is not None and resume and Path(path, "config.json").exists() else None
    if folder:
        stored = read(Config, folder.config())
        kept = replace(config, engine=stored.engine, threads=stored.threads,
                       compute=replace(config.compute, convolution=config.compute.convolution or
                                       stored.compute.convolution))
        if plain(kept) != folder.config() or engine not in ("auto", stored.engine):
            raise RunError(f"{path} holds a run with another config: start a new one in another folder")
    training = Training(task, kept if folder else calibrated(config, task),
                        Watch(on_round=on_round) if on_round else Watch())
    if path is None:
        return _fitted(training, training.train())
    if not training.engine.leads:
        folder = Follower(Path(path))
    elif folder is None:
        folder = RunFolder.create(Path(path), plain(training.config), environment(), split)
    interrupts = [signal.SIGINT] if signal.getsignal(signal.SIGINT) is signal.default_int_handler else []
    with folder.locked(), stoppable(training.watch, functools.partial(print, file=sys.stderr), interrupts):
        try:
            return _fitted(training, training.train(folder, resume))
        except Interrupted:
            raise KeyboardInterrupt(f"stopped after round {training.round} of {rounds}; fit(…, path={str(path)!r}, "
                                    "resume=True) goes on from there") from None


def _pair(arrays: Any, what: str) -> Arrays:
    if not isinstance(arrays, list | tuple) or len(arrays) != 2:
        raise DataError(f"{what} is a {type(arrays).__name__}: give a pair (inputs, targets)")
    return arrays[0], arrays[1]


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

        return export_fitted(self, Path(out), [Width.parse(width) for width in widths], runtime)


def _fitted(training: Training, trained: Trained) -> Fitted:
    model = with_weights(training.task.model, trained.w)
    own = trained.evaluation["grid"][trained.evaluation["own"]]
    return Fitted(model, trained.table.to(torch.device("cpu")), {w: Score(**s) for w, s in own.items()},
                  trained.evaluation, trained.metrics, training.task, training.config)


def with_weights(model: nn.Module, w: dict[str, Tensor]) -> nn.Module:
    """A copy of `model`, on the CPU, with the parameters `w`."""
    model = copy.deepcopy(model).to("cpu")
    parameters = dict(model.named_parameters())
    for name, value in w.items():
        if name not in parameters or parameters[name].shape != value.shape:
            raise ModelError(f"the trained parameter '{name}' {tuple(value.shape)} does not fit the model: is it the one "
                             "that was trained?")
        parameters[name].data.copy_(value)
    return model


def evaluate(model: nn.Module, test: Arrays, widths: Sequence[str] = ("FP32", "W8", "W6", "W4", "W3", "W2"), *,
             steps: Steps = "mse", calibration: Any = None, table: StepTable | None = None,
             sites: SiteOptions = SiteOptions(), ranges: RangeOptions = RangeOptions(), pipeline: Pipeline = Pipeline(),
             loss: PerExample = cross_entropy, metric: PerExample = accuracy) -> dict[str, Score]:
    """{width: (loss, metric)} of any model, quantized to each width.

    steps: how steps are found (after training), or "table" with a `table` of your own · calibration: training inputs on
    which activation ranges are measured, needed for widths that quantize activations.
    """
    wanted = [Width.parse(w) for w in widths]
    if steps not in ("mse", "minmax", "cover", "table") or (steps == "table") != (table is not None):
        raise ConfigError("steps: use 'mse', 'minmax' or 'cover', or 'table' together with table=…")
    if calibration is None and any(w.activations != FLOAT for w in wanted) and table is None:
        raise DataError("widths with quantized activations need calibration=…: training inputs to measure ranges on")
    examples = as_examples(*test, "test data")
    seen = examples.x[:1] if calibration is None else as_examples(calibration, np.zeros(len(calibration)), "calibration").x
    evaluator = Evaluator(model, baseline(), sites, ranges, EvaluationOptions(), Data(examples, examples, pipeline),
                          pipeline(seen), loss, metric)
    w = trainable(model)
    if table is None:
        table = evaluator.table(w, StepTable({}), steps, "W" if calibration is None else "WA")
    return evaluator.score(w, table, wanted)


class Run:
    """A run folder, opened."""

    def __init__(self, folder: RunFolder, config: Config, model: nn.Module | None, trusted: Collection[str]) -> None:
        self.folder, self.config, self._model, self._trusted = folder, config, model, trusted

    @staticmethod
    def load(path: str | Path, model: nn.Module | None = None, trusted: Collection[str] = ()) -> Run:
        """Open a run. `model` is needed only if the run was trained from a Python object; code outside anybit is
        imported only from `trusted` modules."""
        folder = RunFolder.open(Path(path))
        try:
            config = read(Config, folder.config())
        except ConfigError as error:
            raise RunError(f"{folder.file('config.json')}: {error}") from None
        return Run(folder, config, model, trusted)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        return self.folder.lines("metrics")

    @property
    def evaluation(self) -> dict[str, Any]:
        """All widths × step rules, as at the end of the run."""
        return self.folder.evaluation()

    def task(self) -> Task:
        """The objects that the run's config names, rebuilt, with the split that was saved."""
        if OBJECT in (self.config.data.name, self.config.model.name, self.config.variant.name):
            then = f"continue it with anybit.fit(…, path='{self.folder.path}', resume=True)"
            if self.folder.finished:
                then = "use what fit returned, or anybit.evaluate(run.model(), test, steps='table', table=run.steps())"
            raise RunError(f"{self.folder.path} was trained from Python objects, which a folder does not hold: {then}")
        return replace(build_task(self.config, self._trusted), split=self.folder.split())

    def model(self) -> nn.Module:
        """The trained model."""
        model = self._model if self._model is not None else self.task().model
        return with_weights(model, self.folder.model())

    def steps(self, kind: Kind | None = None) -> StepTable:
        """The steps to quantize the model with, at every bit-width: of every site, or of its weights or activations."""
        return StepTable.from_json(self.folder.steps(), step_shapes(self.model(), self.config.sites, kind))

    def evaluate(self, widths: Sequence[str], steps: Steps | None = None) -> dict[str, Score]:
        """{width: (loss, metric)} on the run's test set; `steps` as in the training unless given."""
        training, w = self._trained()
        evaluator, table = training.evaluator, self.steps().to(training.device)
        if steps is not None and steps != evaluator.own_steps:
            if not self.folder.checkpoints():
                raise RunError(f"{self.folder.path} has no checkpoint, and only that holds the steps of the training: "
                               f"evaluate it at its own steps ('{evaluator.own_steps}')")
            newest = self.folder.load_checkpoint(self.folder.checkpoints()[-1], training.device)
            table = evaluator.table(w, learned_table(newest.state, newest.table), steps)
        return evaluator.score(w, table, [Width.parse(width) for width in widths])

    def mixed(self, on_scores: Callable[[dict[str, Score]], None] = lambda scores: None) -> dict[str, Score]:
        """{width: (loss, metric)} of every pair of bits of weights and activations, kept with the run's evaluation.

        on_scores: gets them before they are written, which a disk may refuse.
        """
        training, w = self._trained()
        found = training.evaluator.mixed(w, self.steps().to(training.device))
        scores = {width: Score(**score) for width, score in found.items()}
        on_scores(scores)
        self.folder.save_evaluation({**self.evaluation, "mixed": found})
        return scores

    def _trained(self) -> tuple[Training, dict[str, Tensor]]:
        training = Training(self.task(), self.config)
        return training, {name: p.to(training.device) for name, p in self.folder.model().items()}
