"""What quantized uplinks cost and save on the quickstart: python benchmarks/fleet_traffic.py

Trains quickstart/mqat with deltas as they are, and rounded stochastically to 8 and 4 bits by the code that devices use,
and weighs the messages of a round as Flower carries them. Writes results/fleet/traffic.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

from anybit.config import from_recipe
from anybit.engines.base import Engine
from anybit.environment import environment
from anybit.federated.state import Trainable
from anybit.fleet.flower import RecordDict
from anybit.fleet.traffic import low_bit_weights, round_delta, rounded_layout, unrounded_delta
from anybit.fleet.wire import layout, payload_bytes, read_tensors, to_record
from anybit.quant.grid import FLOAT, Width
from anybit.quant.sites import prepare
from anybit.randomness import key
from anybit.tensors import Part, picked, stacked
from anybit.training.build import build_task, settled
from anybit.training.computation import Computation, open_computation
from anybit.training.loop import Simulation, begin, train
from anybit.training.machine import computing
from anybit.training.task import Trained

WIDTHS = ("FP32", "W8", "W6", "W4", "W3", "W2")
UPLINKS = (FLOAT, 8, 4)


class Uplink:
    """An engine whose deltas travel: rounded by every client, written and read as in a message."""

    def __init__(self, engine: Engine, seed: int, bits: int) -> None:
        self.map, self.seed, self.bits = engine.map_clients, seed, bits
        self.bytes = 0
        """Of one round."""

    def map_clients(self, *arguments: Any) -> Iterator[Part]:
        self.bytes, cohort = 0, arguments[-1]
        for clients, deltas, losses in self.map(*arguments):
            sent = [self._travel(picked(deltas, i), key(self.seed, "uplink", cohort.round, client))
                    for i, client in enumerate(cohort.clients[clients])]
            self.bytes += sum(size for _, size in sent)
            yield clients, stacked([delta for delta, _ in sent]), losses

    def _travel(self, delta: Trainable, draw: int) -> tuple[Trainable, int]:
        tensors = delta.named() if self.bits == FLOAT else round_delta(delta, self.bits, draw)
        content = RecordDict({"delta": to_record(tensors)})
        if self.bits == FLOAT:
            return delta.from_names(read_tensors(content, "delta", layout(tensors))), payload_bytes(content)
        arrays = read_tensors(content, "delta", rounded_layout(delta, self.bits))
        return unrounded_delta(arrays, delta, self.bits), payload_bytes(content)


def train_over(seed: int, rounds: int, bits: int) -> tuple[Trained, Computation, int]:
    config = settled(from_recipe("quickstart/mqat", [f"seed={seed}", f"rounds={rounds}", "device=cpu",
                                                     f"evaluation.every={rounds}"]))
    with computing(config):
        computation = open_computation(build_task(config), config)
        uplink = Uplink(computation.engine, config.seed, bits)
        computation.engine.map_clients = uplink.map_clients  # type: ignore[method-assign, assignment]
        training = begin(computation)
        return train(training, Simulation(training)), computation, uplink.bytes


def downlinks(trained: Trained, computation: Computation) -> dict[str, int]:
    """Bytes of the model for one device: to train (all of w), and to infer at a width."""
    steps = to_record(trained.table.steps)
    prepared = prepare(computation.task.model, options=computation.config.sites)
    sizes = {"train": payload_bytes(RecordDict({"w": to_record(trained.w), "steps": steps}))}
    for width in WIDTHS[1:]:
        weights = to_record(low_bit_weights(prepared, trained.w, trained.table, Width.parse(width)))
        sizes[f"infer at {width}"] = payload_bytes(RecordDict({"weights": weights, "steps": steps}))
    return sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("results/fleet/traffic.json"))
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    down: dict[str, int] = {}
    for seed in arguments.seeds:
        for bits in UPLINKS:
            trained, computation, size = train_over(seed, arguments.rounds, bits)
            own = trained.evaluation["grid"][trained.evaluation["own"]]
            rows.append({"seed": seed, "uplink_bits": bits, "uplink_bytes_per_round": size,
                         "accuracy": {width: round(own[width]["metric"], 2) for width in WIDTHS}})
            down = downlinks(trained, computation)
            print(rows[-1], flush=True)
    result = {"command": f"python benchmarks/fleet_traffic.py --seeds {' '.join(map(str, arguments.seeds))} --rounds "
                         f"{arguments.rounds}", "date": date.today().isoformat(), "environment": environment(),
              "recipe": "quickstart/mqat", "cohort": computation.config.cohort, "runs": rows,
              "downlink_bytes_per_device": down}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
