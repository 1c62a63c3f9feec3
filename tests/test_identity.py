"""A resume goes on with the training that was begun, or says in what it is another."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import anybit
from anybit.errors import RunError
from anybit.training import identity
from anybit.training.identity import described
from tests.unrecorded import unrecorded

Arrays = tuple[np.ndarray, np.ndarray]
FEW: dict[str, Any] = {"rounds": 1, "cohort": 2, "engine": "sequential"}


def scaled(factor: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda outputs, targets: factor * nn.functional.cross_entropy(outputs, targets, reduction="none")


class Net(nn.Module):
    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.one, self.two = heads, nn.Linear(8, 16), nn.Linear(16, 4)
        self.register_buffer("shift", torch.zeros(16))

    def forward(self, x: Tensor) -> Tensor:
        return self.two(torch.relu(self.one(x)) + self.shift)


class TanhNet(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.two(torch.tanh(self.one(x)) + self.shift)


def _shifted() -> nn.Module:
    net = Net()
    net.shift += 1
    return net


def _last_moved(arrays: Arrays) -> Arrays:
    x = arrays[0].copy()
    x[-1, -1] += 1
    return x, arrays[1]


@pytest.fixture
def begun(clients: list[Arrays], held_out: Arrays, tmp_path: Path) -> Callable[..., anybit.Fitted]:
    """A finished run; called with what is changed, it is resumed."""
    start: dict[str, Any] = {"model": Net(), "clients": clients, "test": held_out, "variant": anybit.mqat((2, 4)),
                             "loss": scaled(1.0), "path": tmp_path / "run", **FEW}
    anybit.fit(**start)
    return lambda **changed: anybit.fit(**{**start, "resume": True, **changed})


@pytest.mark.parametrize(("key", "change"), [
    (r"variant.bits was \[2, 4\], now \[2, 8\]", lambda c, t: {"variant": anybit.mqat((2, 8))}),
    ("variant.name was mqat, now mqat*", lambda c, t: {"variant": anybit.mqat((2, 4), fixed=True)}),
    (r"loss.with.factor was 1.0, now 2.0", lambda c, t: {"loss": scaled(2.0)}),
    ("metric.function.name was anybit.federated.metrics:_accuracy", lambda c, t: {"metric": scaled(1.0)}),
    ("clients.number was 5, now 4", lambda c, t: {"clients": c[:4]}),
    ("clients.sizes", lambda c, t: {"clients": [c[1], c[0], *c[2:]]}),
    ("data.train.targets", lambda c, t: {"clients": [(x, (y + 1) % 4) for x, y in c]}),
    ("data.train.inputs", lambda c, t: {"clients": [*c[:4], _last_moved(c[4])]}),
    ("data.test.inputs", lambda c, t: {"test": _last_moved(t)}),
    ("data.pipeline.mean", lambda c, t: {"pipeline": anybit.Pipeline((0.1,) * 8, (1.0,) * 8)}),
    (r"model.modules.\(model\).settings.heads was 2, now 3", lambda c, t: {"model": Net(3)}),
    (r"model.modules.\(model\).class", lambda c, t: {"model": TanhNet()}),
    ("model.constants.shift", lambda c, t: {"model": _shifted()}),
])
def test_another_task_is_refused_by_the_name_of_what_differs(
        begun: Callable[..., anybit.Fitted], clients: list[Arrays], held_out: Arrays, tmp_path: Path, key: str,
        change: Callable[[list[Arrays], Arrays], dict[str, Any]]) -> None:
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(RunError, match=key):
        begun(**change(clients, held_out))
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


def test_the_same_task_goes_on_whatever_its_first_weights(begun: Callable[..., anybit.Fitted]) -> None:
    torch.manual_seed(99)
    assert begun(model=Net(), loss=scaled(1.0), variant=anybit.mqat((2, 4))).metrics


def test_a_module_in_place_of_another_is_seen(clients: list[Arrays], held_out: Arrays, tmp_path: Path) -> None:
    def net(between: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), between, nn.Linear(16, 4))

    anybit.fit(net(nn.ReLU()), clients, held_out, path=tmp_path / "run", **FEW)
    with pytest.raises(RunError, match=r"model.modules.1.class was torch.nn.modules.activation:ReLU"):
        anybit.fit(net(nn.Tanh()), clients, held_out, path=tmp_path / "run", resume=True, **FEW)


def test_code_is_what_it_does_and_not_where_it_stands() -> None:
    space: list[dict[str, Any]] = [{}, {}, {}]
    for names, text in zip(space, ("def f(x):\n    return x + 1", "\n\n\ndef f(x):  # more\n\n    return x + 1",
                                   "def f(x):\n    return x + 2"), strict=True):
        exec(text, names)
    one, same, other = (described(names["f"])["code"] for names in space)
    assert one == same != other


def test_a_large_tensor_is_sampled_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "MOST_BYTES", 100)
    x = torch.zeros(50, 2)  # 400 bytes: every 4th
    assert described(x).endswith(" of every 4th")
    x[4, 1] = 1
    assert described(x) != described(torch.zeros(50, 2))


def test_config_says_its_own_loss_and_metric(begun: Callable[..., anybit.Fitted], tmp_path: Path) -> None:
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert (config["loss"], config["metric"]) == (f"{__name__}:scaled.<locals>.<lambda>", "accuracy")


def test_a_folder_without_an_identity_goes_on_with_a_warning(begun: Callable[..., anybit.Fitted], tmp_path: Path) -> None:
    (unrecorded(tmp_path / "run") / "task.json").unlink()
    with pytest.warns(anybit.AnybitWarning, match="neither its data nor digests of its files"):
        begun(loss=scaled(2.0))


def test_a_second_fit_is_told_of_resume(begun: Callable[..., anybit.Fitted]) -> None:
    with pytest.raises(RunError, match=r"resume it with 'anybit.fit\(…, path=.*, resume=True\)'"):
        begun(resume=False)
