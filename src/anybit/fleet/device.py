"""What a device does with a message: train, evaluate, measure ranges. Its examples stay here."""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anybit.config import ClientOptions, Component, Config
from anybit.data.examples import Data, Examples, as_examples
from anybit.errors import ConfigError
from anybit.federated.algorithm import client_update
from anybit.federated.cohort import build_cohort
from anybit.federated.state import Trainable, learned_table, trainable_weights
from anybit.federated.variants import Variant, mqat
from anybit.files.schema import read
from anybit.fleet.flower import ConfigRecord, RecordDict
from anybit.fleet.node import Node
from anybit.fleet.traffic import low_bit_layout, restored_weights, round_delta
from anybit.fleet.wire import Layout, layout, read_tensors, to_record
from anybit.quant.calibrate import activation_errors, activation_seen
from anybit.quant.grid import BITS, FLOAT, SiteKinds, Width
from anybit.quant.ranges import CANDIDATES, StepTable
from anybit.quant.sites import SiteOptions, prepare, quantizers
from anybit.randomness import key
from anybit.tensors import Tensors, moved, picked
from anybit.training.build import Components
from anybit.training.computation import open_computation
from anybit.training.machine import computing
from anybit.training.task import Task


def device_width(text: str, sites: SiteKinds) -> Width | None:
    """4: that many bits at the variant's sites · W4A8: as it says · empty: none of its own."""
    if not text:
        return None
    return Width.of(sites, int(text)) if text.isdigit() else Width.parse(text)


class LocalClient:
    """One client of a run, on its own machine."""

    def __init__(self, task: Task, config: Config) -> None:
        self.computation = open_computation(task, config, _check_examples)

    def update(self, round: int, client: int, width: Width, w: Trainable, table: StepTable) -> tuple[Trainable, Tensor]:
        """Train for a round; return the delta, and the loss of every local step."""
        computation, config = self.computation, self.computation.config
        cohort = build_cohort(config.seed, round, [client], [width], {client: np.arange(len(computation.task.data.train))},
                              config.client.batch_size, config.client.epochs).to(computation.device)
        parts = computation.engine.map_clients(client_update, computation.client_step(table), w, computation.given(table),
                                               cohort)
        ((_, deltas, losses),) = parts
        return picked(deltas, 0), losses[0]

    def score(self, width: Width, w: Trainable, table: StepTable) -> float:
        """Return the metric of the server's model at the device's width, on the device's examples."""
        sites: SiteKinds = "W" if width.activations == FLOAT else "WA"
        evaluator = self.computation.evaluator
        steps = evaluator.finder(w.w, learned_table(table, w.log_steps.by_site())).table(evaluator.own_steps, sites)
        return evaluator.score(w.w, steps, [width])[str(width)].metric


def _check_examples(task: Task, config: Config) -> None:
    if not len(task.data.train):
        raise ConfigError("this device has no examples")


class Device:
    """A device at work on one message."""

    def __init__(self, content: RecordDict, node: Node, trusted: Collection[str]) -> None:
        self.started = time.perf_counter()
        self.content, self.node = content, node
        self.order: dict[str, Any] = dict(content.config_records["order"])
        config: Config = read(Config, json.loads(self.order["config"]))
        self.config = replace(config, cohort=1, engine="sequential", device=node.device, threads=None)
        self.local = LocalClient(local_task(self.config, node, trusted), self.config)
        self.task, self.device = self.local.computation.task, self.local.computation.device
        self.evaluator = self.local.computation.evaluator

    def answer(self, kind: str) -> RecordDict:
        """Do what a message of this kind asks for."""
        with computing(self.config):
            return {"train": self.train, "evaluate": self.evaluate, "ranges": self.ranges, "errors": self.errors}[kind]()

    def train(self) -> RecordDict:
        """Train for one round: the delta, and how the model it came from fares here."""
        w, table = self._trainable(), self._table()
        width = device_width(self.node.width, self.task.variant.sites) or Width.parse(self.order["width"])
        score = self.local.score(width, w, table)
        delta, losses = self.local.update(self.order["round"], self.node.client, width, w, table)
        bits = self.config.fleet.uplink_bits
        draw = key(self.config.seed, "uplink", self.order["round"], self.node.client)
        arrays = to_record(delta.named()) if bits == FLOAT else to_record(round_delta(delta, bits, draw))
        return self._answer({"width": str(width), "losses": [float(v) for v in losses], "score": score}, delta=arrays)

    def ranges(self) -> RecordDict:
        """See what passes every activation site, on a few examples."""
        seen = activation_seen(self.task.model, self.config.sites, self._weights(), self._images())
        return self._answer({}, seen=to_record(seen))

    def errors(self) -> RecordDict:
        """Measure the squared rounding errors of the server's candidate step sizes, on the same examples."""
        sites = quantizers(prepare(self.task.model, options=self.config.sites), "activations")
        expected = {site: Layout(torch.float32, (CANDIDATES, len(BITS))) for site in sites}
        candidates = moved(read_tensors(self.content, "candidates", expected), self.device)
        errors = activation_errors(self.task.model, self.config.sites, self._weights(), self._images(), candidates)
        # Squares, in double precision so that sums over devices keep their order; rounding may leave a hair below 0.
        return self._answer({}, errors=to_record({site: each.double().clamp_min(0) for site, each in errors.items()}))

    def evaluate(self) -> RecordDict:
        """Receive the model at this device's width, and see how it fares here."""
        width, table = Width.parse(self.order["width"]), self._table()
        prepared, like = prepare(self.task.model, options=self.config.sites), layout(trainable_weights(self.task.model))
        arrays = read_tensors(self.content, "weights", low_bit_layout(prepared, like, table, width))
        w = moved(restored_weights(prepared, arrays, like, table.to(torch.device("cpu")), width), self.device)
        on_grid = Width(FLOAT, width.activations)
        return self._answer({"score": self.evaluator.score(w, table, [on_grid])[str(on_grid)].metric})

    def _images(self) -> Tensor:
        return self.evaluator.images[:self.order["images"]]

    def _trainable(self) -> Trainable:
        """Read the server's weights and learned step sizes, in the order of the model."""
        like = self.local.computation.like()[0].trainable
        return moved(like.from_names(read_tensors(self.content, "w", layout(like.named()))), self.device)

    def _weights(self) -> Tensors:
        """Read the server's weights alone."""
        return moved(read_tensors(self.content, "w", layout(trainable_weights(self.task.model))), self.device)

    def _table(self) -> StepTable:
        expected = layout(self.local.computation.like()[1].steps)
        return StepTable(read_tensors(self.content, "steps", expected)).to(self.device)

    def _answer(self, values: dict[str, Any], **arrays: Any) -> RecordDict:
        values |= {"client": self.node.client, "round": self.order["round"], "examples": len(self.task.data.train),
                   "seconds": time.perf_counter() - self.started}
        return RecordDict({"answer": ConfigRecord(values), **arrays})


def local_task(config: Config, node: Node, trusted: Collection[str]) -> Task:
    """Make the recipe's model and variant with this device's data: its own, or (for a trial) its part of the recipe's."""
    named = Components(config, trusted)
    if node.data:
        own = Components(replace(config, data=Component(node.data)), [*trusted, node.data.partition(":")[0]])
        data = own.build_data()
        examples, seen = data.train, data.test if len(data.test) else data.train
    else:
        data = named.build_data()
        split = named.build_split(data)
        if node.client >= len(split):
            raise ConfigError(f"node config: partition-id = {node.client}, but the recipe's split has {len(split)} clients")
        index = torch.from_numpy(split[node.client])
        examples = seen = Examples(data.train.x[index], data.train.y[index])
    return Task(named.build_model(), named.build_variant(), Data(examples, seen, data.pipeline),
                [np.arange(len(examples))], named.loss, named.metric)


def local_update(model: nn.Module, w: Tensors, examples: tuple[Any, Any], *, width: str = "FP32", round: int = 0,
                 client: int = 0, variant: Variant | None = None, seed: int = Config.seed,
                 options: ClientOptions = ClientOptions(), sites: SiteOptions = SiteOptions(),
                 table: StepTable | None = None) -> tuple[dict[str, Tensor], float]:
    """Run anybit's client update in a ClientApp of your own: (the delta w_K − w_0, the mean loss).

    table: step sizes that the server fixed; none: estimated from `w` (and `examples`) by the variant's own rule.
    """
    own = as_examples(*examples, "examples")
    task = Task(model, variant or mqat(), Data(own, own), [np.arange(len(own))])
    config = Config(cohort=1, seed=seed, client=options, sites=sites, engine="sequential", device="cpu")
    with computing(config):
        local = LocalClient(task, config)
        start = Trainable({name: w[name].detach().clone() for name in trainable_weights(model)})
        steps = table or local.computation.evaluator.start_table(start.w)
        delta, losses = local.update(round, client, Width.parse(width), start, steps)
    return delta.w, float(losses.mean())
