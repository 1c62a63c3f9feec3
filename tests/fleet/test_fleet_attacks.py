"""A hostile device among honest ones: it is refused with a reason, and neither stops the run nor decides it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Error, MetricRecord

from anybit.errors import ConfigError, RunError
from anybit.files.safetensors import from_bytes
from anybit.fleet import exchange, training
from anybit.fleet.calibration import Errors, merged_errors
from anybit.fleet.device import device_width
from anybit.fleet.flower import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from anybit.fleet.node import read_node
from anybit.fleet.project import Project
from anybit.fleet.server_app import serve
from anybit.fleet.traffic import low_bit_weights
from anybit.fleet.wire import payload_bytes, to_record
from anybit.quant.grid import Width
from anybit.training.run_folder import RunFolder
from anybit.training.task import Trained
from tests.fleet.conftest import Fault, LocalGrid, fleet, listening, nodes, small

pytestmark = pytest.mark.usefixtures("own_models")

LEARNED = ("variant.sites=WA", "ranges.learned=true")
Change = Callable[[RecordDict], None]


def trained(grid: LocalGrid, *overrides: str) -> tuple[Trained, list[dict[str, Any]], list[str]]:
    said, log = list[str](), list[dict[str, Any]]()
    run = fleet(small(*overrides), grid, said)
    listening(run.devices, log)
    return run.train(), log, said


def on(kind: str, change: Change) -> Fault:
    """Change the content of the answers to one kind of question."""
    def fault(question: Message, answer: Message) -> list[Message]:
        if question.metadata.message_type != kind:
            return [answer]
        content = RecordDict(dict(answer.content))
        change(content)
        return [Message(content, reply_to=question)]
    return fault


def values(**changed: Any) -> Change:
    def change(content: RecordDict) -> None:
        content["answer"] = ConfigRecord({**content.config_records["answer"], **changed})
    return change


def tensors(record: str, forge: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Change:
    def change(content: RecordDict) -> None:
        content[record] = to_record(forge(from_bytes(content.array_records[record]["tensors"].data, record)[0]))
    return change


def losses(loss: float) -> Change:
    def change(content: RecordDict) -> None:
        count = len(content.config_records["answer"]["losses"])
        values(losses=[loss] * count)(content)
    return change


def extra(record: Any) -> Change:
    def change(content: RecordDict) -> None:
        content["more"] = record
    return change


BIG = ArrayRecord({"tensors": Array("uint8", (10**7,), "safetensors", b"\0" * 10**7)})


@pytest.mark.parametrize(("change", "reason"), [
    (tensors("delta", lambda d: {**d, "\x1b[31m": torch.zeros(1)}), r"'\x1b[31m' is unknown"),
    (losses(1e300), "not finite numbers"), (losses(3e38), "not finite numbers"),
    (values(losses=[1.0] * 99_999), "99999 losses, but"),
    (values(score=1e308), "score = 1e+308, not float"), (values(width="\x1b[2J"), r"trained at \x1b[2J instead"),
    (tensors("delta", lambda d: {n: torch.full_like(v, 1e21) for n, v in d.items()}), "a weight moves by 1e+21"),
    (extra(BIG), "bytes, more than the"), (extra(ConfigRecord({"x": "y" * 10**7})), "bytes, more than the"),
    (extra(MetricRecord({"x": [1.0] * 10**6})), "bytes, more than the"),
    (extra(ConfigRecord({"x": 1})), "record 'more' is unknown"), (values(debug="yes"), "answer: 'debug' is unknown")])
def test_a_wrong_answer_is_refused_and_the_run_goes_on(change: Change, reason: str, tmp_path: Path) -> None:
    grid = LocalGrid(nodes(4))
    grid.faults[2] = on("train", change)
    serve(grid, small("rounds=2"), tmp_path / "run", ["anybit_test_models"])
    folder = RunFolder.open(tmp_path / "run")
    assert folder.finished
    for entry in [entry for entry in folder.lines("fleet") if entry["event"] == "round"]:
        assert entry["answered"] == 3
        assert reason in entry["rejected"]["2"]
    assert b"\x1b" not in folder.file("fleet.jsonl").read_bytes()


def test_a_tensor_named_with_a_lone_surrogate_is_named_harmlessly(tmp_path: Path) -> None:
    grid = LocalGrid(nodes(4))
    grid.faults[1] = on("train", tensors("delta", lambda d: {**d, "\ud800": torch.zeros(1)}))
    serve(grid, small("rounds=1"), tmp_path / "run", ["anybit_test_models"])
    (entry,) = [entry for entry in RunFolder.open(tmp_path / "run").lines("fleet") if entry["event"] == "round"]
    assert r"'\ud800'" in entry["rejected"]["1"]


@pytest.mark.parametrize(("claim", "reason"), [
    ({"width": "²"}, "width '²': write the bits"), ({"width": "9" * 4000}, "write the bits"),
    ({"width": "9" * 5000}, "bytes, more than"), ({"width": "W" + "4" * 4000}, "write the bits"),
    ({"width": "\x1b[31mW4"}, r"width '\x1b[31mW4'"),
    ({"width": "\ud800"}, r"\ud800"), ({"width": "W9"}, "bits = 9"), ({"client": -1}, "neither can be"),
    ({"client": 2**62}, "neither can be"), ({"role": "boss\n\x1b"}, r"role 'boss\n\x1b'"), ({"secret": 1}, "is unknown"),
    ({"width": "4" * 10**6}, "bytes, more than")])
def test_a_wrong_hello_is_refused_and_the_run_goes_on(claim: dict[str, Any], reason: str) -> None:
    grid = LocalGrid(nodes(4))
    grid.hellos[3] = on("query.hello", values(**claim))
    log, said = list[dict[str, Any]](), list[str]()
    run = fleet(small("rounds=1", "cohort=3"), grid, said)
    listening(run.devices, log)
    run.train()
    (refused,) = [entry for entry in log if entry["event"] == "refused"]
    assert refused["node"] == 103
    assert reason in refused["reason"]
    assert all(text.isprintable() and len(text) < 1000 for text in "\n".join(said).splitlines())


def test_a_wrong_hello_does_not_keep_a_run_from_its_end(tmp_path: Path) -> None:
    """The first hellos are exchanged before there is a folder."""
    grid = LocalGrid(nodes(4))
    grid.hellos[3] = on("query.hello", values(width="\x1b[31mW4"))
    serve(grid, small("rounds=1", "cohort=3"), tmp_path / "run", ["anybit_test_models"])
    assert RunFolder.open(tmp_path / "run").finished


def test_whatever_breaks_in_a_check_is_a_refusal() -> None:
    run = fleet(small(), LocalGrid(nodes(4)))
    run.start()
    members = list(run.devices.present(4, 4).values())
    replies = run.devices.ask([run.devices.question(m, "query.hello", {}) for m in members])

    def broken(reply: Any) -> None:
        raise ZeroDivisionError("\x1b" + "x" * 10_000)

    good, log = run.devices.judge(members, replies, broken)
    assert not good
    assert log["rejected"][2].startswith(r"an answer that cannot be read (ZeroDivisionError: \x1bxx")
    assert len(log["rejected"][2]) < 300


def test_errors_of_devices_are_logged_harmlessly_and_briefly() -> None:
    grid = LocalGrid(nodes(4))
    grid.faults[0] = lambda question, answer: [Message(Error(2, "a\n\x1b[31m" + "y" * 10**6), reply_to=question)]
    _, log, said = trained(grid, "rounds=1", "cohort=4")
    (reason,) = [entry["rejected"][0] for entry in log if entry["event"] == "round"]
    assert len(reason) < 300
    assert all(line.isprintable() for text in said for line in text.splitlines())


@pytest.mark.parametrize("text", ["²", "٤", "9" * 5000, "W4\n", "W²", "\ud800"])
def test_bits_are_few_ascii_digits_everywhere(text: str) -> None:
    with pytest.raises(ConfigError, match="write the bits"):
        device_width(text, "W")
    with pytest.raises(ConfigError, match="node config: width '"):
        read_node({"partition-id": 0, "bits": text})
    with pytest.raises(ConfigError, match="write the bits"):
        Project("quickstart/mqat", [], [text])


def push(by: float) -> Change:
    return tensors("delta", lambda d: {n: v + by if n.startswith("log_step/") else v for n, v in d.items()})


@pytest.mark.parametrize("by", [0.5, 2.0, 200.0])
def test_learned_steps_move_no_further_than_local_steps_can(by: float) -> None:
    grid = LocalGrid(nodes(4, bits=4))
    grid.faults[1] = on("train", push(by))
    _, log, _ = trained(grid, *LEARNED, "rounds=2")
    rejected = [entry["rejected"] for entry in log if entry["event"] == "round"]
    assert [list(reasons) for reasons in rejected] == [[1], [1]]
    assert "log Δ moves by" in rejected[0][1]


def test_learned_steps_move_only_where_a_device_trained() -> None:
    grid = LocalGrid(nodes(4, bits=4))
    grid.faults[1] = on("train", push(0.005))
    _, log, _ = trained(grid, *LEARNED, "rounds=1")
    (reason,) = [entry["rejected"][1] for entry in log if entry["event"] == "round"]
    assert "a step size moves at bits that were not trained" in reason


def test_one_answer_about_ranges_does_not_decide() -> None:
    def steps(fault: Fault | None, rule: str) -> dict[str, torch.Tensor]:
        grid = LocalGrid(nodes(10))
        grid.faults |= {7: fault} if fault else {}
        config = small("variant.sites=WA", "split.clients=10", "cohort=10", f"ranges.activations={rule}")
        return dict(fleet(config, grid).start()[1].steps)

    def lie(content: RecordDict) -> None:
        statistics = torch.tensor([1.0, -1e6, 1e6, 1e9, 1e3, 1e3, -1e6, 1e6])
        tensors("seen", lambda seen: dict.fromkeys(seen, statistics))(content)

    for rule in ("minmax", "cover", "lsq", "running"):
        honest, lied = steps(None, rule), steps(on("query.ranges", lie), rule)
        for site in honest:
            assert (lied[site] / honest[site]).max() <= 3.5, (rule, site)


def test_one_answer_about_errors_does_not_decide() -> None:
    steps = torch.linspace(0.1, 10, 50)[:, None]
    honest = [Errors(i + 1, {"a": (i + 1) * ((steps.double() - 2) ** 2 + 0.1)}) for i in range(9)]
    liar = Errors(9, {"a": torch.where(steps > 9, 0.0, 1e30).double()})
    best = float(steps[merged_errors([*honest, liar])["a"].argmin()])
    assert best == pytest.approx(2, abs=0.5)
    plain = merged_errors(honest)
    assert torch.equal(plain["a"], torch.stack([part.by_site["a"] for part in honest]).sum(0))


def test_a_width_that_the_model_cannot_have_is_refused_at_delivery(monkeypatch: pytest.MonkeyPatch) -> None:
    def picky(prepared: Any, w: Any, table: Any, width: Width) -> dict[str, torch.Tensor]:
        if width.weights == 3:
            raise KeyError("1.weight_quantizer")
        return low_bit_weights(prepared, w, table, width)

    monkeypatch.setattr(training, "low_bit_weights", picky)
    infer = {client: {"bits": bits, "role": "inference"} for client, bits in ((4, 3), (5, 4))}
    _, log, _ = trained(LocalGrid({**nodes(4), **infer}), "rounds=1", "split.clients=6")
    assert [entry["asked"] for entry in log if entry["event"] == "delivery"] == [[5]]
    (refused,) = [entry for entry in log if entry["event"] == "refused"]
    assert "the model cannot be made at its width W3" in refused["reason"]


def test_an_answer_that_cannot_be_measured_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def unmeasured(content: RecordDict) -> int:
        if content.config_records.get("answer", {}).get("client") == 2 and "delta" in content:
            raise TypeError("no bytes")
        return payload_bytes(content)

    monkeypatch.setattr(exchange, "payload_bytes", unmeasured)
    _, log, _ = trained(LocalGrid(nodes(4)), "rounds=1")
    (rejected,) = [entry["rejected"] for entry in log if entry["event"] == "round"]
    assert rejected == {2: "an answer that cannot be read (no bytes)"}


def test_a_fleet_without_any_device_of_a_wanted_width_ends_in_words() -> None:
    with pytest.raises(RunError, match="round 1 had fewer than 2 good answers"):
        trained(LocalGrid(nodes(4, bits=8)), "sampling.policy=weighted", "sampling.weights={W8=0}")
