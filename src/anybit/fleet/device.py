"""The work of a device: train, evaluate, measure ranges. Its examples stay here."""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from anybit.config import ClientOptions, Component, Config
from anybit.data.examples import Data, as_examples
from anybit.errors import ConfigError
from anybit.federated.algorithm import client_update
from anybit.federated.cohort import build_cohort
from anybit.federated.privacy import client_noise, clipped_deltas
from anybit.federated.state import Trainable, trainable_weights, trained_table
from anybit.federated.variants import Variant, mqat
from anybit.files.reading import bounded
from anybit.fleet.flower import ConfigRecord, RecordDict
from anybit.fleet.node import Node, check_width, is_bits
from anybit.fleet.traffic import low_bit_layout, on_their_grid, restored_weights, round_delta
from anybit.fleet.wire import Layout, layout, read_tensors, to_record
from anybit.quant.calibrate import activation_errors, activation_seen
from anybit.quant.grid import BITS, FLOAT, SiteKinds, Width
from anybit.quant.ranges import CANDIDATES, StepTable
from anybit.quant.sites import SiteOptions, all_parameters, prepare, quantizers
from anybit.randomness import key
from anybit.schema import read
from anybit.tensors import Tensors, moved, picked
from anybit.training.build import Components
from anybit.training.computation import Computation, open_computation
from anybit.training.machine import computing
from anybit.training.task import Task


def sent_config(text: str) -> Config:
    """Read the config that came with a question, as strictly as a file."""
    try:
        config: Config = read(Config, bounded(json.loads(text)))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the server's config is not readable as JSON ({error})") from None
    return config


def device_width(text: str, sites: SiteKinds) -> Width | None:
    """Return the width in a node config: "4" is bits of the variant's sites, "W4A8" a width, "" none."""
    if not text:
        return None
    return Width.of(sites, int(text)) if is_bits(text) else Width.parse(check_width(text))


def _train_client(computation: Computation, round: int, client: int, width: Width, w: Trainable,
                  table: StepTable) -> tuple[Trainable, Tensor]:
    """Train one client for a round; return the delta, and the loss of every local step."""
    config = computation.config
    cohort = build_cohort(config.seed, round, [client], [width], {client: np.arange(len(computation.task.data.train))},
                          config.client, computation.task.variant.step_widths).to(computation.device)
    ((_, deltas, losses),) = computation.engine.map_clients(
        client_update, computation.client_step(table), w, computation.paced(computation.given(table), round), cohort)
    return picked(deltas, 0), losses[0]


def _check_examples(task: Task, config: Config) -> None:
    if not len(task.data.train):
        raise ConfigError("this device has no examples")


class Device:
    """A device at work on one message."""

    def __init__(self, content: RecordDict, node: Node, trusted: Collection[str]) -> None:
        self.started = time.perf_counter()
        self.content, self.node = content, node
        self.order: dict[str, Any] = dict(content.config_records["order"])
        config = sent_config(self.order["config"])
        # The server's own optimizer and schedule are no business of a device, nor its code to import.
        self.config = replace(config, cohort=1, engine="sequential", device=node.device, threads=None,
                              server=replace(config.server, optimizer="sgd", schedule="constant"))
        self.computation = open_computation(local_task(self.config, node, trusted), self.config, _check_examples)
        self.task, self.device = self.computation.task, self.computation.device
        self.evaluator = self.computation.evaluator

    def answer(self, kind: str) -> RecordDict:
        """Do the work of one kind of message, and return the answer."""
        with computing(self.config):
            return {"train": self.train, "evaluate": self.evaluate, "ranges": self.ranges, "errors": self.errors}[kind]()

    def train(self) -> RecordDict:
        """Train for one round; answer with the delta, the losses, and the score of the model before.

        Where the device is promised privacy, with the delta alone, clipped and noisy if the server is not to see it.
        """
        w, table = self._trainable(), self._table()
        width = device_width(self.node.width, self.task.variant.sites) or Width.parse(self.order["width"])
        privacy, round = self.config.privacy, self.order["round"]
        score = 0.0 if privacy.private else self._score(width, w, table)
        delta, losses = _train_client(self.computation, round, self.node.client, width, w, table)
        if privacy.clip is not None and privacy.where == "local":
            cut = picked(clipped_deltas(picked(delta, None), privacy.clip), 0)
            noise = client_noise(privacy, delta, self.config.seed, round, self.node.client)
            delta = pytree.tree_map(torch.add, cut, moved(noise, self.device))
        bits = self.config.fleet.uplink_bits
        draw = key(self.config.seed, "uplink", round, self.node.client)
        tensors = delta.named() if bits == FLOAT else round_delta(delta, bits, draw)
        if privacy.private:
            said = ConfigRecord({"client": self.node.client, "round": round, "width": str(width)})
            return RecordDict({"answer": said, "delta": to_record(tensors)})
        return self._answer({"width": str(width), "losses": [float(loss) for loss in losses], "score": score},
                            delta=to_record(tensors))

    def ranges(self) -> RecordDict:
        """Measure statistics of every activation site on a few examples."""
        images = picked(self.evaluator.images, slice(self.order["images"]))
        seen = activation_seen(self.task.model, self.config.sites, self._weights(), images)
        return self._answer({}, seen=to_record(seen))

    def errors(self) -> RecordDict:
        """Measure the squared rounding errors of the server's candidate step sizes on the same examples."""
        sites = quantizers(prepare(self.task.model, options=self.config.sites), "activations")
        expected = {site: Layout(torch.float32, (CANDIDATES, len(BITS))) for site in sites}
        candidates = moved(read_tensors(self.content, "candidates", expected), self.device)
        images = picked(self.evaluator.images, slice(self.order["images"]))
        errors = activation_errors(self.task.model, self.config.sites, self._weights(), images, candidates)
        # Squares, in double precision so that sums over devices keep their order; rounding may leave a hair below 0.
        return self._answer({}, errors=to_record({site: e.double().clamp_min(0) for site, e in errors.items()}))

    def evaluate(self) -> RecordDict:
        """Restore the model from codes at this device's width, frozen weights from its own, and score it."""
        width, table = Width.parse(self.order["width"]), self._table()
        prepared, like = prepare(self.task.model, options=self.config.sites), layout(trainable_weights(self.task.model))
        arrays = read_tensors(self.content, "weights", low_bit_layout(prepared, like, table, width))
        on_cpu = table.to(torch.device("cpu"))
        frozen = {name: p for name, p in all_parameters(self.task.model, {}).items() if name not in like}
        w = moved({**restored_weights(prepared, arrays, like, on_cpu, width),
                   **on_their_grid(prepared, frozen, on_cpu, width)}, self.device)
        on_grid = Width(FLOAT, width.activations)
        return self._answer({"score": self.evaluator.score(w, table, [on_grid])[str(on_grid)].metric})

    def _score(self, width: Width, w: Trainable, table: StepTable) -> float:
        """Return the metric of the server's model at this device's width, on its examples."""
        sites: SiteKinds = "W" if width.activations == FLOAT else "WA"
        finder = self.evaluator.finder(w.w, trained_table(table, w.w, w.log_steps.by_site()))
        return self.evaluator.score(w.w, finder.table(self.evaluator.own_steps, sites), [width])[str(width)].metric

    def _trainable(self) -> Trainable:
        """Read the server's weights and learned step sizes, in the order of the model."""
        like = self.computation.like()[0].trainable
        return moved(like.from_names(read_tensors(self.content, "w", layout(like.named()))), self.device)

    def _weights(self) -> Tensors:
        return moved(read_tensors(self.content, "w", layout(trainable_weights(self.task.model))), self.device)

    def _table(self) -> StepTable:
        expected = layout(self.computation.like()[1].steps)
        return StepTable(read_tensors(self.content, "steps", expected)).to(self.device)

    def _answer(self, values: dict[str, Any], **arrays: Any) -> RecordDict:
        values |= {"client": self.node.client, "round": self.order["round"], "examples": len(self.task.data.train),
                   "seconds": time.perf_counter() - self.started}
        return RecordDict({"answer": ConfigRecord(values), **arrays})


def local_task(config: Config, node: Node, trusted: Collection[str]) -> Task:
    """Make the recipe's task with this device's data: its own, or (for a trial) its part of the recipe's."""
    components = Components(config, trusted)
    if node.data:
        data = Components(replace(config, data=Component(node.data)), [*trusted, node.data.partition(":")[0]]).build_data()
        examples, test = data.train, data.test if len(data.test) else data.train
    else:
        data = components.build_data()
        split = components.build_split(data)
        if node.client >= len(split):
            raise ConfigError(f"node config: partition-id = {node.client}, but the recipe's split has {len(split)} clients")
        index = torch.from_numpy(split[node.client])
        examples = test = data.train.rows(index)
    return Task(components.build_model(), components.build_variant(), Data(examples, test, data.pipeline),
                [np.arange(len(examples))], components.loss, components.metric, config.output)


def local_update(model: nn.Module, w: Tensors, examples: tuple[Any, Any], *, width: str = "FP32", round: int = 0,
                 client: int = 0, variant: Variant | None = None, seed: int = Config.seed,
                 options: ClientOptions = ClientOptions(), sites: SiteOptions = SiteOptions(),
                 table: StepTable | None = None, output: str | int | None = None) -> tuple[dict[str, Tensor], float]:
    """Return (delta w_K − w_0, mean loss) of anybit's client update, for a ClientApp of your own.

    table: step sizes that the server fixed; default: estimated from `w` (and `examples`) by the variant's step rule ·
    output: as in `fit`.
    """
    data = as_examples(*examples, "examples")
    task = Task(model, variant or mqat(), Data(data, data), [np.arange(len(data))], output=output)
    config = Config(cohort=1, seed=seed, client=options, sites=sites, engine="sequential", device="cpu")
    with computing(config):
        computation = open_computation(task, config, _check_examples)
        start = Trainable({name: w[name].detach().clone() for name in trainable_weights(model)})
        steps = table or computation.evaluator.start_table(start.w)
        delta, losses = _train_client(computation, round, client, Width.parse(width), start, steps)
    return delta.w, float(losses.mean())
