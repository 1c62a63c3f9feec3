"""Several runs side by side in one program: the clients of all their cohorts are stacked, each with its own run's model.

Runs that differ only in seed, split, initial weights, in the bit-widths their clients train at and in where their steps
come from compute the same operations on other numbers. One program for all keeps a GPU busier than one after another.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from anybit.config import Component, Config
from anybit.engines.base import Program
from anybit.engines.stacked import Stacked
from anybit.federated.algorithm import ClientStep, RoundInputs, client_update, server_update
from anybit.federated.cohort import join
from anybit.federated.robust import combiner
from anybit.federated.server import Pace
from anybit.federated.state import Given, State, Trainable
from anybit.schema import plain
from anybit.tensors import Tree, moved, picked, stacked
from anybit.training.build import MODELS
from anybit.training.computation import Computation
from anybit.training.course import RoundResult, Training
from anybit.training.loop import finish
from anybit.training.task import Trained

_OF_ITS_OWN = ("seed", "split", "model", "variant", "ranges", "evaluation", "checkpoint_every")
"""Settings in which runs side by side may differ, if their operations are the same."""

_NUMBERS = ("name", "bits", "start", "fixed", "scale", "activation_bits", "widths", "cap")
"""Arguments of a variant that change numbers, and no operation."""

_PACE = ("lr", "schedule", "decay", "warmup", "average", "deliver")
"""Settings of the server that change numbers, and no operation; that an average is kept at all does."""


def program_key(config: Config) -> str:
    """Return a key that is equal for runs of one program.

    QAT and MQAT at any bits are the same rounding with other widths, and the plain baseline is that at 32 bits. Penalties
    of any strength are the same penalties, and the paper's networks are the same network from any initial weights.
    """
    shared = {name: value for name, value in plain(config).items() if name not in _OF_ITS_OWN}
    if config.privacy.clip is not None:  # clipped one after another: Poisson cohorts have sizes of their own
        return json.dumps(plain(config), sort_keys=True)
    shared["server"] = {name: value for name, value in shared["server"].items() if name not in _PACE}
    project = bool(config.ranges.project) and config.variant.name != "baseline"
    ranges = [bool(config.ranges.learned), bool(config.ranges.follow), project, bool(config.server.average)]
    return json.dumps([shared, _network(config.model), _operations(config.variant), ranges], sort_keys=True)


def _network(model: Component) -> Any:
    arguments = plain(model)
    if model.name in MODELS:
        arguments.pop("init", None)
    return arguments


def _operations(variant: Component) -> Any:
    arguments = {name: value for name, value in plain(variant).items() if name not in _NUMBERS}
    if arguments.get("weight_decay"):
        arguments["weight_decay"] = "some"
    if variant.name in ("qat", "mqat", "carousel") or (variant.name == "baseline" and not any(arguments.values())):
        return ["rounding", arguments.get("sites", "W")]
    return [variant.name, arguments]


def train_side_by_side(trainings: Mapping[str, Training]) -> Iterator[tuple[str, Trained | Exception]]:
    """Train runs of one program to their ends, each from where it is, and give each by name as it ends.

    An error that kept a run from its end stands in the place of its result; the others go on.
    """
    for name, training in trainings.items():
        if training.ended:  # its last checkpoint was written, and its evaluation was not
            yield name, _finished(training)
    if going := {name: training for name, training in trainings.items() if not training.ended}:
        runs = Runs(going)
        while runs.going:
            yield from runs.round()


def _finished(training: Training) -> Trained | Exception:
    try:
        return finish(training)
    except Exception as error:  # of whatever kind: one run must not take the others with it
        return error


class Runs:
    """The stacked state of some trainings. One that ended or failed keeps its place, and is no longer looked at."""

    def __init__(self, trainings: Mapping[str, Training]) -> None:
        self.names, self.trainings = list(trainings), list(trainings.values())
        self.going = set(self.names)
        # A run that rounds, if there is one: the baseline is the same program at 32 bits.
        lead = max(self.trainings, key=lambda t: t.computation.task.variant.transform is not None)
        self.state = stacked([t.state for t in self.trainings])
        self.givens = [t.computation.given(t.table) for t in self.trainings]
        self.given = stacked(self.givens)
        program = _round(lead.computation, lead.computation.client_step(lead.table))
        self.program = Program(functools.partial(lead.computation.engine.prepare, program))
        if lead.computation.engine.slow_start:
            lead.watch.on_message(lead.computation.engine.slow_start)
        for training in self.trainings:
            training.release, training.runs_together = self.program.release, len(self.trainings)
        self.shares: list[State] = []
        self.lay_out(0)

    def lay_out(self, ahead: int) -> None:
        """Lay out the runs' next inputs on the host: those of the round after `ahead` more."""
        each = [t.computation.inputs(given, t.round + ahead) for t, given in zip(self.trainings, self.givens, strict=True)]
        self.cohorts = [inputs.cohort for inputs in each]
        given = self.given._replace(pace=stacked([i.given.pace for i in each]))
        self.inputs = RoundInputs(given, join(self.cohorts), *stacked([(i.weighting, i.pace) for i in each]))

    def round(self) -> Iterator[tuple[str, Trained | Exception]]:
        """Run one round of all, and yield the runs that end with it."""
        started, cohorts, before = time.perf_counter(), self.cohorts, self.state
        self.state, losses = self.program(self.state, self.inputs)
        self.lay_out(1)  # while the device is still busy with this round
        losses, size = losses.cpu(), len(cohorts[0].clients)
        if self.state is not before:  # a captured program updates its state in place
            self.shares = [picked(self.state, i) for i in range(len(cohorts))]
        for i, (name, training, cohort) in enumerate(zip(self.names, self.trainings, cohorts, strict=True)):
            if name in self.going:
                training.round_started = started
                share = losses[i * size:(i + 1) * size, :cohort.local_steps]
                yield from self._advance(name, training, RoundResult(self.shares[i], share, cohort))

    def _advance(self, name: str, training: Training, result: RoundResult) -> Iterator[tuple[str, Trained | Exception]]:
        try:
            training.advance(result)
        except Exception as error:  # of whatever kind: one run must not take the others with it
            self.going.discard(name)
            yield name, error
            return
        if training.ended:
            self.going.discard(name)
            yield name, _finished(training)


def _round(lead: Computation, client_step: ClientStep) -> Callable[[State, Any], tuple[State, Tensor]]:
    """Make (state, inputs) → (state, losses) with the run as first dimension of all but the cohort."""
    engine, combine, project = lead.engine, combiner(lead.config.server), lead.project
    assert isinstance(engine, Stacked)

    def server_round(state: State, deltas: Trainable, losses: Tensor, width_bits: Tensor, weighting: Tensor, pace: Pace,
                     given: Given) -> State:
        delta, _ = combine([(slice(None), deltas, losses)], width_bits, weighting)
        return server_update(state, delta, lead.server, pace, given, project)

    servers = engine.compile(torch.func.vmap(server_round))
    in_round = torch.func.vmap(Given.at)

    def round(state: State, inputs: RoundInputs) -> tuple[State, Tensor]:
        inputs = moved(inputs, lead.device)
        cohort, given, (runs, size) = inputs.cohort, in_round(inputs.given, state.w), inputs.weighting.shape
        deltas, losses = engine.stacked(client_update, client_step, _spread(state.trainable, size), _spread(given, size),
                                        cohort)

        def by_run(clients: Tensor) -> Tensor:
            return clients.reshape(runs, size, *clients.shape[1:])

        new: State = servers(state, pytree.tree_map(by_run, deltas), by_run(losses), by_run(cohort.width_bits),
                             inputs.weighting, inputs.pace, given)
        return new, losses

    return round


def _spread(tree: Tree, size: int) -> Tree:
    """Give every client what its run has."""
    out: Tree = pytree.tree_map(lambda leaf: leaf.repeat_interleave(size, 0), tree)
    return out
