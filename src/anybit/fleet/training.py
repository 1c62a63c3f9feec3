"""Training with devices: the usual loop, with rounds and activation ranges from devices, and a delivery at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch.nn.functional import pad

from anybit.config import Config
from anybit.engines.base import Engine
from anybit.errors import ConfigError, RunError
from anybit.federated.accountant import accountant
from anybit.federated.algorithm import server_update
from anybit.federated.cohort import Cohort, sample_clients
from anybit.federated.privacy import drawn_clients
from anybit.federated.sampling import sample_cohort, shares
from anybit.federated.state import State, Trainable
from anybit.fleet.calibration import check_errors, check_seen, merged_errors, merged_seen
from anybit.fleet.checks import ANSWER, Update, Work, check_update, delta_norm, read_answer
from anybit.fleet.devices import Devices
from anybit.fleet.exchange import Reply
from anybit.fleet.flower import ArrayRecord
from anybit.fleet.moderation import Moderation, bucket
from anybit.fleet.roster import Member
from anybit.fleet.text import brief
from anybit.fleet.traffic import low_bit_weights
from anybit.fleet.wire import payload_bytes, to_record
from anybit.quant.calibrate import grids_of_inputs, ranges_of, table_of
from anybit.quant.grid import FLOAT, Width
from anybit.quant.ranges import ActivationRule, StepTable
from anybit.quant.sites import prepare
from anybit.tensors import Part, Tensors, moved, picked
from anybit.training.computation import Computation, open_computation
from anybit.training.course import Callback, RoundResult, Training, Watch
from anybit.training.loop import begin, train
from anybit.training.opening import OpenRun
from anybit.training.task import Task, Trained

T = TypeVar("T")

CALIBRATION = -1
"""The round number with which the devices of a calibration are drawn."""


def fleet_computation(task: Task, config: Config, devices: Devices) -> Computation:
    """Open the server's computation. It touches no training example unless calibration = "server"."""
    on_devices = config.fleet.calibration == "devices"
    if on_devices:  # test inputs stand in where only shapes and diagnostics are wanted
        task = replace(task, data=replace(task.data, train=task.data.test, coarse=None, ids=None))
    opened = open_computation(task, config, _check_minimum)
    devices.tell(opened.config)  # and not what it left open: a device would choose by its own few images
    # Evaluated here: the threads of a server do not survive a fork.
    evaluator = replace(opened.evaluator, engine=Engine())
    if on_devices:
        evaluator = replace(evaluator, activation_steps=Calibration(opened, devices))
    if config.privacy.private:  # how many devices there are, nobody knows unless privacy.clients says so
        opened = replace(opened, accountant=accountant(config.privacy, opened.config.places(), None, config.fleet.minimum))
    return replace(opened, evaluator=evaluator)


def _check_minimum(task: Task, config: Config) -> None:
    if task.sampler:
        raise ConfigError("sampling.policy: a sampler of your own draws from a fixed list of clients, but devices come and "
                          "go; use uniform, stratified or weighted")
    if config.privacy.private:
        _check_private(config)
    if config.least() > config.places():
        raise ConfigError(f"fleet.minimum = {config.least()}, but a cohort has only {config.places()}")


def _check_private(config: Config) -> None:
    if config.fleet.calibration == "devices":
        raise ConfigError("fleet.calibration = devices: with privacy.noise the ranges of devices are not to be told; use "
                          "fleet.calibration=server")
    if config.privacy.where == "local" and config.fleet.tries != 1:
        raise ConfigError(f"fleet.tries = {config.fleet.tries}: a device that is asked again hides the same delta with "
                          "other noise, which counts twice; set fleet.tries=1 with privacy.where=local")


def train_fleet(opened: OpenRun, devices: Devices, watch: Watch, callbacks: Sequence[Callback] = ()) -> Trained:
    """Train to the end with deltas from the devices, then send the trained model to the devices that only infer."""
    devices.folder = opened.folder
    if not devices.roster.members:
        devices.present(opened.config.places(), opened.config.least())
    training = begin(opened.computation, opened.folder, opened.resumed, watch, callbacks)
    trained = train(training, FleetRounds(training, devices))
    deliver(opened.computation, devices, trained)
    return trained


class FleetRounds:
    """The rounds of a training, computed by devices."""

    def __init__(self, training: Training, devices: Devices) -> None:
        self.computation, self.devices, self.last_good = training.computation, devices, training.last_good
        self.given, devices.round = self.computation.given(training.table), training.round
        self.moderation, self.least = Moderation(self.computation.config), self.computation.config.least()
        if devices.folder:
            log = devices.folder.lines("fleet")
            self.moderation.restore(log, training.round)
            devices.quarantine.restore(log)

    def __call__(self, state: State, round: int) -> RoundResult:
        """Run a round: ask a cohort until enough of it answers, then take the server's step."""
        options = self.devices.options
        for _ in range(options.tries):
            asked = self._sample(round)
            updates = self._updates(state, round, asked)
            if len(updates) >= (min(self.least, len(asked)) if self._by_chance else self.least):
                break
        else:
            raise RunError(f"round {round + 1} had fewer than {self.least} good answers, {options.tries} times (see "
                           f"fleet.jsonl): fix the devices, or lower fleet.minimum{self.last_good()}")
        computation = self.computation
        cohort, parts = answered(round, updates, computation)
        private = computation.config.privacy
        noise = computation.noise(round, cohort) if private.where == "central" else Trainable({})
        combine = computation.combiner(state, moved(noise, computation.device), cohort, sent=True)
        delta, losses = combine(parts, cohort.width_bits, computation.weighting(cohort))
        self.devices.round = round + 1
        state = server_update(state, delta, computation.server, computation.pace(round), self.given.at(state.w),
                              computation.project)
        return RoundResult(state, losses, cohort)

    def release(self) -> None:
        """Do nothing: the devices free their own memory."""

    @property
    def _by_chance(self) -> bool:
        """Whether a cohort may be of any size, nobody included."""
        return self.computation.config.privacy.sampling == "poisson"

    def _updates(self, state: State, round: int, cohort: Sequence[tuple[Member, Width]]) -> list[Update]:
        """Ask a cohort to train; return the good answers, in the order of the cohort."""
        started, devices, private = time.monotonic(), self.devices, self.computation.config.privacy.private
        arrays = {"w": to_record(state.trainable.named()), "steps": to_record(self.given.at(state.w).step_sizes)}
        questions = [devices.question(member, "train", arrays, width) for member, width in cohort]
        replies = devices.ask(questions)
        widths, members = {member.client: width for member, width in cohort}, [member for member, _ in cohort]

        def check(reply: Reply) -> Update:
            client, width, config = reply.client, widths[reply.client], self.computation.config
            step_widths = self.computation.task.variant.step_widths
            work = Work(config.client, lambda steps: step_widths(config.seed, round, client, width, steps))
            return check_update(reply, round, width, state.trainable, devices.options, work, private)

        good, log = devices.judge(members, replies, check)
        good, immoderate = self.moderation(round, good)
        log |= {"answered": len(good), "rejected": log["rejected"] | immoderate}
        devices.event({"event": "round", "round": round + 1, **log, "seconds": time.monotonic() - started,
                       "bytes_down": sum(payload_bytes(q.content) for q in questions),
                       "bytes_up": sum(reply.bytes for reply in replies.values()),
                       "clipped": {u.client: u.clipped for u in good if u.clipped is not None},
                       "devices": [{"client": u.client, "width": str(u.width), **({} if private else {
                           "score": u.score, "examples": bucket(u.examples), "norm": delta_norm(u.delta),
                           "seconds": u.seconds}), "bytes": u.bytes} for u in good]})
        devices.count_failures(members, log)
        return good

    def _sample(self, round: int) -> list[tuple[Member, Width]]:
        """Draw S_t among the devices that are there, each with its own width or the one that the variant draws."""
        least, config = self.least, self.computation.config
        present = list(self.devices.present(least, least).values())
        widths = self._widths(round, present)
        size = min(config.places(), int((shares(config.sampling, widths) > 0).sum()))
        if not size:
            return []
        if config.privacy.private:
            size = config.places() if self._by_chance else size
            private = drawn_clients(config.privacy, config.seed, round, len(present), size, config.privacy.clients)
            members = [present[i] for i in private]
            return list(zip(members, self._widths(round, members), strict=True))
        chosen = sample_cohort(config.sampling, config.seed, round, len(present), size,
                               lambda positions: [widths[i] for i in positions])
        members = [present[i] for i in chosen]
        return list(zip(members, self._widths(round, members), strict=True))

    def _widths(self, round: int, members: Sequence[Member]) -> list[Width]:
        """Return the width of every device: its own, or the one that the variant gives it among these."""
        variant, seed = self.computation.task.variant, self.computation.config.seed
        drawn = variant.widths_of(seed, round, [member.client for member in members])
        return [member.width or width for member, width in zip(members, drawn, strict=True)]


def answered(round: int, updates: list[Update], computation: Computation) -> tuple[Cohort, list[Part]]:
    """Return the cohort of the devices that answered, and their deltas and losses; short losses end in zeros."""
    device, seed, widths = computation.device, computation.config.seed, computation.task.variant.step_widths
    count, local_steps = len(updates), max((len(u.losses) for u in updates), default=1)
    rows, parts = torch.zeros(count, local_steps, 1, device=device), list[Part]()
    bits = torch.full((count, local_steps, 2), FLOAT, device=device)
    for i, update in enumerate(updates):
        rows[i, :len(update.losses)] = 1
        bits[i, :len(update.losses)] = torch.tensor(
            widths(seed, round, update.client, update.width, len(update.losses)), device=device)
        losses = pad(update.losses, (0, local_steps - len(update.losses)))
        parts.append((slice(i, i + 1), moved(picked(update.delta, None), device), losses[None].to(device)))
    cohort = Cohort(round, tuple(u.client for u in updates), tuple(u.width for u in updates),
                    tuple(u.examples for u in updates), bits,
                    torch.zeros(count, local_steps, 1, dtype=torch.int64, device=device), rows,
                    torch.zeros(count, dtype=torch.int64, device=device))
    return cohort, parts


class Calibration:
    """The search for activation step sizes with the devices' data: (w, rule) → a table."""

    def __init__(self, computation: Computation, devices: Devices) -> None:
        self.task, self.config, self.device = computation.task, computation.config, computation.device
        self.devices = devices

    def __call__(self, w: Tensors, rule: ActivationRule) -> StepTable:
        """Ask some devices for statistics of their sites, and merge their answers."""
        present = list(self.devices.present(1, 1).values())
        chosen = sample_clients(self.config.seed, CALIBRATION, len(present),
                                min(self.config.fleet.calibration_devices, len(present)))
        members = [present[i] for i in sorted(chosen)]
        grids = grids_of_inputs(self.task.model, self.config.sites)
        record, round = to_record(w), self.devices.round
        images = -(-self.config.ranges.calibration_images // len(members))

        def errors_of(candidates: Tensors) -> Tensors:
            return merged_errors(self._ask(members, "errors", lambda reply: check_errors(reply, round, candidates, images),
                                           {"w": record, "candidates": to_record(candidates)}, images))

        seen = merged_seen(self._ask(members, "ranges", lambda reply: check_seen(reply, round, list(grids)), {"w": record},
                                     images), images)
        return table_of(ranges_of(seen), rule, grids, errors_of).to(self.device)

    def _ask(self, members: list[Member], kind: str, check: Callable[[Reply], T],
             arrays: dict[str, ArrayRecord], images: int) -> list[T]:
        questions = [self.devices.question(m, f"query.{kind}", arrays, images=images) for m in members]
        good, log = self.devices.judge(members, self.devices.ask(questions), check)
        self.devices.event({"event": "calibration", "kind": kind, **log})
        if not good:
            raise RunError("no device sent usable activation ranges (see fleet.jsonl): fix the devices")
        return good


def deliver(computation: Computation, devices: Devices, trained: Trained) -> None:
    """Send the trained model to the devices that only infer, each at its width, and log their scores."""
    devices.roster.refresh()
    members = list(devices.roster.present(inference=True).values())
    if not members:
        return
    prepared = prepare(computation.task.model, options=computation.config.sites)
    widths, models = {m.client: m.width or Width(FLOAT, FLOAT) for m in members}, dict[Width, ArrayRecord]()
    for width in set(widths.values()):
        try:
            models[width] = to_record(low_bit_weights(prepared, trained.w, trained.table, width))
        except Exception as error:  # a width that this model cannot have; no device can stop a run
            for member in [m for m in members if widths[m.client] == width]:
                members.remove(member)
                devices.event({"event": "refused", "node": member.node,
                               "reason": f"the model cannot be made at its width {width} ({brief(error)})"})
    steps = to_record(trained.table.steps)
    questions = [devices.question(m, "evaluate", {"steps": steps, "weights": models[widths[m.client]]}, widths[m.client])
                 for m in members]

    def check(reply: Reply) -> dict[str, Any]:
        _, values = read_answer(reply, devices.round, {**ANSWER, "score": float}, {})
        return {"client": reply.client, "width": str(widths[reply.client]), "score": values["score"],
                "examples": bucket(values["examples"]), "seconds": values["seconds"]}

    good, log = devices.judge(members, devices.ask(questions), check)
    devices.event({"event": "delivery", **log, "bytes_down": sum(payload_bytes(q.content) for q in questions),
                   "devices": good})
