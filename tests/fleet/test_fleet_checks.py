"""Nothing that a device sends counts before it has been checked."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from anybit.config import FleetOptions
from anybit.federated.state import Trainable
from anybit.fleet.checks import Update, check_update, delta_norm
from anybit.fleet.exchange import Reply
from anybit.fleet.flower import Array, ArrayRecord, ConfigRecord, RecordDict
from anybit.fleet.wire import Refused, payload_bytes, to_record
from anybit.quant.grid import Width

W = {"a.weight": torch.randn(4, 3), "a.bias": torch.randn(4)}
DELTA = {name: torch.full_like(p, 0.5) for name, p in W.items()}
VALUES: dict[str, Any] = {"client": 3, "round": 7, "width": "W4", "examples": 20, "losses": [1.0, 0.5], "score": 50.0,
                          "seconds": 1.5}


def raw(data: bytes, **lies: Any) -> ArrayRecord:
    return ArrayRecord({"tensors": Array(lies.get("dtype", "uint8"), lies.get("shape", (len(data),)), "safetensors", data)})


def check(delta: ArrayRecord | None = None, options: FleetOptions = FleetOptions(), **values: Any) -> Update:
    delta = to_record(DELTA) if delta is None else delta
    content = RecordDict({"answer": ConfigRecord({**VALUES, **values}), "delta": delta})
    return check_update(Reply(3, content, "", False, payload_bytes(content)), 7, Width(4, 32), Trainable(W), options)


def test_a_good_answer_counts() -> None:
    update = check()
    assert all(torch.equal(update.delta.w[n], DELTA[n]) for n in W)
    assert (update.client, update.examples, update.score, update.losses.tolist()) == (3, 20, 50.0, [1.0, 0.5])
    assert update.clipped is None


class Trap:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return pytest.fail, ("unpickled",)


@pytest.mark.parametrize(("delta", "reason"), [
    (to_record({**DELTA, "a.weight": torch.zeros(3, 4)}), r"shape \(3, 4\) instead of \(4, 3\)"),
    (to_record({**DELTA, "a.weight": torch.zeros(4, 3, dtype=torch.float64)}), "float64 instead of torch.float32"),
    (to_record({**DELTA, "a.bias": torch.tensor([1.0, float("nan"), 1, 1])}), "'a.bias': values that are not finite"),
    (to_record({**DELTA, "a.bias": torch.tensor([1.0, float("inf"), 1, 1])}), "not finite"),
    (to_record({"a.weight": DELTA["a.weight"]}), "'a.bias' is missing"),
    (to_record({**DELTA, "b": torch.zeros(1)}), "'b' is unknown"),
    (to_record({**DELTA, "b": torch.zeros(10_000)}), "bytes, more than"),
    (raw(b"garbage"), "ends inside its header"),
    (raw(b""), "ends inside its header"),
    (raw(b"\xff" * 64), "ends inside its header"),
    (raw((5).to_bytes(8, "little") + b"[[[[[" + b"\0" * 50), "damaged"),
    (raw(to_record(DELTA)["tensors"].data[:-4]), "does not fit"),
    (raw(bytes(to_record(DELTA)["tensors"].data[:-1]) + b"\x01"), "SHA-256"),
    (raw(pickle.dumps(Trap())), "damaged"),
    (ArrayRecord({}), "no tensors"),
    (ArrayRecord({"x": Array("uint8", (1,), "safetensors", b"x")}), "no tensors")])
def test_what_is_wrong_with_a_delta_is_named(delta: ArrayRecord, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        check(delta)


def test_what_an_array_declares_is_not_believed() -> None:
    update = check(raw(to_record(DELTA)["tensors"].data, dtype="float64", shape=(9, 9)))
    assert torch.equal(update.delta.w["a.bias"], DELTA["a.bias"])


@pytest.mark.parametrize(("values", "reason"), [
    ({"client": 4}, "answers as client 4"), ({"round": 6}, "stale: an answer for round 6"), ({"width": "W8"}, "at W8"),
    ({"examples": 0}, "claims 0 examples"), ({"examples": 10**9}, "outside 1…1000000"),
    ({"examples": True}, "examples = True"), ({"examples": 2.5}, "examples = 2.5"), ({"losses": []}, "0 losses"),
    ({"losses": [float("nan")]}, "not finite numbers"), ({"losses": "many"}, "not finite numbers"),
    ({"score": float("inf")}, "score = inf"), ({"seconds": "long"}, "seconds = long")])
def test_what_is_wrong_with_the_values_is_named(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        check(**values)


def test_missing_records_and_errors_are_named() -> None:
    for content, reason in ((RecordDict(), "no values 'answer'"),
                            (RecordDict({"answer": ConfigRecord(dict(VALUES))}), "no tensors 'delta'")):
        with pytest.raises(Refused, match=reason):
            check_update(Reply(3, content, "", False, 0), 7, Width(4, 32), Trainable(W), FleetOptions())
    with pytest.raises(Refused, match="error 2: it broke"):
        check_update(Reply(3, None, "error 2: it broke", False, 0), 7, Width(4, 32), Trainable(W), FleetOptions())


def test_a_long_delta_is_clipped_or_rejected() -> None:
    norm = delta_norm(Trainable(DELTA))
    assert norm == pytest.approx(2.0)
    clipped = check(options=FleetOptions(norm_bound=0.5))
    assert delta_norm(clipped.delta) == pytest.approx(0.5)
    assert clipped.clipped == pytest.approx(norm)
    assert check(options=FleetOptions(norm_bound=2.1, norm_rule="reject")).clipped is None
    with pytest.raises(Refused, match=r"norm is 2, above 1"):
        check(options=FleetOptions(norm_bound=1.0, norm_rule="reject"))


def test_the_bound_holds_for_huge_values() -> None:
    huge = to_record({name: torch.full_like(p, 3e38) for name, p in W.items()})
    clipped = check(huge, FleetOptions(norm_bound=1.0))
    assert delta_norm(clipped.delta) == pytest.approx(1.0)
