"""The round loop on real devices: `run.Training`, whose cohort trains elsewhere."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch.nn.functional import pad

from anybit.config import Config
from anybit.engines.base import Engine
from anybit.errors import ConfigError, RunError
from anybit.federated.algorithm import Part, State, server_update
from anybit.federated.cohort import Cohort, sample_clients
from anybit.federated.robust import combiner
from anybit.federated.sampling import sample_cohort, shares
from anybit.files.schema import plain
from anybit.fleet.calibration import check_errors, check_seen, merged_errors, merged_seen
from anybit.fleet.checks import ANSWER, Update, check_origin, check_update
from anybit.fleet.exchange import Exchange, Question, Reply
from anybit.fleet.flower import ArrayRecord, ConfigRecord, Grid, RecordDict
from anybit.fleet.roster import Member, Roster
from anybit.fleet.traffic import low_bit_weights
from anybit.fleet.wire import Refused, Tensors, payload_bytes, read_values, to_record
from anybit.quant.calibrate import ranges_of, table_of
from anybit.quant.grid import FLOAT, Width
from anybit.quant.ranges import ActivationRule, StepTable
from anybit.quant.sites import prepare, quantizers
from anybit.training.loop import Training
from anybit.training.run_folder import RunFolder
from anybit.training.task import Task, Trained, Watch

T = TypeVar("T")

CALIBRATION = -1
"""The round in whose name the devices of a calibration are drawn."""


class FleetTraining(Training):
    """A training whose clients are devices. The server touches no training example unless calibration = "server"."""

    def __init__(self, task: Task, config: Config, grid: Grid, watch: Watch | None = None) -> None:
        self.options = config.fleet
        if self.options.calibration == "devices":  # test inputs stand in where only shapes and diagnostics are wanted
            task = replace(task, data=replace(task.data, train=task.data.test, coarse=None, ids=None))
        super().__init__(task, config, watch)
        self.exchange = Exchange(grid, self.options.poll, self._event)
        self.roster = Roster(self.exchange, task.variant.sites, self.options.wait)
        self.config_text = json.dumps(plain(config))
        self.round = 0
        self.evaluator = replace(self.evaluator, engine=Engine())  # the threads of a server do not survive a fork
        if self.options.calibration == "devices":
            self.evaluator = replace(self.evaluator, activation_steps=self._activation_steps)
        self._calibrated: dict[tuple[int, ActivationRule], tuple[Tensors, StepTable]] = {}

    def _check_clients(self) -> None:
        """Who takes part is known when the devices say hello."""
        if self.options.minimum > self.config.cohort:
            raise ConfigError(f"fleet.minimum = {self.options.minimum}, but a cohort has only {self.config.cohort}")

    def _event(self, entry: dict[str, Any]) -> None:
        """What happens to a device: into the run's fleet.jsonl, and a line for whoever watches."""
        if self.folder:
            self.folder.append("fleet", entry)
        if text := _words(entry):
            self.watch.on_message(text)

    def start(self) -> tuple[int, State, StepTable]:
        self._await_first()
        return super().start()

    def restore(self) -> tuple[int, State, StepTable]:
        self._await_first()
        return super().restore()

    def _await_first(self) -> None:
        if not self.roster.members:
            self.roster.await_devices(self.config.cohort, self.options.minimum, self.options.wait, self.watch.on_message)

    # One round

    def train(self, folder: RunFolder | None = None, resume: bool = False) -> Trained:
        """The rounds of `Training`, whose deltas come from the devices; the trained model to those that only infer."""
        self.begin(folder, resume)
        while not self.ended:
            started, updates = time.perf_counter(), self._enough_updates()
            cohort, parts = answered(self.round, updates, self.device)
            delta, losses = combiner(self.config.server)(parts, cohort.width_bits, self.weighting(cohort))
            self.advance(server_update(self.state, delta, self.server), losses, cohort, started)
        trained = self.finish()
        self._deliver(trained)
        return trained

    def _enough_updates(self) -> list[Update]:
        for _ in range(self.options.tries):
            updates = self._updates(self.round, self.state)
            if len(updates) >= self.options.minimum:
                return updates
        raise RunError(f"round {self.round + 1} had fewer than {self.options.minimum} good answers, {self.options.tries} "
                       f"times (see fleet.jsonl): mend the devices, or lower fleet.minimum{self._last_good()}")

    def _updates(self, round: int, state: State) -> list[Update]:
        """Ask a cohort to train; the good answers, in the order of the cohort."""
        started, devices = time.monotonic(), self._sample(round)
        arrays = {"w": to_record(state.w), "steps": to_record(self.table.steps)}
        questions = [self._question(member, "train", arrays, width) for member, width in devices]
        replies = self.exchange.ask(questions, self.options.deadline)
        widths = {member.client: width for member, width in devices}
        good, log = self._judge([m for m, _ in devices], replies,
                                lambda reply: check_update(reply, round, widths[reply.client], state.w, self.options))
        self._event({"event": "round", "round": round + 1, **log, "seconds": time.monotonic() - started,
                     "bytes_down": sum(payload_bytes(q.content) for q in questions),
                     "bytes_up": sum(reply.bytes for reply in replies.values()),
                     "clipped": {u.client: u.clipped for u in good if u.clipped is not None},
                     "devices": [{"client": u.client, "width": str(u.width), "score": u.score, "examples": u.examples,
                                  "seconds": u.seconds, "bytes": u.bytes} for u in good]})
        return good

    def _sample(self, round: int) -> list[tuple[Member, Width]]:
        """S_t among the devices that are there, each with its own width or the one that the variant draws."""
        least = self.options.minimum
        present = list(self.roster.await_devices(least, least, self.options.wait, self.watch.on_message).values())
        seed, variant = self.config.seed, self.task.variant
        widths = [m.width or variant.widths_of(seed, round, [m.client])[0] for m in present]
        size = min(self.config.cohort, int((shares(self.config.sampling, widths) > 0).sum()))
        chosen = sample_cohort(self.config.sampling, seed, round, len(present), size,
                               lambda positions: [widths[i] for i in positions])
        return [(present[i], widths[i]) for i in chosen]

    def _question(self, member: Member, kind: str, arrays: Mapping[str, ArrayRecord], width: Width | None = None,
                  images: int = 0) -> Question:
        order = ConfigRecord({"config": self.config_text, "round": self.round, "width": str(width or ""),
                              "images": images})
        return Question(member.node, member.client, kind, RecordDict({"order": order, **arrays}))

    def _judge(self, members: list[Member], replies: Mapping[int, Reply],
               check: Callable[[Reply], T]) -> tuple[list[T], dict[str, Any]]:
        """The answers that pass `check`, and who did not answer or was rejected, and why."""
        good, missing, rejected = list[T](), list[int](), dict[int, str]()
        for member in members:
            reply = replies.get(member.client)
            if reply is None or reply.gone:
                missing.append(member.client)
                self.roster.silent.add(member.node)
                continue
            try:
                good.append(check(reply))
            except Refused as reason:
                rejected[member.client] = str(reason)
        asked = [member.client for member in members]
        return good, {"asked": asked, "answered": len(good), "missing": missing, "rejected": rejected}

    # Calibration and delivery

    def _activation_steps(self, w: Tensors, rule: ActivationRule) -> StepTable:
        """The calibration round; once for the same weights."""
        if (id(w), rule) not in self._calibrated:
            self._calibrated = {(id(w), rule): (w, self._calibrate(w, rule))}
        return self._calibrated[id(w), rule][1]

    def _calibrate(self, w: Tensors, rule: ActivationRule) -> StepTable:
        present = self.roster.await_devices(1, 1, self.options.wait, self.watch.on_message)
        chosen = sample_clients(self.config.seed, CALIBRATION, len(present),
                                min(self.options.calibration_devices, len(present)))
        members = [list(present.values())[i] for i in sorted(chosen)]
        images = -(-self.config.ranges.calibration_images // len(members))
        sites = list(quantizers(prepare(self.model, options=self.config.sites), "activations"))
        record = to_record(w)

        def ask(kind: str, check: Callable[[Reply], T], **arrays: ArrayRecord) -> list[T]:
            questions = [self._question(m, f"query.{kind}", {"w": record, **arrays}, images=images) for m in members]
            replies = self.exchange.ask(questions, self.options.deadline)
            good, log = self._judge(members, replies, check)
            self._event({"event": "calibration", "kind": kind, **log})
            if not good:
                raise RunError("no device sent usable activation ranges (see fleet.jsonl): mend the devices")
            return good

        def errors_of(candidates: Tensors) -> Tensors:
            parts = ask("errors", lambda reply: check_errors(reply, self.round, candidates),
                        candidates=to_record(candidates))
            return merged_errors(parts)

        seen = merged_seen(ask("ranges", lambda reply: check_seen(reply, self.round, sites)))
        return table_of(ranges_of(seen), rule, self.config.sites.activation_grid, errors_of).to(self.device)

    def _deliver(self, trained: Trained) -> None:
        """The trained model to the devices that only infer, each at its width, and how it fares there."""
        self.roster.refresh()
        members = list(self.roster.present(inference=True).values())
        if not members:
            return
        prepared, steps = prepare(self.model, options=self.config.sites), to_record(trained.table.steps)
        widths = {m.client: m.width or Width(FLOAT, FLOAT) for m in members}
        models = {width: to_record(low_bit_weights(prepared, trained.w, trained.table, width))
                  for width in set(widths.values())}
        questions = [self._question(m, "evaluate", {"steps": steps, "weights": models[widths[m.client]]}, widths[m.client])
                     for m in members]
        replies = self.exchange.ask(questions, self.options.deadline)

        def check(reply: Reply) -> dict[str, Any]:
            if reply.content is None:
                raise Refused(reply.error)
            values = read_values(reply.content, "answer", {**ANSWER, "score": float})
            check_origin(values, reply.client, self.round)
            return {"client": reply.client, "width": str(widths[reply.client]), "score": values["score"],
                    "examples": values["examples"], "seconds": values["seconds"]}

        good, log = self._judge(members, replies, check)
        self._event({"event": "delivery", **log, "bytes_down": sum(payload_bytes(q.content) for q in questions),
                     "devices": good})


def answered(round: int, updates: list[Update], device: torch.device) -> tuple[Cohort, list[Part]]:
    """What the server knows of the cohort that answered, and its deltas and losses; short losses end in zeros."""
    count, steps = len(updates), max(len(u.losses) for u in updates)
    rows, parts = torch.zeros(count, steps, 1, device=device), list[Part]()
    for i, update in enumerate(updates):
        rows[i, :len(update.losses)] = 1
        losses = pad(update.losses, (0, steps - len(update.losses)))
        parts.append((slice(i, i + 1), {n: d[None].to(device) for n, d in update.delta.items()}, losses[None].to(device)))
    cohort = Cohort(round, tuple(u.client for u in updates), tuple(u.width for u in updates),
                    tuple(u.examples for u in updates), torch.tensor([u.width for u in updates], device=device),
                    torch.zeros(count, steps, 1, dtype=torch.int64, device=device), rows,
                    torch.zeros(count, dtype=torch.int64, device=device))
    return cohort, parts


def _words(entry: Mapping[str, Any]) -> str:
    """An event in words; nothing when all went well."""
    kind, who = entry["event"], f"client {entry.get('client')} (node {entry.get('node')})"
    if kind in ("late", "duplicate", "impostor", "back", "refused", "stale"):
        return {"late": f"{who} answered late; not counted", "duplicate": f"{who} answered twice; counted once",
                "impostor": f"node {entry['node']} answered for client {entry.get('client')}; not counted",
                "back": f"{who} is back", "refused": f"node {entry['node']} is refused: {entry.get('reason')}",
                "stale": f"node {entry['node']} answered a question that was not asked; not counted"}[kind]
    if "missing" not in entry:
        return ""
    what = f"round {entry['round']}" if kind == "round" else kind
    lines = [f"{what}: client {client} did not answer" for client in entry["missing"]]
    lines += [f"{what}: client {client} is rejected: {reason}" for client, reason in entry["rejected"].items()]
    lines += [f"{what}: client {client}'s delta is clipped, norm {norm:.4g}"
              for client, norm in entry.get("clipped", {}).items()]
    return "\n".join(lines)
