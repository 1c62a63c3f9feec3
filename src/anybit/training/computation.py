"""The computation behind a training: the task on its device, an engine, an evaluator, the server's optimizer."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from anybit.config import Config, chosen
from anybit.engines.base import Engine
from anybit.engines.ranks import own_device
from anybit.federated.accountant import Accountant, accountant
from anybit.federated.algorithm import (
    ClientStep,
    Combine,
    LocalStep,
    Projection,
    Rates,
    RoundInputs,
    client_weighting,
    federated_round,
    mean_delta,
    optimizer_step,
    optimizer_step_alone,
    sgd_step,
    sgd_step_alone,
    unprojected,
)
from anybit.federated.client import begun
from anybit.federated.cohort import Cohort, build_cohort
from anybit.federated.objective import client_loss, client_loss_alone, learned_step_scale, strengths
from anybit.federated.own import check_optimizer, sampled
from anybit.federated.privacy import check_widths, drawn_clients, drawn_noise, fixed_weighting, private_combiner
from anybit.federated.robust import combiner
from anybit.federated.sampling import sample_cohort
from anybit.federated.server import Pace, ServerOptimizer, course, pace, server
from anybit.federated.state import Given, LogSteps, State, Trainable, projected, trainable_weights, unlearned
from anybit.kernels import use_kernels
from anybit.kernels.native import library, use_native
from anybit.quant.calibrate import activation_ranges, one_sided_layers
from anybit.quant.checks import check_initialized
from anybit.quant.grid import BITS
from anybit.quant.ranges import StepTable
from anybit.quant.single_client import SingleClientModel
from anybit.quant.sites import prepare, quantizers, step_shapes, weight_sites
from anybit.tensors import Tensors, moved
from anybit.training.checks import check_clients, check_model, check_ranges
from anybit.training.evaluation import Evaluator, build_evaluator, calibration_images, uses_kernels
from anybit.training.machine import open_engine, pick_device, pick_engine
from anybit.training.passes import check_mapped
from anybit.training.task import Task

RoundProgram = Callable[[State, RoundInputs], tuple[State, Tensor]]
"""(state, inputs) → (state, losses): one round as a function of tensors."""


@dataclass(frozen=True)
class Computation:
    """Everything that stays the same over the rounds of a training. Nothing in it is written, or of the whole process."""

    task: Task
    """Model and data lie on the device."""
    config: Config
    device: torch.device
    engine: Engine
    evaluator: Evaluator
    accountant: Accountant | None = None
    """Keeps the books where clients are promised privacy."""

    @functools.cached_property
    def server(self) -> ServerOptimizer:
        """The server's optimizer."""
        return self.task.server or server(self.config.server)

    def start(self) -> tuple[State, StepTable]:
        """Return round 0: the initial weights, and the step sizes that are fixed (or learned) from now on."""
        w = trainable_weights(self.task.model)
        table = self.evaluator.start_table(w)
        return self._state(w, table), table

    def like(self) -> tuple[State, StepTable]:
        """Return a state and a table of the form that `start` gives, without looking at data."""
        w = trainable_weights(self.task.model)
        kind = next(iter(w.values())).dtype
        table = StepTable({site: torch.zeros(len(BITS), *shape, dtype=kind)
                           for site, shape in step_shapes(self.task.model, self.config.sites).items()})
        if self.config.ranges.follow:
            table = StepTable(table.steps, {site: table.steps[site][0] for site in weight_sites(self.evaluator.plain, w)})
        return self._state(w, table), table

    def _state(self, w: dict[str, Tensor], table: StepTable) -> State:
        average = {name: p.clone() for name, p in w.items()} if self.config.server.average else {}
        return State(w, self._log_steps(table), self.server.init(w), average)

    def _log_steps(self, table: StepTable) -> LogSteps:
        return unlearned(self._prepared(), table) if self.config.ranges.learned else LogSteps({}, {})

    def given(self, table: StepTable) -> Given:
        """Return what clients are given beside the server's weights."""
        w = next(iter(self.task.model.parameters()))
        return Given(dict(table.steps), strengths(self.task.variant, w.detach()), dict(table.start_rms))

    def cohort(self, round: int) -> Cohort:
        """Draw who takes part in a round, at which width, on which batches."""
        config, split, variant = self.config, self.task.split, self.task.variant
        if config.privacy.private:
            clients = drawn_clients(config.privacy, config.seed, round, len(split), config.places(len(split)))
        elif self.task.sampler:
            clients = sampled(self.task.sampler, config.seed, round, len(split), config.places(len(split)))
        else:
            clients = sample_cohort(config.sampling, config.seed, round, len(split), config.places(len(split)),
                                    lambda everybody: variant.widths_of(config.seed, round, everybody))
        widths = variant.widths_of(config.seed, round, clients)
        return build_cohort(config.seed, round, clients, widths, split, config.client, variant.step_widths)

    def weighting(self, cohort: Cohort) -> Tensor:
        """Return the share of every client in the mean."""
        if self.config.privacy.private:
            return fixed_weighting(len(cohort.clients), self.config.places())
        return client_weighting(cohort, self.config.weighting == "examples")

    def noise(self, round: int, cohort: Cohort) -> Trainable:
        """Draw the noise of privacy for a round; empty without it."""
        config = self.config
        return drawn_noise(config.privacy, self._form, config.seed, round, cohort.clients, config.places())

    @functools.cached_property
    def _form(self) -> Trainable:
        """The form of a delta."""
        return self.like()[0].trainable

    def pace(self, round: int) -> Pace:
        """Return the server's learning rate, and the weight of the old average, in a round."""
        return pace(self.config.server, round, self.config.rounds, self.task.schedule)

    def inputs(self, given: Given, round: int) -> RoundInputs:
        """Lay out a round on the host."""
        cohort = self.cohort(round)
        noise = self.noise(round, cohort) if self.config.privacy.private else Trainable({})
        return RoundInputs(self.paced(given, round), cohort, self.weighting(cohort), self.pace(round), noise)

    def paced(self, given: Given, round: int) -> Given:
        """Return what clients are given in a round, with the factor of their learning rates where these change."""
        client = self.config.client
        if client.schedule == "constant":
            return given
        factor = course(client.schedule, client.decay, round, self.config.rounds)
        return given._replace(pace=(torch.tensor(factor, dtype=torch.float64),))

    @functools.cached_property
    def project(self) -> Projection:
        """What becomes of the weights after the server's step."""
        if not self.config.ranges.project:
            return unprojected
        prepared, w = self._prepared(), trainable_weights(self.task.model)
        sites = {name: quantizers(prepared)[name] for name in weight_sites(prepared, w)}
        return functools.partial(projected, grids={name: s.grid for name, s in sites.items() if s.transform is not None})

    def _prepared(self) -> nn.Module:
        """Prepare the model as clients train it."""
        variant = self.task.variant
        prepared = prepare(self.task.model, variant.transform if "W" in variant.sites else None,
                           variant.transform if "A" in variant.sites else None, self.config.sites, variant.dropout)
        if variant.observer is not None:
            for site in quantizers(prepared, "activations").values():
                # On the device from the start: a captured round cannot copy from the host.
                site.observer = replace(variant.observer, initial=variant.observer.initial.to(self.device))
        return prepared

    def client_step(self, table: StepTable) -> ClientStep:
        """Make one step of Algorithm 1 and 2's client, with this run's loss and learning rates."""
        task, config, stacked, one = self.task, self.config, self._prepared(), self._prepared()
        if uses_kernels(self.device, config):
            use_kernels(stacked, compiled=config.compute.compile is not False)
        if self.device.type == "cpu" and config.compute.convolution == "native":
            use_native(one)
        single = SingleClientModel(one, config.compute.convolution == "channels-last")
        scale = self._step_scale(stacked, table) if config.ranges.learned else {}
        options, rates = config.client, Rates(config.client.lr, config.client.step_lr, config.client.clip)
        settings = (task.variant, task.data, task.loss, scale, config.compute.precision == "bf16", task.output)
        loss, loss_alone = client_loss(stacked, *settings), client_loss_alone(single, *settings)

        def alone(given: Given) -> LocalStep[Any]:
            if options.plain:
                return functools.partial(sgd_step_alone, loss=loss_alone(given), rates=rates, lay=single.lay)
            return functools.partial(optimizer_step_alone, loss=loss_alone(given), options=options, pace=given.pace,
                                     lay=single.lay)

        if options.plain:
            return ClientStep(functools.partial(sgd_step, loss=loss, rates=rates), alone)
        return ClientStep(functools.partial(optimizer_step, loss=loss, options=options), alone,
                          functools.partial(begun, options=options), operator.attrgetter("trained"))

    def _step_scale(self, prepared: nn.Module, table: StepTable) -> Tensors:
        w = trainable_weights(self.task.model)
        seen = activation_ranges(self.task.model, self.config.sites, w, self.evaluator.images)
        return learned_step_scale(prepared, w, {site: r.features for site, r in seen.items()}, table)

    def round_program(self, client_step: ClientStep) -> RoundProgram:
        """Make one round of the algorithm, on this engine, from host inputs."""
        server = replace(self.server, step=self.engine.compile(self.server.step))
        project = self.engine.compile(self.project) if self.config.ranges.project else unprojected

        def round(state: State, inputs: RoundInputs) -> tuple[State, Tensor]:
            inputs = moved(inputs, self.device)
            combine = self.combiner(state, inputs.noise, inputs.cohort)
            return federated_round(state, inputs, client_step, server, self.engine.map_clients, combine, project)
        return round

    def combiner(self, state: State, noise: Trainable, cohort: Cohort, sent: bool = False) -> Combine:
        """Return what makes Δ_t of a cohort's parts, in this engine; sent: by devices, which add local noise themselves."""
        options, like = self.config.privacy, state.trainable
        if options.clip is not None:
            together = functools.partial(self.engine.combine, like=Trainable(like.named()), cohort=cohort)
            return private_combiner(options, like, noise, together, sent)
        if (combine := combiner(self.config.server)) is not mean_delta:
            return combine
        return functools.partial(mean_delta, together=functools.partial(self.engine.combine, like=like, cohort=cohort))


def open_computation(task: Task, config: Config, check: Callable[[Task, Config], Any] | None = None) -> Computation:
    """Bring a task to its device and open its engine; whatever can be known to be wrong is said now.

    check: in place of looking at the clients, who are not known here where they are devices.
    """
    config = chosen(config, task.variant.choices)
    config = replace(config, cohort=config.places() if check else config.places(len(task.split)))
    device = own_device(pick_device(config.device))
    if device.type == "cpu" and config.compute.convolution == "native":
        library()
    check_initialized(task.model)
    engine = open_engine(config, device, sum(p.numel() for p in task.model.parameters() if p.requires_grad))
    task = task.to(device)
    (check or check_clients)(task, config)
    check_widths(task.variant, config.privacy, config.seed, len(task.split))
    check_ranges(config, task.variant)
    check_model(task, config)
    if pick_engine(config.engine, device) == "stacked":
        check_mapped(task, config)
    if task.server:
        check_optimizer(task.server, trainable_weights(task.model))
    if config.sites.activation_grid == "auto" and config.sites.one_sided is None:
        config = replace(config, sites=replace(config.sites, one_sided=_one_sided(task, config)))
    books = accountant(config.privacy, config.places(), len(task.split)) if config.privacy.private and not check else None
    return Computation(task, config, device, engine, build_evaluator(task, config, engine), books)


def _one_sided(task: Task, config: Config) -> tuple[str, ...]:
    images = calibration_images(task.data, config.ranges.calibration_images, config.seed, config.privacy.private)
    return one_sided_layers(task.model, config.sites, trainable_weights(task.model), images)
