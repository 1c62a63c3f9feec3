"""What hostile devices do to a fleet's model, and what stands against it:

    python benchmarks/attacks.py            # adds what is missing to results/security/attacks.csv (20 minutes on a core)
    python tools/measured.py                # makes the table in docs/deployment.md of it

Ten devices with parts of the digits, two of them hostile in every round, train a small network with the server's own code:
its questions, checks of answers, bounds, means and optimizer; only the network between is left out, and all devices of a
round train at once. Accuracy in percent at 32 and at 2 bits, over three seeds.
"""

from __future__ import annotations

import argparse
import csv
import functools
import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast
from unittest import mock

import numpy as np
import torch
from torch import nn

from anybit.config import Config, from_recipe
from anybit.federated.algorithm import client_update
from anybit.federated.cohort import build_cohort
from anybit.federated.state import Trainable
from anybit.fleet import calibration, checks
from anybit.fleet import training as fleet_training
from anybit.fleet.devices import Devices
from anybit.fleet.exchange import Question, Reply
from anybit.fleet.flower import ConfigRecord, Grid, RecordDict
from anybit.fleet.roster import Member
from anybit.fleet.wire import layout, payload_bytes, read_tensors, to_record
from anybit.inputs import Inputs
from anybit.quant.calibrate import activation_seen
from anybit.quant.grid import Width
from anybit.tensors import Tensors, picked
from anybit.training.build import build_task, settled
from anybit.training.computation import Computation, open_computation
from anybit.training.evaluation import calibration_images
from anybit.training.loop import begin, train
from anybit.training.machine import computing
from anybit.training.task import Task

CLIENTS, HOSTILE = 10, (0, 1)
BASE = ["model.name=attacks:network", f"split.clients={CLIENTS}", f"cohort={CLIENTS}", "client.batch_size=32",
        "evaluation.bits=[32, 2]", "evaluation.steps=[\"table\"]", "engine=stacked", "device=cpu", "threads=1",
        "fleet.minimum=1", "fleet.quarantine=1000"]
Answer = dict[str, Any]
"""What a device sends: delta, examples, losses; or the statistics of its sites."""
DEFENCES = {"none": ["fleet.norm_bound=off", "fleet.examples_bound=1e9"], "fleet defaults": [],
            **{mean: [f"server.mean={mean}"] for mean in ("median", "trimmed", "geometric", "krum")}}
"""The settings of every defence; a robust mean comes on top of the defaults. Without any, ranges are merged as they are
sent, and learned step sizes are believed, too, which no setting of a fleet can make happen."""
TABLE = Path(__file__).parents[1] / "results/security/attacks.csv"
COLUMNS = ("attack", "defence", "bits", "mean", "smallest", "largest", "seeds", "rounds")


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def scaled(factor: float, answer: Answer) -> None:
    answer["delta"] = answer["delta"]._replace(w={name: factor * d for name, d in answer["delta"].w.items()})


def many(answer: Answer) -> None:
    """Claim as many examples as are believed, with as many losses as that makes, and a delta to the other side."""
    scaled(-1, answer)
    answer["examples"] = 1_000_000
    answer["losses"] = [1.0] * (1_000_000 // 32)


def pushed(by: float | None, answer: Answer) -> None:
    """Widen all learned step sizes, at the bits that were trained, by e^by; none: as far as local steps could."""
    most = by or 0.01 * len(answer["losses"])
    log_steps = answer["delta"].log_steps
    answer["delta"] = answer["delta"]._replace(log_steps=type(log_steps)(*(
        {site: torch.where(steps != 0, most, 0.0) for site, steps in kind.items()} for kind in log_steps)))


def far(answer: Answer) -> None:
    lie = torch.tensor([1.0, -1e6, 1e6, 1e9, 1e3, 1e3, -1e6, 1e6])
    answer["seen"] = dict.fromkeys(answer["seen"], lie)


@dataclass(frozen=True)
class Scenario:
    """An attack, on a fleet with these settings."""

    name: str
    settings: Sequence[str] = ()
    lie: Callable[[Answer], None] = lambda answer: None
    kind: str = "train"
    """The question that hostile devices answer with the lie."""
    flipped: bool = False
    """Hostile devices train honestly, on the labels 9 − y."""


EXAMPLES, LEARNED, BOTH, SKEWED = ["weighting=examples"], ["ranges.learned=true"], ["variant.sites=WA"], ["split.alpha=0.1"]
FLIP = functools.partial(scaled, -1.0)
SCENARIOS = [
    Scenario("honest"), Scenario("sign flip", lie=FLIP), Scenario("scaling by −100", lie=functools.partial(scaled, -100.0)),
    Scenario("label flip", flipped=True),
    Scenario("honest, WA", BOTH), Scenario("range poisoning, WA", BOTH, far, "query.ranges"),
    Scenario("honest, learned steps", LEARNED), Scenario("step poisoning", LEARNED, functools.partial(pushed, 2.0)),
    Scenario("step poisoning within bounds", LEARNED, functools.partial(pushed, None)),
    Scenario("honest, α = 0.1", SKEWED), Scenario("sign flip, α = 0.1", SKEWED, FLIP),
    Scenario("honest, examples weigh", EXAMPLES), Scenario("lies about counts", EXAMPLES, many)]
"""α: of the Dirichlet split, 1 where nothing is said; the smaller, the less alike are devices."""


class Fleet(Devices):
    """Devices that train all at once in this process; the hostile ones then change their answers."""

    def __init__(self, task: Task, config: Config, scenario: Scenario) -> None:
        super().__init__(mock.create_autospec(Grid, instance=True), config, task.variant.sites)
        self.scenario, self.members = scenario, {c: Member(100 + c, c, None, False) for c in range(CLIENTS)}
        self.here: Computation = open_computation(task, config)

    def present(self, wanted: int, least: int) -> dict[int, Member]:
        return self.members

    def ask(self, questions: list[Question]) -> dict[int, Reply]:
        work = {"train": self._trained, "query.ranges": self._seen}[questions[0].kind]
        return {q.client: self._reply(q, answer) for q, answer in zip(questions, work(questions), strict=True)}

    def _reply(self, question: Question, answer: Answer) -> Reply:
        if question.client in HOSTILE and question.kind == self.scenario.kind:
            self.scenario.lie(answer)
        arrays = {name: to_record(value.named() if isinstance(value, Trainable) else value) for name, value in answer.items()
                  if isinstance(value, Trainable | dict)}
        values = {name: value for name, value in answer.items() if name not in arrays}
        content = RecordDict({"answer": ConfigRecord({"client": question.client, "round": self.round, "seconds": 0.0,
                                                      **values}), **arrays})
        return Reply(question.client, content, "", False, payload_bytes(content))

    def _trained(self, questions: Sequence[Question]) -> Iterator[Answer]:
        here, config = self.here, self.here.config
        like, table = here.like()
        sent = questions[0].content
        w = like.trainable.from_names(read_tensors(sent, "w", layout(like.trainable.named())))
        table = replace(table, steps=read_tensors(sent, "steps", layout(table.steps)))
        clients = [question.client for question in questions]
        widths = [Width.parse(str(question.content.config_records["order"]["width"])) for question in questions]
        cohort = build_cohort(config.seed, self.round, clients, widths, here.task.split, config.client,
                              here.task.variant.step_widths)
        parts = here.engine.map_clients(client_update, here.client_step(table), w,
                                        here.paced(here.given(table), self.round), cohort)
        deltas = [(picked(deltas, i), losses[i]) for _, deltas, losses in parts for i in range(len(losses))]
        for client, width, (delta, losses) in zip(clients, widths, deltas, strict=True):
            examples = len(here.task.split[client])
            steps = config.client.steps_of(examples)
            yield {"width": str(width), "examples": examples, "score": 0.0, "delta": picked(delta, ...),
                   "losses": losses[:steps].tolist()}

    def _images(self, client: int, question: Question) -> Inputs:
        data, count = self.here.task.data, cast(int, question.content.config_records["order"]["images"])
        own = replace(data, train=data.train.rows(torch.as_tensor(self.here.task.split[client])))
        return calibration_images(own, count, self.here.config.seed)

    def _weights(self, question: Question) -> Tensors:
        return read_tensors(question.content, "w", layout(self.here.like()[0].w))

    def _seen(self, questions: Sequence[Question]) -> Iterator[Answer]:
        for q in questions:
            seen = activation_seen(self.here.task.model, self.here.config.sites, self._weights(q), self._images(q.client, q))
            yield {"examples": len(self.here.task.split[q.client]), "seen": dict(seen)}


def accuracy(scenario: Scenario, defence: str, seed: int, rounds: int) -> dict[str, float]:
    """Train a fleet under attack, and return its accuracy at the widths of the table."""
    config = settled(from_recipe("quickstart/mqat", [*BASE, f"seed={seed}", f"rounds={rounds}", f"evaluation.every={rounds}",
                                                     *scenario.settings, *DEFENCES[defence]]), ["attacks"])
    with computing(config):
        task = build_task(config, ["attacks"])
        if scenario.flipped:
            task = _with_flipped_labels(task)
        fleet = Fleet(task, config, scenario)
        server = fleet_training.fleet_computation(task, config, fleet)
        with ExitStack() as undefended:
            if defence == "none":
                undefended.enter_context(mock.patch.object(calibration, "_moderate", lambda seen, images: seen))
                undefended.enter_context(mock.patch.object(checks, "_check_log_steps"))
            training = begin(server)
            trained = train(training, fleet_training.FleetRounds(training, fleet))
    own = trained.evaluation["grid"][trained.evaluation["own"]]
    sites = "WA" if scenario.settings == BOTH else "W"
    return {"FP32": own["FP32"]["metric"], "2 bits": own[f"{sites}2"]["metric"]}


def _with_flipped_labels(task: Task) -> Task:
    y = task.data.train.y.clone()
    index = torch.as_tensor(np.concatenate([task.split[client] for client in HOSTILE]))
    y[index] = 9 - y[index]
    return replace(task, data=replace(task.data, train=replace(task.data.train, y=y)))


def run(rounds: int, seeds: int) -> None:
    """Train what the table lacks."""
    kept = {(row["attack"], row["defence"]) for row in rows()} if TABLE.exists() else set()
    TABLE.parent.mkdir(parents=True, exist_ok=True)
    with open(TABLE, "a", newline="", encoding="utf-8") as file:
        lines = csv.writer(file, lineterminator="\n")
        if not kept:
            lines.writerow(COLUMNS)
        for scenario, defence in itertools.product(SCENARIOS, DEFENCES):
            if (scenario.name, defence) in kept:
                continue
            runs = [accuracy(scenario, defence, seed, rounds) for seed in range(1, seeds + 1)]
            for bits in runs[0]:
                scores = [run[bits] for run in runs]
                lines.writerow([scenario.name, defence, bits, f"{statistics.fmean(scores):.2f}", f"{min(scores):.2f}",
                                f"{max(scores):.2f}", len(scores), rounds])
                print(f"{scenario.name:28} {defence:22} {bits:7} {statistics.fmean(scores):6.2f}", flush=True)
            file.flush()


def rows() -> list[dict[str, str]]:
    with open(TABLE, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    run(given.rounds, given.seeds)


if __name__ == "__main__":
    main()
