"""Who fails again and again is left alone for a while, and who a device is does not change in a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from anybit.errors import ConfigError
from anybit.fleet import status as status_module
from anybit.fleet.flower import Message
from anybit.fleet.quarantine import Quarantine
from anybit.fleet.server_app import serve
from anybit.fleet.status import fleet_status
from anybit.training.run_folder import RunFolder
from tests.fleet.conftest import LocalGrid, nodes, small
from tests.fleet.test_fleet_attacks import losses, on, trained, values

pytestmark = pytest.mark.usefixtures("own_models")


def asked(log: list[dict[str, Any]], client: int) -> list[int]:
    """Return the rounds in which a client was asked to train."""
    return [entry["round"] for entry in log if entry["event"] == "round" and client in entry["asked"]]


def test_a_quarantine_grows_and_ends_with_a_good_answer() -> None:
    quarantine = Quarantine(2)
    assert quarantine.failed(7, 0) is None
    assert quarantine.failed(7, 1) == 4
    assert [quarantine.holds(7, round) for round in (2, 3, 4)] == [True, True, False]
    assert quarantine.failed(7, 4) == 9
    quarantine.succeeded(7)
    assert not quarantine.holds(7, 5)
    assert quarantine.failed(7, 5) is None
    assert [Quarantine(1, {7: 50}).failed(7, 0), Quarantine(1).failed(7, 0)] == [65, 3]


def test_a_device_that_is_rejected_again_and_again_is_not_asked_for_more_and_more_rounds() -> None:
    grid = LocalGrid(nodes(4))
    grid.faults[2] = on("train", losses(1e300))
    _, log, said = trained(grid, "rounds=12", "evaluation.every=12")
    assert asked(log, 2) == [1, 2, 3, 6, 11]
    assert asked(log, 1) == list(range(1, 13))
    events = [entry for entry in log if entry["event"] == "quarantine"]
    assert [(entry["client"], entry["failures"], entry["until"]) for entry in events] == [(2, 3, 6), (2, 4, 11), (2, 5, 20)]
    assert "client 2 (node 102) failed 3 times in a row; it is asked again in round 6" in said


def test_a_dying_device_does_not_cost_a_deadline_every_other_round() -> None:
    """It says hello whenever it is asked, and never answers."""
    grid = LocalGrid(nodes(4))
    grid.faults[3] = lambda question, answer: [answer] if question.metadata.message_type != "train" else []
    _, log, _ = trained(grid, "rounds=12", "evaluation.every=12", "fleet.quarantine=2")
    assert len(asked(log, 3)) <= 4


def test_a_good_answer_between_failures_keeps_a_device_in() -> None:
    grid, count = LocalGrid(nodes(4)), [0]

    def sometimes(question: Message, answer: Message) -> list[Message]:
        count[0] += question.metadata.message_type == "train"
        return on("train", losses(1e300))(question, answer) if count[0] % 3 else [answer]

    grid.faults[0] = sometimes
    _, log, _ = trained(grid, "rounds=9", "evaluation.every=9")
    assert asked(log, 0) == list(range(1, 10))


@pytest.mark.parametrize(("minimum", "rounds"), [(2, [1]), (3, [1, 1, 2])])
def test_those_in_quarantine_are_asked_where_a_round_would_have_too_few(minimum: int, rounds: list[int]) -> None:
    grid, count = LocalGrid(nodes(4)), dict.fromkeys((0, 1), 0)

    def at_first(question: Message, answer: Message) -> list[Message]:
        client = answer.content["answer"]["client"]
        count[client] += question.metadata.message_type == "train"
        return on("train", losses(1e300))(question, answer) if count[client] == 1 else [answer]

    grid.faults |= {0: at_first, 1: at_first}
    _, log, _ = trained(grid, "rounds=2", "fleet.quarantine=1", f"fleet.minimum={minimum}")
    assert asked(log, 0) == rounds


def test_the_limit_is_positive() -> None:
    with pytest.raises(ConfigError, match="quarantine = 0"):
        small("fleet.quarantine=0")


def test_status_shows_the_quarantine_and_no_control_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = LocalGrid(nodes(4))
    grid.faults[2] = on("train", losses(1e300))
    serve(grid, small("rounds=2", "fleet.quarantine=1"), tmp_path / "run", ["anybit_test_models"])
    (tmp_path / "flwr.sh").touch()
    assert fleet_status(tmp_path).quarantined == {}
    (tmp_path / "run/evaluation.json").unlink()
    folder = RunFolder.open(tmp_path / "run")
    last = next(entry for entry in reversed(folder.lines("fleet")) if entry["event"] == "round")
    folder.append("fleet", {**last, "rejected": {"1": "\x1b[2J" + "x" * 1000}})
    monkeypatch.setattr(status_module, "_flower", lambda server, id: ("running", ""))
    status = fleet_status(tmp_path)
    assert (status.state, status.quarantined) == ("running", {2: 4})
    assert status.reason == "client 2 is in quarantine until round 4"
    assert "\x1b" not in json.dumps(status.last, ensure_ascii=False)
    assert len(status.last["rejected"]["1"]) < 400


@pytest.mark.parametrize(("claim", "reason"), [
    ({"width": "W8"}, "client 3 with width W8, role train, which has width W4, role train in this run"),
    ({"width": ""}, "with width any"), ({"role": "inference"}, "role inference, which has"),
    ({"client": 1}, "it claims to be client 1, but was client 3"), ({"client": 9}, "but was client 3")])
def test_a_device_that_comes_back_is_who_it_was(claim: dict[str, Any], reason: str) -> None:
    grid, hellos = LocalGrid(nodes(4, bits=4)), [0]

    def changed(question: Message, answer: Message) -> list[Message]:
        hellos[0] += 1
        return on("query.hello", values(**claim))(question, answer) if hellos[0] > 1 else [answer]

    grid.hellos[3] = changed
    grid.faults[3] = lambda question, answer: [answer] if question.metadata.message_type != "train" else []
    _, log, _ = trained(grid)
    (refused,) = [entry for entry in log if entry["event"] == "refused"]
    assert reason in refused["reason"]
    assert asked(log, 3) == [1]


def test_another_node_is_a_client_only_when_the_first_is_gone_and_with_its_width() -> None:
    grid = LocalGrid({0: {"bits": 4}, 1: {"bits": 4}, 2: {"bits": 4}})
    taken = {"partition-id": 1, "bits": 4}

    def leave(question: Message, answer: Message) -> list[Message]:
        if question.metadata.message_type == "train":
            grid.nodes.pop(1, None)
            grid.nodes[5] = taken
            return []
        return [answer]

    grid.faults[1] = leave
    _, log, _ = trained(grid, "rounds=4", "cohort=3")
    assert [entry["node"] for entry in log if entry["event"] == "device" and entry["client"] == 1] == [101, 105]
    taken["bits"] = 8
    grid.nodes = {0: {"bits": 4}, 1: {"bits": 4}, 2: {"bits": 4}}
    _, log, _ = trained(grid, "rounds=4", "cohort=3")
    (refused,) = [entry for entry in log if entry["event"] == "refused"]
    assert refused["node"] == 105
    assert "width W8, role train, which has width W4" in refused["reason"]
