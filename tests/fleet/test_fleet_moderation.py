"""No device dominates: not by the norm of its delta, not by the examples it claims, not by another's number."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.proto.node_pb2 import NodeInfo

from anybit.config import Config, FleetOptions
from anybit.errors import ConfigError, RunError
from anybit.federated.state import Trainable
from anybit.fleet.certificates import device_key
from anybit.fleet.checks import Update, delta_norm
from anybit.fleet.device import sent_config
from anybit.fleet.flower import RecordDict
from anybit.fleet.moderation import FACTOR, Moderation, bucket, lower_median
from anybit.fleet.registry import Listed, pem, registry
from anybit.fleet.server_app import serve
from anybit.quant.grid import Width
from anybit.training.run_folder import RunFolder
from tests.fleet.conftest import LocalGrid, fleet, listening, nodes, small
from tests.fleet.test_fleet_attacks import losses, on, tensors, trained, values

pytestmark = pytest.mark.usefixtures("own_models")

TEN = ("split.clients=10", "cohort=10", "rounds=1", "server.optimizer=sgd", "split.alpha=100")


def update(client: int, norm: float, examples: int = 10) -> Update:
    return Update(client, Width(4, 32), examples, Trainable({"w": torch.tensor([norm])}), torch.ones(1), 0.0, 0.0, 0)


def scaled(factor: float) -> Any:
    return tensors("delta", lambda delta: {name: factor * d for name, d in delta.items()})


def moved(grid: LocalGrid, *overrides: str) -> tuple[torch.Tensor, list[dict[str, Any]]]:
    """Return how the server's weights move in one round of ten devices, and the log."""
    run, log = fleet(small(*TEN, *overrides), grid), list[dict[str, Any]]()
    listening(run.devices, log)
    before = torch.cat([p.detach().flatten() for p in run.computation.task.model.parameters()])
    after = run.train().w
    return torch.cat([after[name].flatten() for name, _ in run.computation.task.model.named_parameters()]) - before, log


def test_m3_one_device_of_ten_does_not_turn_the_round_around() -> None:
    honest, log = moved(LocalGrid(nodes(10)))
    assert [entry["clipped"] for entry in log if entry["event"] == "round"] == [{}]
    grid = LocalGrid(nodes(10))
    grid.faults[7] = on("train", scaled(-100))
    bounded, log = moved(grid)
    assert [list(entry["clipped"]) for entry in log if entry["event"] == "round"] == [[7]]
    turned, _ = moved(grid, "fleet.norm_bound=off")
    cosine = torch.nn.functional.cosine_similarity
    assert cosine(bounded, honest, 0) > 0.8
    assert cosine(turned, honest, 0) < 0


def test_m3_a_claim_of_many_examples_does_not_decide() -> None:
    def lie(content: RecordDict) -> None:
        scaled(-1)(content)
        values(examples=1_000_000, losses=[1.0] * 15_625)(content)

    honest, _ = moved(LocalGrid(nodes(10)), "weighting=examples")
    grid = LocalGrid(nodes(10))
    grid.faults[7] = on("train", lie)
    bounded, _ = moved(grid, "weighting=examples")
    turned, _ = moved(grid, "weighting=examples", "fleet.examples_bound=1e9")
    cosine = torch.nn.functional.cosine_similarity
    assert cosine(bounded, honest, 0) > 0.8
    assert cosine(turned, honest, 0) < 0


def test_m3_the_bound_is_the_median_of_recent_rounds() -> None:
    moderation = Moderation(Config())
    good, _ = moderation(0, [update(0, 1.0), update(1, 2.0), update(2, 100.0)])
    assert [delta_norm(u.delta) for u in good] == [1.0, 2.0, FACTOR * 2]
    assert [u.clipped for u in good] == [None, None, 100.0]
    assert moderation.norms == {0: [1.0, 2.0, 4.0]}
    # Alone in the second round, a device is compared with the first: median of 1, 2, 4 and 50.
    good, _ = moderation(1, [update(2, 50.0)])
    assert delta_norm(good[0].delta) == 4.0
    moderation(9, [update(0, 7.0)])
    assert moderation.norms == {9: [7.0]}


def test_m3_a_device_of_two_is_bounded_by_the_other() -> None:
    good, _ = Moderation(Config())(0, [update(0, 1.0), update(1, 100.0)])
    assert [delta_norm(u.delta) for u in good] == [1.0, 2.0]
    assert [lower_median(values) for values in ([3.0], [1.0, 9.0], [9.0, 1.0, 2.0])] == [3.0, 1.0, 2.0]


@pytest.mark.parametrize("rule", ["clip", "reject"])
def test_m3_a_delta_of_zeros_bounds_nobody(rule: Any) -> None:
    moderation = Moderation(Config(fleet=FleetOptions(norm_rule=rule)))
    for round in range(3):
        good, rejected = moderation(round, [update(0, 1.0), update(1, 0.0)])
        assert ([delta_norm(u.delta) for u in good], rejected) == ([1.0, 0.0], {})


def test_m3_a_bound_is_a_number_adaptive_or_off() -> None:
    rejecting = Moderation(Config(fleet=FleetOptions(norm_rule="reject")))
    good, rejected = rejecting(0, [update(0, 1.0), update(1, 1.0), update(2, 9.0)])
    assert [u.client for u in good] == [0, 1]
    assert rejected == {2: "the delta's norm is 9, above 2"}
    for bound in ("off", 5.0):
        assert Moderation(Config(fleet=FleetOptions(norm_bound=bound)))(0, [update(0, 1.0), update(1, 9.0)])[1] == {}
    assert small("fleet.norm_bound=adaptive").fleet.norm_bound == "adaptive"
    for wrong in ("often", "-1"):
        with pytest.raises(ConfigError, match="norm_bound"):
            small(f"fleet.norm_bound={wrong}")


def test_m3_examples_weigh_up_to_twice_the_median_and_only_where_they_weigh() -> None:
    claims = [update(0, 1.0, 10), update(1, 1.0, 30), update(2, 1.0, 10**6)]
    assert [u.examples for u in Moderation(Config(weighting="examples"))(0, claims)[0]] == [10, 30, 60]
    assert [u.examples for u in Moderation(Config())(0, claims)[0]] == [10, 30, 10**6]
    assert [bucket(count) for count in (1, 2, 3, 64, 65, 1000)] == [1, 2, 4, 64, 128, 1024]


def test_m3_a_round_needs_two_answers_where_a_cohort_has_two_places() -> None:
    assert [small(f"cohort={cohort}").least() for cohort in (1, 2, 4)] == [1, 2, 2]
    assert small("fleet.minimum=1").least() == 1
    grid = LocalGrid(nodes(4))
    grid.faults |= {client: on("train", losses(1e300)) for client in (0, 1, 2)}
    with pytest.raises(RunError, match="round 1 had fewer than 2 good answers"):
        trained(grid, "rounds=1")


def test_m3_bounds_and_quarantine_survive_a_resume(tmp_path: Path) -> None:
    """A run that is stopped in round 3 and continued is the run that was never stopped, hostile devices included."""
    def hostile() -> LocalGrid:
        grid = LocalGrid(nodes(4))
        grid.faults |= {0: on("train", scaled(-100)), 1: on("train", losses(1e300))}
        return grid

    config = small("rounds=4", "fleet.quarantine=2", "fleet.tries=1", "fleet.wait=0.1", "evaluation.every=4")
    serve(hostile(), config, tmp_path / "whole", ["anybit_test_models"])
    stopped, asked = hostile(), [0]

    def dies(question: Any, answer: Any) -> list[Any]:
        """Devices 2 and 3 answer in two rounds."""
        asked[0] += question.metadata.message_type == "train"
        return [] if asked[0] > 4 else [answer]

    stopped.faults[2] = stopped.faults[3] = dies
    with pytest.raises(RunError, match="round 3 had fewer than 2 good answers"):
        serve(stopped, config, tmp_path / "run", ["anybit_test_models"])
    serve(hostile(), config, tmp_path / "run", ["anybit_test_models"])
    folder, whole = RunFolder.open(tmp_path / "run"), RunFolder.open(tmp_path / "whole")
    rounds = [entry for entry in folder.lines("fleet") if entry["event"] == "round"]
    assert [1 in entry["asked"] for entry in rounds] == [True, True, False, False, False]
    assert all("0" in entry["clipped"] for entry in rounds)
    assert all(torch.equal(value, whole.model()[name]) for name, value in folder.model().items())


@dataclass
class KeyedGrid(LocalGrid):
    """A SuperLink that has verified the key of every node."""

    keys: dict[int, bytes] | None = None

    def get_nodes(self) -> list[NodeInfo]:
        return [NodeInfo(node_id=100 + client, public_key=(self.keys or {})[client]) for client in self.nodes]


def keyed(devices: dict[int, dict[str, Any]], listed: dict[int, Listed]) -> tuple[KeyedGrid, Any]:
    keys = {client: device_key().public.decode() for client in devices}
    known = registry({f"node-{c}": Listed(keys[c], entry.client, entry.width, entry.role) for c, entry in listed.items()})
    return KeyedGrid(devices, keys={client: pem(key) for client, key in keys.items()}), lambda: known


def with_registry(grid: KeyedGrid, known: Any) -> list[dict[str, Any]]:
    """Train a round with the listed devices; return what happened to them."""
    log = list[dict[str, Any]]()
    run = fleet(small("rounds=1", "cohort=3"), grid)
    run.devices.roster.registry = known
    listening(run.devices, log)
    run.train()
    return log


@pytest.mark.parametrize(("claim", "reason"), [
    ({"partition-id": 0, "bits": 4}, "it claims to be client 0 with width W4, role train, but its key is that of client 3"),
    ({"bits": 8}, "client 3 with width W8, role train, but its key is that of client 3 with width W4, role train"),
    ({}, "with width any"), ({"bits": 4, "role": "inference"}, "role inference, but its key is")])
def test_m4_a_key_is_one_client_with_its_width_and_role(claim: dict[str, Any], reason: str) -> None:
    grid, known = keyed({**nodes(3, bits=4), 3: claim}, {client: Listed("", client, "4") for client in range(4)})
    log = with_registry(grid, known)
    (refused,) = [entry for entry in log if entry["event"] == "refused"]
    assert (refused["node"], reason in refused["reason"]) == (103, True), refused
    assert sorted(entry["client"] for entry in log if entry["event"] == "device") == [0, 1, 2]


def test_m4_a_key_that_is_not_listed_is_refused_by_name(tmp_path: Path) -> None:
    grid, known = keyed(nodes(4), {client: Listed("", client) for client in range(3)})
    serve(grid, small("rounds=1", "cohort=3"), tmp_path / "run", ["anybit_test_models"], 0, known)
    grid.asked.clear()
    (refused,) = [entry for entry in with_registry(grid, known) if entry["event"] == "refused"]
    assert "it claims to be client 3, but its key is not in devices.toml" in refused["reason"]
    assert ("train", 3) not in grid.asked


@pytest.mark.parametrize("text", ["W²", "W٤", "A４", "WA" + "4" * 5000, "W4 "])
def test_m3_widths_are_ascii_digits(text: str) -> None:
    with pytest.raises(ConfigError, match="write W4"):
        Width.parse(text)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"rounds": ' + "9" * 4000 + "}", '{"seed": "\\ud800"}', "{", "[]"])
def test_m3_a_config_from_the_server_is_read_as_strictly_as_a_file(text: str) -> None:
    with pytest.raises(ConfigError):
        sent_config(text)
