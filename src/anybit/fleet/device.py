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
from anybit.federated.algorithm import LOG_STEP, State, client_update
from anybit.federated.cohort import build_cohort
from anybit.federated.variants import Variant, mqat
from anybit.federated.weights import learned_table, trainable, weights
from anybit.files.schema import read
from anybit.fleet.flower import ConfigRecord, RecordDict
from anybit.fleet.node import Node
from anybit.fleet.traffic import low_bit_layout, restored_weights, round_delta
from anybit.fleet.wire import Layout, Tensors, layout, read_tensors, tensor_names, to_record
from anybit.quant.calibrate import activation_errors, activation_seen
from anybit.quant.grid import BITS, FLOAT, SiteKinds, Width
from anybit.quant.ranges import CANDIDATES, StepTable, weight_range
from anybit.quant.sites import SiteOptions, prepare, quantizers, weight_sites
from anybit.randomness import key
from anybit.training.build import build_data, build_functions, build_model, build_split, build_variant
from anybit.training.loop import Training
from anybit.training.task import Task


def device_width(text: str, sites: SiteKinds) -> Width | None:
    """4: that many bits at the variant's sites · W4A8: as it says · empty: none of its own."""
    if not text:
        return None
    return Width.of(sites, int(text)) if text.isdigit() else Width.parse(text)


class LocalTraining(Training):
    """A training with one client: this device."""

    def _check_clients(self) -> None:
        if not len(self.data.train):
            raise ConfigError("this device has no examples")

    def update(self, round: int, client: int, width: Width, state: State, table: StepTable) -> tuple[Tensors, Tensor]:
        """The client's part of a round: its delta, and the loss of every step."""
        config = self.config
        cohort = build_cohort(config.seed, round, [client], [width], {client: np.arange(len(self.data.train))},
                              config.client.batch_size, config.client.epochs).to(self.device)
        self.state, self.table = state, table
        ((_, deltas, losses),) = self.engine.map_clients(client_update, self.client_step(), state.w, table.steps, cohort)
        return {name: delta[0] for name, delta in deltas.items()}, losses[0]

    def score(self, width: Width, state: State, table: StepTable) -> float:
        """The metric of the server's model at the device's width, on the device's examples."""
        sites: SiteKinds = "W" if width.activations == FLOAT else "WA"
        steps = self.evaluator.table(weights(state), learned_table(state, table), self.evaluator.own_steps, sites)
        return self.evaluator.score(weights(state), steps, [width])[str(width)].metric


class Device:
    """A device at work on one message."""

    def __init__(self, content: RecordDict, node: Node, trusted: Collection[str]) -> None:
        self.started = time.perf_counter()
        self.content, self.node = content, node
        self.order: dict[str, Any] = dict(content.config_records["order"])
        config: Config = read(Config, json.loads(self.order["config"]))
        self.config = replace(config, cohort=1, engine="sequential", device=node.device, threads=None)
        self.training = LocalTraining(local_task(self.config, node, trusted), self.config)
        self.model, self.device = self.training.model, self.training.device

    def train(self) -> RecordDict:
        """One round's local training: the delta, and how the model it came from fares here."""
        state, table = self._state(), self._table()
        width = device_width(self.node.width, self.training.task.variant.sites) or Width.parse(self.order["width"])
        score = self.training.score(width, state, table)
        delta, losses = self.training.update(self.order["round"], self.node.client, width, state, table)
        bits = self.config.fleet.uplink_bits
        draw = key(self.config.seed, "uplink", self.order["round"], self.node.client)
        arrays = to_record(delta) if bits == FLOAT else to_record(round_delta(delta, bits, draw))
        return self._answer({"width": str(width), "losses": [float(v) for v in losses], "score": score}, delta=arrays)

    def ranges(self) -> RecordDict:
        """What passes every activation site, on a few examples."""
        w = weights(self._state())
        return self._answer({}, seen=to_record(activation_seen(self.model, self.config.sites, w, self._images())))

    def errors(self) -> RecordDict:
        """The squared rounding errors of the server's candidate steps, on the same examples."""
        w, sites = weights(self._state()), quantizers(prepare(self.model, options=self.config.sites), "activations")
        expected = {site: Layout(torch.float32, (CANDIDATES, len(BITS))) for site in sites}
        candidates = {n: t.to(self.device) for n, t in read_tensors(self.content, "candidates", expected).items()}
        errors = activation_errors(self.model, self.config.sites, w, self._images(), candidates)
        # Squares, in double precision so that sums over devices keep their order; rounding may leave a hair below 0.
        return self._answer({}, errors=to_record({site: each.double().clamp_min(0) for site, each in errors.items()}))

    def evaluate(self) -> RecordDict:
        """Receive the model at this device's width, and see how it fares here."""
        width, table = Width.parse(self.order["width"]), self._table()
        prepared, like = prepare(self.model, options=self.config.sites), layout(trainable(self.model))
        arrays = read_tensors(self.content, "weights", low_bit_layout(prepared, like, width))
        w = {n: t.to(self.device) for n, t in restored_weights(prepared, arrays, like, table, width).items()}
        on_grid = Width(FLOAT, width.activations)
        return self._answer({"score": self.training.evaluator.score(w, table, [on_grid])[str(on_grid)].metric})

    def _images(self) -> Tensor:
        return self.training.evaluator.images[:self.order["images"]]

    def _state(self) -> State:
        """The server's w, in the order of the model: sums over parameters must add up as they do elsewhere."""
        like = layout(trainable(self.model))
        learned = [n for n in tensor_names(self.content, "w") if n.startswith(LOG_STEP)]
        shapes = step_layouts(self.model, self.config.sites)
        like |= {name: shapes[name.removeprefix(LOG_STEP)] for name in learned}
        return State({n: t.to(self.device) for n, t in read_tensors(self.content, "w", like).items()}, {})

    def _table(self) -> StepTable:
        expected = step_layouts(self.model, self.config.sites)
        return StepTable(read_tensors(self.content, "steps", expected)).to(self.device)

    def _answer(self, values: dict[str, Any], **arrays: Any) -> RecordDict:
        values |= {"client": self.node.client, "round": self.order["round"], "examples": len(self.training.data.train),
                   "seconds": time.perf_counter() - self.started}
        return RecordDict({"answer": ConfigRecord(values), **arrays})


def step_layouts(model: nn.Module, options: SiteOptions) -> dict[str, Layout]:
    """The layout of a step table: BITS first, then one step per tensor or per channel."""
    prepared, parameters = prepare(model, options=options), dict(model.named_parameters())
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(quantizers(prepared), ())
    for site, name in weight_sites(prepared).items():
        shapes[site] = tuple(weight_range(parameters[name], options.per_channel)[0].shape)
    return {site: Layout(torch.float32, (len(BITS), *shape)) for site, shape in shapes.items()}


def local_task(config: Config, node: Node, trusted: Collection[str]) -> Task:
    """The recipe's model and variant with this device's data: its own, or (for a trial) its part of the recipe's."""
    model, variant = build_model(config, trusted), build_variant(config, trusted)
    if node.data:
        data = build_data(replace(config, data=Component(node.data)), [*trusted, node.data.partition(":")[0]])
        mine, seen = data.train, data.test if len(data.test) else data.train
    else:
        data = build_data(config, trusted)
        split = build_split(config, data, trusted)
        if node.client >= len(split):
            raise ConfigError(f"node config: partition-id = {node.client}, but the recipe's split has {len(split)} clients")
        index = torch.from_numpy(split[node.client])
        mine = seen = Examples(data.train.x[index], data.train.y[index])
    return Task(model, variant, Data(mine, seen, data.pipeline), [np.arange(len(mine))],
                *build_functions(config, trusted))


def local_update(model: nn.Module, w: Tensors, examples: tuple[Any, Any], *, width: str = "FP32", round: int = 0,
                 client: int = 0, variant: Variant | None = None, seed: int = Config.seed,
                 options: ClientOptions = ClientOptions(), sites: SiteOptions = SiteOptions(),
                 table: StepTable | None = None) -> tuple[dict[str, Tensor], float]:
    """anybit's client update for a ClientApp of your own: (the delta w_K − w_0, the mean loss).

    table: steps that the server fixed; none: estimated from `w` (and `examples`) by the variant's own rule.
    """
    mine = as_examples(*examples, "examples")
    task = Task(model, variant or mqat(), Data(mine, mine), [np.arange(len(mine))])
    config = Config(cohort=1, seed=seed, client=options, sites=sites, engine="sequential", device="cpu")
    training = LocalTraining(task, config)
    state = State({name: w[name].detach().clone() for name in trainable(model)}, {})
    steps = table or training.evaluator.start_table(state.w)
    delta, losses = training.update(round, client, Width.parse(width), state, steps)
    return dict(delta), float(losses.mean())
