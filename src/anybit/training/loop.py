"""The round loop: joins the federated algorithm and an engine, evaluates, checkpoints, and reports what happens."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from anybit.config import Config
from anybit.engines.base import Program
from anybit.engines.ranks import own_device
from anybit.errors import EngineError, Interrupted, RunError
from anybit.federated.algorithm import (
    LOG_STEP,
    ClientStep,
    LocalStep,
    State,
    Tensors,
    client_weighting,
    federated_round,
    mean_delta,
    sgd_step,
    sgd_step_alone,
)
from anybit.federated.cohort import Cohort, build_cohort
from anybit.federated.objective import client_loss, learned_step_scale
from anybit.federated.robust import combiner
from anybit.federated.sampling import sample_cohort
from anybit.federated.server import server
from anybit.federated.weights import learned_table, trainable, weights
from anybit.kernels import has_kernels, use_kernels
from anybit.kernels.native import library, use_native
from anybit.quant.calibrate import activation_ranges
from anybit.quant.grid import BITS
from anybit.quant.ranges import StepTable
from anybit.quant.single_client import Alone
from anybit.quant.sites import prepare, quantizers, step_shapes
from anybit.training.checks import check_clients, check_model, check_ranges
from anybit.training.divergence import check_finite, mean_loss, what_to_lower
from anybit.training.evaluation import Evaluator, calibration_images
from anybit.training.machine import convolution, open_engine, pick_device, set_precision, use_threads
from anybit.training.run_folder import RunFolder, fitting
from anybit.training.task import Progress, Task, Trained, Watch

CHANNELS_LAST = ("channels-last", "native")
"""Evaluation has no native kernels: the next best where those are chosen is the library with the channel last in memory."""


class Training:
    """One training, from round 0 or from a checkpoint."""

    def __init__(self, task: Task, config: Config, watch: Watch | None = None, folder: RunFolder | None = None) -> None:
        """Settle and check everything; nothing is written yet."""
        self.task, self.config, self.watch = task, config, watch or Watch()
        self.folder = folder
        use_threads(config.threads)
        self.device = own_device(pick_device(config.device))
        set_precision(config.compute.precision)
        self.kernels = self.device.type == "cuda" and config.compute.precision != "fp32" and has_kernels()
        self.native = self.device.type == "cpu" and config.compute.convolution == "native"
        if self.native:
            library()
        self.engine = open_engine(config, self.device)
        self.data = task.data.to(self.device)
        self.model = task.model.to(self.device)
        self.server = server(config.server)
        self.metrics: list[dict[str, Any]] = []
        self.times_kept = True
        self.release: Callable[[], None] = torch.cuda.empty_cache  # of whatever program trains this
        self._check_clients()
        check_ranges(config, task.variant)
        check_model(task, self.model, self.data, config)
        images = calibration_images(self.data, config.ranges.calibration_images, config.seed)
        self.evaluator = Evaluator(self.model, task.variant, config.sites, config.ranges, config.evaluation, self.data,
                                   images, task.loss, task.metric, self.kernels, config.compute.precision == "bf16",
                                   channels_last=self.device.type == "cpu" and config.compute.convolution in CHANNELS_LAST,
                                   engine=self.engine)

    def _check_clients(self) -> None:
        check_clients(self.task.split, len(self.data.train), self.config.cohort)

    def start(self) -> tuple[int, State, StepTable]:
        """Round 0: the initial weights, and the steps that are fixed (or learned) from now on."""
        w = trainable(self.model)
        table = self.evaluator.start_table(w)
        state = State(w, self.server.init(w))
        learned = {f"{LOG_STEP}{site}": torch.zeros_like(table.steps[site]) for site in self._learned_sites()}
        return 0, State({**w, **learned}, state.optimizer), table

    def _learned_sites(self) -> list[str]:
        if not self.config.ranges.learned:
            return []
        return [name for name, site in sorted(quantizers(self._prepared()).items()) if site.transform is not None]

    def restore(self) -> tuple[int, State, StepTable]:
        """The newest checkpoint of the folder, or round 0 if there is none yet."""
        assert self.folder is not None
        checkpoints = self.folder.checkpoints()
        if not checkpoints:
            self.folder.clear_logs()
            return self.start()
        checkpoint = self.folder.load_checkpoint(checkpoints[-1], self.device)
        self.folder.rewind_logs(checkpoint)
        self.metrics = self.folder.lines("metrics")
        w = trainable(self.model)
        kind = next(iter(w.values())).dtype
        steps = {site: torch.zeros(len(BITS), *shape, dtype=kind)
                 for site, shape in step_shapes(self.model, self.config.sites).items()}
        learned = {f"{LOG_STEP}{site}": steps[site] for site in self._learned_sites()}
        # The order of the model, not of the file: sums over parameters must add up in the same order as before.
        state = State(fitting(checkpoint.state.w, {**w, **learned}, checkpoints[-1]),
                      fitting(checkpoint.state.optimizer, self.server.init(w), checkpoints[-1]))
        return checkpoint.round, state, StepTable(fitting(checkpoint.table.steps, steps, checkpoints[-1]))

    def _prepared(self) -> nn.Module:
        """The model as clients train it."""
        variant = self.task.variant
        prepared = prepare(self.model, variant.transform if "W" in variant.sites else None,
                           variant.transform if "A" in variant.sites else None, self.config.sites, variant.dropout)
        if variant.observer is not None:
            for site in quantizers(prepared, "activations").values():
                # On the device from the start: a captured round cannot copy from the host.
                site.observer = replace(variant.observer, initial=variant.observer.initial.to(self.device))
        return prepared

    def begin(self, folder: RunFolder | None = None, resume: bool = False) -> None:
        """Round 0, or where the newest checkpoint of the folder left off."""
        use_threads(self.config.threads)  # other runs may have been opened since
        self.folder = folder or self.folder
        if self.folder:
            self.folder.tidy()
        self.round, self.state, self.table = self.restore() if resume else self.start()

    def train(self, folder: RunFolder | None = None, resume: bool = False) -> Trained:
        """Train to the end, evaluate the full grid, and (with a folder) write everything down."""
        try:
            with convolution(self.config.compute.convolution):
                self.begin(folder, resume)
                return self._train()
        except EngineError as error:
            raise EngineError(f"{error}{self._last_good()}") from error
        finally:
            self.engine.close()

    def _train(self) -> Trained:
        client_step = self.client_step()
        program, cohort = Program(functools.partial(self.engine.prepare, self._round(client_step))), self.cohort(self.round)
        self.release = program.release
        while not self.ended:
            started = time.perf_counter()
            try:
                state, losses = program(self.state, (self.table.steps, cohort, self.weighting(cohort)))
            except torch.OutOfMemoryError:
                self.watch.on_message(self.engine.shrink(len(cohort.clients)))
                program.release()
                continue
            # Laid out while the device is still busy with this round.
            upcoming = self.cohort(self.round + 1)
            self.advance(state, losses, cohort, started)
            cohort = upcoming
        program.release()
        return self.finish()

    def _evaluated(self, state: State) -> dict[str, Any]:
        """A cohort may fill the device to the brim: an evaluation that does not fit beside it is made in its place."""
        w, table = weights(state), learned_table(state, self.table)
        try:
            return self.evaluator.own(w, table)
        except torch.OutOfMemoryError:
            pass  # and out of this block, which holds on to what was allocated before the error
        self.release()
        return self.evaluator.own(w, table)

    @property
    def ended(self) -> bool:
        return self.round >= self.config.rounds

    def advance(self, state: State, losses: Tensor, cohort: Cohort, started: float, runs: int = 1) -> None:
        """Take the result of a round: check it, evaluate and checkpoint when it is time, tell whoever watches.

        The time since `started` is that of as many runs as went through the round together.
        """
        loss = mean_loss(losses, cohort, self._advice)
        self.round, self.state = self.round + 1, state
        evaluation = None
        kept = self.ended or self.round % self.config.checkpoint_every == 0
        if kept or self.watch.stop or self.round % self.config.evaluation.every == 0:
            check_finite(state, self.round, self._advice)
        if self.engine.leads and (self.ended or self.round % self.config.evaluation.every == 0):
            evaluation = self._evaluated(state)
        self._log({"round": self.round, "loss": loss, **({"evaluation": evaluation} if evaluation else {})})
        seconds = (time.perf_counter() - started) / runs
        self._log_time(seconds)
        self.watch.on_round(Progress(self.round, self.config.rounds, loss, evaluation, seconds))
        stop = self.engine.agree(self.watch.stop, self.round) and not self.ended
        if self.folder and (kept or stop):
            self.folder.save_checkpoint(self.round, state, self.table)
        if stop:
            self.engine.agree(stop, self.round)
            raise Interrupted(self._stopped(self.round))

    def _stopped(self, round: int) -> str:
        if self.folder is None:
            return f"stopped after round {round}"
        return f"stopped after round {round}; continue with: anybit resume {self.folder.path}"

    def client_step(self) -> ClientStep:
        """One step of Algorithm 1 and 2's client, with this run's loss and learning rates."""
        config, prepared = self.config, self._prepared()
        if self.kernels:
            use_kernels(prepared)
        scale = {}
        if config.ranges.learned:
            seen = activation_ranges(self.model, config.sites, trainable(self.model), self.evaluator.images)
            scale = learned_step_scale(prepared, self.state.w, {n: r.features for n, r in seen.items()}, self.table)
        loss = functools.partial(client_loss, variant=self.task.variant, data=self.data, loss=self.task.loss,
                                 step_scale=scale, bf16=config.compute.precision == "bf16")
        lr = {n: config.client.step_lr if n.startswith(LOG_STEP) else config.client.lr for n in self.state.w}
        one = self._prepared()
        if self.native:
            use_native(one)
        single = Alone(one, config.compute.convolution == "channels-last")
        step, step_alone = (functools.partial(of, lr=lr, clip=config.client.clip) for of in (sgd_step, sgd_step_alone))
        return LocalStep(functools.partial(step, loss=loss(prepared)),
                         functools.partial(step_alone, loss=loss(single.model, alone=single), lay=single.lay))

    def _round(self, client_step: ClientStep) -> Callable[[State, Any], tuple[State, Tensor]]:
        """(state, (steps, cohort, weighting)) → (state, losses): one round as a function of tensors."""
        server = replace(self.server, step=self.engine.compile(self.server.step))

        def round(state: State, inputs: tuple[Tensors, Cohort, Tensor]) -> tuple[State, Tensor]:
            steps, cohort, weighting = inputs[0], inputs[1].to(self.device), inputs[2].to(self.device)
            combine = combiner(self.config.server)
            if combine is mean_delta:
                together = functools.partial(self.engine.combine, w=state.w, cohort=cohort)
                combine = functools.partial(mean_delta, together=together)
            return federated_round(state, steps, cohort, client_step, server, self.engine.map_clients, weighting, combine)
        return round

    def cohort(self, round: int) -> Cohort:
        """Who takes part in a round, at which width, on which batches."""
        config, split = self.config, self.task.split
        clients = sample_cohort(config.sampling, config.seed, round, len(split), config.cohort,
                                lambda everybody: self.task.variant.widths_of(config.seed, round, everybody))
        widths = self.task.variant.widths_of(config.seed, round, clients)
        return build_cohort(config.seed, round, clients, widths, split, config.client.batch_size, config.client.epochs)

    def weighting(self, cohort: Cohort) -> Tensor:
        return client_weighting(cohort, self.config.weighting == "examples")

    def _advice(self) -> str:
        return f"{what_to_lower(self.config)}{self._last_good()}"

    def _last_good(self) -> str:
        checkpoints = self.folder.checkpoints() if self.folder else []
        return f"; the last good checkpoint is {checkpoints[-1]}" if checkpoints else ""

    def _log(self, entry: dict[str, Any]) -> None:
        self.metrics.append(entry)
        if self.folder:
            self.folder.append("metrics", entry)

    def _log_time(self, seconds: float) -> None:
        """Times are no part of the result: a run that cannot write them goes on, and says so once."""
        if self.folder and self.times_kept:
            try:
                self.folder.append("timing", {"round": self.round, "seconds": seconds})
            except RunError as error:
                self.times_kept = False
                self.watch.on_message(f"warning: no more times are kept ({error})")

    def _evaluating(self, started: float) -> Callable[[int, int], None]:
        """What is said while the full grid takes its time; it can be stopped: its checkpoint is written."""
        def done(parts: int, of: int) -> None:
            if parts == of:
                return
            if self.watch.stop and self.folder:
                raise Interrupted(self._stopped(self.round))
            if (seconds := time.perf_counter() - started) > 10:
                self.watch.on_message(f"evaluated {parts} of {of} step rules in {seconds:.0f} s")
        return done

    def finish(self) -> Trained:
        """The full grid. The steps that are kept are the ones the model is meant to be quantized with: its own."""
        w, table = weights(self.state), learned_table(self.state, self.table)
        try:
            return self._finish(w, table) if self.engine.leads else Trained(w, table, {}, self.metrics)
        finally:
            self.engine.agree(False, self.round)

    def _finish(self, w: dict[str, Tensor], table: StepTable) -> Trained:
        self.watch.on_message("evaluating at all widths")
        own = self.evaluator.table(w, table, self.evaluator.own_steps)
        metric = getattr(self.task.metric, "__name__", "metric")
        evaluation = {"metric": metric, "variant": self.task.variant.name, "own": self.evaluator.own_steps,
                      "sites": self.task.variant.sites, "test_examples": len(self.data.test),
                      "grid": self.evaluator.grid(w, table, self._evaluating(time.perf_counter()))}
        if self.config.evaluation.mixed:
            evaluation["mixed"] = self.evaluator.mixed(w, own)
        if self.folder:
            self.folder.save_result(w, own, evaluation)
        return Trained(w, own, evaluation, self.metrics)
