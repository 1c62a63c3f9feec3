"""Several runs side by side in one program: the clients of all their cohorts are stacked, each with its own run's model.

Runs that differ only in seed, split, initial weights, in the bit-widths their clients train at and in where their steps
come from compute the same operations on other numbers. One program for all keeps a GPU busier than one after another.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from anybit.config import Component, Config
from anybit.engines.base import Program
from anybit.engines.stacked import Stacked
from anybit.federated.algorithm import ClientStep, State, Tensors, client_update, server_update
from anybit.federated.cohort import Cohort, join
from anybit.federated.objective import STRENGTHS
from anybit.federated.robust import combiner
from anybit.files.schema import plain
from anybit.training.build import MODELS
from anybit.training.loop import Training
from anybit.training.task import Trained

_OF_ITS_OWN = ("seed", "split", "model", "variant", "ranges", "evaluation", "checkpoint_every")
"""What runs side by side may differ in, if their operations are the same."""

_NUMBERS = ("name", "bits", "start", "fixed", "scale")
"""Arguments of a variant that change numbers, and no operation."""

Outcome = tuple[Training, Trained | Exception]


def program_key(config: Config) -> str:
    """Equal for runs that one program can train.

    QAT and MQAT at any bits are the same rounding with other widths, and the plain baseline is that at 32 bits. Penalties
    of any strength are the same penalties, and the paper's networks are the same network from any initial weights.
    """
    shared = {name: value for name, value in plain(config).items() if name not in _OF_ITS_OWN}
    return json.dumps([shared, _network(config.model), _operations(config.variant), config.ranges.learned], sort_keys=True)


def _network(model: Component) -> Any:
    arguments = plain(model)
    if model.name in MODELS:
        arguments.pop("init", None)
    return arguments


def _operations(variant: Component) -> Any:
    arguments = {name: value for name, value in plain(variant).items() if name not in _NUMBERS}
    if arguments.get("weight_decay"):
        arguments["weight_decay"] = "some"
    if variant.name in ("qat", "mqat") or (variant.name == "baseline" and not any(arguments.values())):
        return ["rounding", arguments.get("sites", "W")]
    return [variant.name, arguments]


def train_side_by_side(trainings: Sequence[Training]) -> Iterator[Outcome]:
    """Train runs of one program to their ends, each from where it is, and give each as it ends.

    What kept a run from its end stands in the place of its result; the others go on.
    """
    for training in trainings:
        if training.ended:  # its last checkpoint was written, and its evaluation was not
            yield training, _finished(training)
    if going := [training for training in trainings if not training.ended]:
        runs = Runs(going)
        while runs.going:
            yield from runs.round()


def _finished(training: Training) -> Trained | Exception:
    try:
        return training.finish()
    except Exception as error:  # of whatever kind: one run must not take the others with it
        return error


class Runs:
    """The stacked state of some trainings. One that ended or failed keeps its place, and is no longer looked at."""

    def __init__(self, trainings: Sequence[Training]) -> None:
        self.trainings = list(trainings)
        self.going = list(self.trainings)
        # A run that rounds, if there is one: the baseline is the same program at 32 bits.
        lead = max(self.trainings, key=lambda t: t.task.variant.transform is not None)
        assert isinstance(lead.engine, Stacked)
        self.state = State(_stack([t.state.w for t in self.trainings]), _stack([t.state.optimizer for t in self.trainings]))
        self.steps = _stack([{**t.table.steps, **_strengths(t, lead)} for t in self.trainings])
        self.program = Program(functools.partial(lead.engine.prepare, _round(lead, lead.client_step())))
        for training in self.trainings:
            training.release = self.program.release
        self.shares: list[State] = []
        self.lay_out(0)

    def lay_out(self, ahead: int) -> None:
        """What the runs train on in the round after so many, on the host."""
        self.cohorts = [t.cohort(t.round + ahead) for t in self.trainings]
        weighting = torch.stack([t.weighting(c) for t, c in zip(self.trainings, self.cohorts, strict=True)])
        self.inputs = (self.steps, join(self.cohorts), weighting)

    def round(self) -> Iterator[Outcome]:
        started, cohorts, before = time.perf_counter(), self.cohorts, self.state
        self.state, losses = self.program(self.state, self.inputs)
        self.lay_out(1)  # while the device is still busy with this round
        losses, size = losses.cpu(), len(cohorts[0].clients)
        if self.state is not before:  # a captured program updates its state in place
            self.shares = [State(_pick(self.state.w, i), _pick(self.state.optimizer, i)) for i in range(len(cohorts))]
        for i, (training, cohort) in enumerate(zip(self.trainings, cohorts, strict=True)):
            if training in self.going:
                mine = losses[i * size:(i + 1) * size, :cohort.steps]
                yield from self._advance(training, self.shares[i], mine, cohort, started)

    def _advance(self, training: Training, state: State, losses: Tensor, cohort: Cohort,
                 started: float) -> Iterator[Outcome]:
        try:
            training.advance(state, losses, cohort, started, len(self.trainings))
            if training.ended:
                self.going.remove(training)
                yield training, training.finish()
        except Exception as error:  # of whatever kind: one run must not take the others with it
            if training in self.going:
                self.going.remove(training)
            yield training, error


def _round(lead: Training, client_step: ClientStep) -> Callable[[State, Any], tuple[State, Tensor]]:
    """(state, (steps, cohort, weighting)) → (state, losses) with the run as first dimension of state, steps, weighting."""
    engine, combine = lead.engine, combiner(lead.config.server)
    assert isinstance(engine, Stacked)

    def server_round(state: State, deltas: Tensors, losses: Tensor, width_bits: Tensor, weighting: Tensor) -> State:
        delta, _ = combine([(slice(None), dict(deltas), losses)], width_bits, weighting)
        return server_update(state, delta, lead.server)

    servers = engine.compile(torch.func.vmap(server_round))

    def round(state: State, inputs: tuple[Tensors, Cohort, Tensor]) -> tuple[State, Tensor]:
        steps, cohort, weighting = inputs[0], inputs[1].to(lead.device), inputs[2].to(lead.device)
        runs, size = weighting.shape
        deltas, losses = engine.stacked(client_update, client_step, _spread(state.w, size), _spread(steps, size), cohort)
        by_run = {n: d.reshape(runs, size, *d.shape[1:]) for n, d in deltas.items()}
        new: State = servers(state, by_run, losses.reshape(runs, size, -1), cohort.width_bits.reshape(runs, size, 2),
                             weighting)
        return new, losses

    return round


def _strengths(training: Training, lead: Training) -> dict[str, Tensor]:
    """How much the penalties of a run count, where the program has any."""
    like = next(iter(training.state.w.values()))
    values = [strength for strength, _ in training.task.variant.penalties]
    return {STRENGTHS: like.new_tensor(values)} if lead.task.variant.penalties else {}


def _stack(each: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([tensors[name] for tensors in each]) for name in each[0]}


def _pick(tensors: Mapping[str, Tensor], run: int) -> dict[str, Tensor]:
    return {name: tensor[run] for name, tensor in tensors.items()}


def _spread(tensors: Mapping[str, Tensor], size: int) -> dict[str, Tensor]:
    """Per client what its run has."""
    return {name: tensor.repeat_interleave(size, 0) for name, tensor in tensors.items()}
