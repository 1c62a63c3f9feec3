"""Devices that vanish, return, answer late, twice, or for somebody else: named, and the round goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from anybit.errors import ConfigError, RunError
from anybit.fleet.flower import Message
from anybit.fleet.node import read_node
from anybit.fleet.server_app import serve
from anybit.fleet.wire import layout, read_tensors, to_record
from anybit.training.build import build_task
from anybit.training.run_folder import RunFolder
from anybit.training.task import Trained
from tests.fleet.conftest import LocalGrid, fleet, listening, nodes, small
from tests.trainings import trained as train_here

pytestmark = pytest.mark.usefixtures("own_models")


def trained(grid: LocalGrid, *overrides: str) -> tuple[Trained, list[dict[str, Any]], list[str]]:
    """Train, and return what was logged and said."""
    said, log = list[str](), list[dict[str, Any]]()
    run = fleet(small(*overrides), grid, said)
    listening(run.devices, log)
    return run.train(), log, said


def rounds(log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [entry for entry in log if entry["event"] == "round"]


def test_a_device_that_vanishes_is_missed_once_and_then_left_alone() -> None:
    grid = LocalGrid(nodes(4))
    asked: list[int] = []

    def vanish(question: Message, answer: Message) -> list[Message]:
        if question.metadata.message_type != "train":
            return [answer]
        asked.append(1)
        grid.gone.add(2)
        return []

    grid.faults[2] = vanish
    _, log, said = trained(grid)
    assert [entry["missing"] for entry in rounds(log)] == [[2], [], []]
    assert len(asked) == 1
    assert "round 1: client 2 did not answer" in said
    assert grid.now >= 5


def test_a_device_that_comes_back_takes_part_again() -> None:
    grid = LocalGrid(nodes(4))
    count = [0]

    def once(question: Message, answer: Message) -> list[Message]:
        if question.metadata.message_type == "train":
            count[0] += 1
        return [] if count[0] == 1 and question.metadata.message_type == "train" else [answer]

    grid.faults[1] = once
    _, log, said = trained(grid)
    assert rounds(log)[0]["missing"] == [1]
    assert any(entry["event"] == "back" and entry["client"] == 1 for entry in log)
    assert 1 in [device["client"] for device in rounds(log)[-1]["devices"]]
    assert any("client 1 (node 101) is back" in text for text in said)


def test_a_lost_greeting_is_sent_again_with_more_patience() -> None:
    grid, sent = LocalGrid(nodes(4)), list[tuple[float, float]]()

    def lost_twice(question: Message, answer: Message) -> list[Message]:
        sent.append((grid.now, question.metadata.ttl))
        return [answer] if len(sent) == 3 else []

    grid.hellos[3] = lost_twice
    run = fleet(small("fleet.wait=600", "fleet.poll=1"), grid)
    assert list(run.devices.present(4, 1)) == [0, 1, 2, 3]
    assert [ttl for _, ttl in sent] == [60, 120, 240]
    assert [now for now, _ in sent] == [0, 60, 180]


def test_a_device_that_has_answered_is_greeted_at_once_when_it_falls_silent() -> None:
    grid = LocalGrid(nodes(4))
    run = fleet(small("fleet.wait=600"), grid)
    run.devices.present(4, 1)
    run.devices.roster.silent.add(102)
    run.devices.roster.refresh()
    assert grid.asked[-1] == ("query.hello", 2)
    assert grid.now < 60


def test_a_late_answer_is_named_and_does_not_count() -> None:
    grid = LocalGrid(nodes(4))
    held: list[Message] = []

    def hold(question: Message, answer: Message) -> list[Message]:
        if question.metadata.message_type != "train" or held:
            return [answer]
        held.append(answer)
        return []

    def release(question: Message, answer: Message) -> list[Message]:
        if question.content.config_records["order"]["round"] == 1:
            grid.stray += held
        return [answer]

    grid.faults[3], grid.faults[0] = hold, release
    _, log, said = trained(grid)
    assert rounds(log)[0]["missing"] == [3]
    assert [(entry["client"], entry["kind"]) for entry in log if entry["event"] == "late"] == [(3, "train")]
    assert any("client 3 (node 103) answered late; not counted" in text for text in said)


def test_duplicates_count_once_and_strangers_never() -> None:
    plain, _, _ = trained(LocalGrid(nodes(4)))
    grid = LocalGrid(nodes(4))
    grid.faults[1] = lambda question, answer: [answer, answer]

    def for_another(question: Message, answer: Message) -> list[Message]:
        forged = Message(answer.content, reply_to=question)
        forged.metadata.__dict__["_src_node_id"] = 999
        unasked = Message(answer.content, reply_to=question)
        unasked.metadata.__dict__["_reply_to_message_id"] = "never sent"
        return [forged, unasked, answer]

    grid.faults[2] = for_another
    twice, log, _ = trained(grid)
    events = {entry["event"] for entry in log}
    assert {"duplicate", "impostor", "stale"} <= events
    assert [entry["answered"] for entry in rounds(log)] == [4, 4, 4]
    assert twice.metrics == plain.metrics


def test_a_stale_or_foreign_answer_is_rejected_by_its_own_words() -> None:
    grid = LocalGrid(nodes(4))
    first: list[Any] = []

    def replay(question: Message, answer: Message) -> list[Message]:
        if question.metadata.message_type != "train":
            return [answer]
        first.append(answer.content)
        return [Message(first[0], reply_to=question)]

    grid.faults[0] = replay
    _, log, _ = trained(grid)
    assert [entry["rejected"] for entry in rounds(log)][1:] == [
        {0: "stale: an answer for round 0, not 1"}, {0: "stale: an answer for round 0, not 2"}]


def test_rejected_answers_leave_the_mean_of_the_others() -> None:
    """The round with a liar gives the model of the round without it."""
    def nan(question: Message, answer: Message) -> list[Message]:
        if question.metadata.message_type == "train":
            delta = read_tensors(answer.content, "delta", layout(w))
            answer.content["delta"] = to_record({n: d * float("nan") for n, d in delta.items()})
        return [answer]

    w = fleet(small(), LocalGrid(nodes(4))).start()[0].w
    grid = LocalGrid(nodes(4))
    grid.faults[3] = nan
    with_liar, log, said = trained(grid, "rounds=1")
    assert list(rounds(log)[0]["rejected"]) == [3]
    assert any("client 3 is rejected: delta" in text and "not finite" in text for text in said)
    without, _, _ = trained(LocalGrid(nodes(3)), "rounds=1", "cohort=3")
    assert with_liar.metrics[0]["loss"] == pytest.approx(without.metrics[0]["loss"], abs=1e-6)


def test_too_few_answers_stop_the_run_with_a_checkpoint(tmp_path: Path) -> None:
    grid = LocalGrid(nodes(4))

    def die(question: Message, answer: Message) -> list[Message]:
        dead = question.metadata.message_type == "train" and question.content.config_records["order"]["round"] == 1
        return [] if dead else [answer]

    for client in range(4):
        grid.faults[client] = die
    config = small("fleet.minimum=3", "fleet.tries=2", "fleet.deadline=0.1", "fleet.wait=0.3", "fleet.poll=0.01")
    with pytest.raises(RunError, match="round 2 had fewer than 3 good answers"):
        serve(grid, config, tmp_path / "run", ["anybit_test_models"])
    folder = RunFolder.open(tmp_path / "run")
    assert folder.round_of(folder.checkpoints()[-1]) == 1
    assert folder.lines("fleet")[-1]["event"] == "failed"
    grid.faults.clear()
    serve(grid, config, tmp_path / "run", ["anybit_test_models"])
    assert folder.finished
    assert [entry["resumed"] for entry in folder.lines("fleet") if entry["event"] == "run"] == [False, True]
    whole = tmp_path / "whole"
    serve(LocalGrid(nodes(4)), config, whole, ["anybit_test_models"])
    resumed, straight = folder.model(), RunFolder.open(whole).model()
    assert all(torch.equal(resumed[name], straight[name]) for name in straight)


def test_a_finished_or_foreign_folder_is_refused(tmp_path: Path) -> None:
    serve(LocalGrid(nodes(4)), small("rounds=1"), tmp_path / "run", ["anybit_test_models"])
    with pytest.raises(RunError, match="is finished"):
        serve(LocalGrid(nodes(4)), small("rounds=1"), tmp_path / "run", ["anybit_test_models"])
    (tmp_path / "run/evaluation.json").unlink()
    with pytest.raises(RunError, match="another config"):
        serve(LocalGrid(nodes(4)), small("rounds=2"), tmp_path / "run", ["anybit_test_models"])


def test_a_width_without_weight_takes_no_part_and_stops_nothing() -> None:
    grid = LocalGrid({client: {"bits": bits} for client, bits in enumerate((2, 2, 8, 8))})
    _, log, _ = trained(grid, "sampling.policy=weighted", "sampling.weights={W8=0}")
    assert all(sorted(entry["asked"]) == [0, 1] for entry in rounds(log))


def test_a_minimum_above_the_cohort_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"fleet\.minimum = 5, but a cohort has only 4"):
        fleet(small("fleet.minimum=5"), LocalGrid(nodes(4)))


def test_two_nodes_cannot_be_the_same_client() -> None:
    grid = LocalGrid({0: {}, 1: {}, 2: {"partition-id": 1}, 3: {}})
    _, log, _ = trained(grid, "cohort=3")
    refused = [entry for entry in log if entry["event"] == "refused"]
    assert [(entry["node"], entry["reason"]) for entry in refused] == [(102, "it claims to be client 1, which is node 101")]
    assert {c for entry in rounds(log) for c in entry["asked"]} == {0, 1, 3}


def test_a_device_that_cannot_say_who_it_is_is_named_and_not_asked_all_the_time() -> None:
    grid = LocalGrid({0: {}, 1: {}, 2: {}, 3: {"partition-id": "three"}})
    _, log, _ = trained(grid, "cohort=3")
    (refused,) = [entry for entry in log if entry["event"] == "refused"]
    assert (refused["node"], refused["reason"]) == (
        103, "error 2: node config: partition-id = 'three': every device needs its own whole number")
    assert grid.asked.count(("query.hello", 3)) == 1


def test_a_fleets_run_can_be_finished_on_one_process(tmp_path: Path) -> None:
    config = small("fleet.minimum=4", "fleet.tries=1", "fleet.deadline=0.1", "fleet.wait=0.3")
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    serve(LocalGrid(nodes(4)), config, whole, ["anybit_test_models"])
    grid = LocalGrid(nodes(4))
    grid.faults[2] = lambda question, answer: [answer] if question.content["order"]["round"] < 2 else []
    with pytest.raises(RunError, match="round 3"):
        serve(grid, config, broken, ["anybit_test_models"])
    folder = RunFolder.open(broken)
    train_here(build_task(config, ["anybit_test_models"]), config, folder, resume=True)
    continued, straight = folder.model(), RunFolder.open(whole).model()
    for name in straight:
        torch.testing.assert_close(continued[name], straight[name], rtol=0, atol=1e-6)


def test_nobody_there_is_an_error_that_says_so() -> None:
    with pytest.raises(RunError, match="only 0 devices answered within 5 s, but a round needs 2: start more SuperNodes"):
        fleet(small(), LocalGrid({})).train()


@pytest.mark.parametrize("config", [{}, {"partition-id": "one"}, {"partition-id": -1}, {"partition-id": 0, "role": "boss"}])
def test_a_wrong_node_config_is_named(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="node config: "):
        read_node(config)
