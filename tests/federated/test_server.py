from __future__ import annotations

import functools
import math

import pytest
import torch
from hypothesis import given as drawn
from hypothesis import strategies as st

from anybit.config import Config, chosen
from anybit.federated.algorithm import server_update
from anybit.federated.own import OBJECT
from anybit.federated.server import Schedule, ServerOptions, pace, server
from anybit.federated.state import Given, LogSteps, State, Trainable, projected


def test_adam_is_torchs_adam_on_the_negative_delta() -> None:
    torch.manual_seed(0)
    ours = {"w": torch.randn(7), "b": torch.randn(())}
    theirs = {n: p.clone().requires_grad_() for n, p in ours.items()}
    optimizer = torch.optim.Adam(theirs.values(), lr=0.03, eps=1e-7)
    adam = server(ServerOptions(eps=1e-7))
    state = adam.init(ours)
    for _ in range(12):
        delta = {n: torch.randn_like(p) for n, p in ours.items()}
        state, ours = adam.step(state, ours, delta, torch.tensor(0.03))
        for n, p in theirs.items():
            p.grad = -delta[n]
        optimizer.step()
        for n in ours:
            assert torch.allclose(ours[n], theirs[n], atol=1e-6)


def one_step(name: str, v0: float = 0.0) -> tuple[float, float]:
    """From w = 1 with delta 0.5, lr 0.1, eps 0.01: (v, w)."""
    optimizer = server(ServerOptions(name, eps=0.01))  # type: ignore[arg-type]
    w = {"w": torch.tensor(1.0)}
    state = optimizer.init(w)
    if state:
        state.v["w"] = torch.tensor(v0)
    state, w = optimizer.step(state, w, {"w": torch.tensor(0.5)}, torch.tensor(0.1))
    return float(state.v["w"]) if state else 0.0, float(w["w"])


def test_sgd_adagrad_and_yogi_by_hand() -> None:
    assert one_step("sgd") == (0, pytest.approx(1.05))
    # m = 0.1·0.5; AdaGrad adds Δ² = 0.25
    assert one_step("adagrad") == (pytest.approx(0.25), pytest.approx(1 + 0.1 * 0.05 / (0.5 + 0.01)))
    # Yogi from v = 1: v − 0.001·0.25·sign(1 − 0.25)
    v = 1 - 0.001 * 0.25
    assert one_step("yogi", 1.0) == (pytest.approx(v), pytest.approx(1 + 0.1 * 0.05 / (v**0.5 + 0.01)))


def rates(options: ServerOptions, rounds: int) -> list[float]:
    return [float(pace(options, round, rounds).rate) for round in range(rounds)]


def test_schedules_by_hand() -> None:
    """Linear over the last half of ten rounds: 1 up to the sixth, then 4/5, 3/5, 2/5, 1/5. Cosine over four rounds."""
    assert rates(ServerOptions(lr=2.0), 3) == rates(ServerOptions(lr=2.0, schedule="constant"), 3) == [2, 2, 2]
    assert rates(ServerOptions(lr=2.0, schedule="linear", decay=0.5), 10) == pytest.approx([2] * 6 + [1.6, 1.2, 0.8, 0.4])
    assert rates(ServerOptions(lr=2.0, schedule="linear", decay=1.0), 4) == pytest.approx([2, 1.5, 1, 0.5])
    half = math.sqrt(0.5)
    assert rates(ServerOptions(lr=2.0, schedule="cosine"), 4) == pytest.approx([2, 1 + half, 1, 1 - half])


def test_a_rate_rises_in_equal_parts() -> None:
    assert rates(ServerOptions(lr=2.0, warmup=4), 6) == pytest.approx([0.5, 1, 1.5, 2, 2, 2])
    assert rates(ServerOptions(lr=2.0, warmup=0), 2) == rates(ServerOptions(lr=2.0, warmup=1), 2) == [2, 2]
    both = ServerOptions(lr=2.0, warmup=3, schedule="linear", decay=1.0)
    assert rates(both, 4) == pytest.approx([2 / 3, 1, 1, 0.5]), "on top of the schedule"


@pytest.mark.parametrize(("options", "rounds", "rises"), [
    (ServerOptions(), 100, 10), (ServerOptions(optimizer="yogi", schedule="linear"), 5000, 10), (ServerOptions(), 12, 3),
    (ServerOptions(), 3, 1), (ServerOptions(lr=0.01), 100, 0), (ServerOptions(optimizer="sgd"), 100, 0),
    (ServerOptions(optimizer="mine:make"), 100, 0), (ServerOptions(schedule="mine:course"), 100, 0),
    (ServerOptions(schedule=OBJECT), 100, 0), (ServerOptions(warmup=0), 100, 0), (ServerOptions(lr=0.01, warmup=7), 8, 7)])
def test_which_rates_rise_where_nothing_is_said(options: ServerOptions, rounds: int, rises: int) -> None:
    """A run stores its rate, so that one from before there was a warmup goes on without."""
    settled = chosen(Config(rounds=rounds, server=options), {})
    assert settled.server.warmup == rises
    assert chosen(settled, {}) == settled


@drawn(st.sampled_from(["constant", "linear", "cosine"]), st.integers(1, 3000), st.floats(0.001, 1), st.floats(0, 0.999))
def test_a_rate_never_rises_and_is_above_0_to_the_last_round(schedule: Schedule, rounds: int, decay: float,
                                                             average: float) -> None:
    options = ServerOptions(lr=0.1, schedule=schedule, decay=decay, average=average)
    some = [pace(options, round, rounds) for round in sorted({0, rounds // 3, rounds // 2, rounds - 2, rounds - 1} - {-1})]
    assert [float(p.rate) for p in some] == sorted((float(p.rate) for p in some), reverse=True)
    assert 0.1 >= float(some[0].rate) >= float(some[-1].rate) > 0
    assert all(0 <= float(p.keep) <= average for p in some)
    assert float(pace(options, rounds, rounds).rate) >= 0, "a round that is laid out ahead, and never run"


def test_an_average_soon_forgets_its_first_weights() -> None:
    """β_t = min(0.9, (1 + t)/(10 + t)): 2/11, 3/12, … and 0.9 from t = 80 on."""
    keep = [float(pace(ServerOptions(average=0.9), round, 100).keep) for round in (0, 1, 78, 79, 99)]
    assert keep == pytest.approx([2 / 11, 3 / 12, 80 / 89, 0.9, 0.9])
    assert float(pace(ServerOptions(), 50, 100).keep) == 0


def test_two_rounds_by_hand() -> None:
    """SGD with rate 1: 0 → 1 → 3, kept within ±2. Averages: 1 + 2/11·(0 − 1) = 9/11, then 2 + 1/4·(9/11 − 2) = 75/44."""
    options, w = ServerOptions("sgd", lr=1.0, average=0.9), {"0.weight": torch.zeros(1)}
    given = Given({"0.weight_quantizer": torch.tensor([1.0, *[0.01] * 6])})
    state = State(w, LogSteps({}, {}), (), dict(w))
    kept = functools.partial(projected, grids={"0.weight_quantizer": "centred"})
    seen = []
    for round, delta in enumerate((1.0, 2.0)):
        step = Trainable({"0.weight": torch.tensor([delta])})
        state = server_update(state, step, server(options), pace(options, round, 2), given, kept)
        seen += [float(state.w["0.weight"]), float(state.average["0.weight"])]
    assert seen == pytest.approx([1, 9 / 11, 2, 75 / 44])
    without = server_update(state._replace(average={}), Trainable({"0.weight": torch.ones(1)}), server(options),
                            pace(options, 0, 2), given)
    assert float(without.w["0.weight"]) == 3, "unprojected"
    assert without.average == {}


def test_the_average_keeps_the_type_of_the_weights() -> None:
    """A rate in float64 must not make weights of it: checkpoints and engines hold to the model's type."""
    for kind in (torch.float32, torch.float64):
        w = {"w": torch.zeros(2, dtype=kind)}
        for name in ("sgd", "adam", "adagrad", "yogi"):
            options = ServerOptions(name, average=0.5)
            made = server(options)
            state = server_update(State(w, LogSteps({}, {}), made.init(w), dict(w)), Trainable(w), made, pace(options, 0, 2),
                                  Given({}))
            assert state.w["w"].dtype == state.average["w"].dtype == kind
