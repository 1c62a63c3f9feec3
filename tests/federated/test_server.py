from __future__ import annotations

import pytest
import torch

from anybit.federated.server import ServerOptions, server


def test_adam_is_torchs_adam_on_the_negative_delta() -> None:
    torch.manual_seed(0)
    ours = {"w": torch.randn(7), "b": torch.randn(())}
    theirs = {n: p.clone().requires_grad_() for n, p in ours.items()}
    optimizer = torch.optim.Adam(theirs.values(), lr=0.03, eps=1e-7)
    adam = server(ServerOptions(lr=0.03, eps=1e-7))
    state = adam.init(ours)
    for _ in range(12):
        delta = {n: torch.randn_like(p) for n, p in ours.items()}
        state, ours = adam.step(state, ours, delta)
        for n, p in theirs.items():
            p.grad = -delta[n]
        optimizer.step()
        for n in ours:
            assert torch.allclose(ours[n], theirs[n], atol=1e-6)


def one_step(name: str, v0: float = 0.0) -> tuple[float, float]:
    """From w = 1 with delta 0.5, lr 0.1, eps 0.01: (v, w)."""
    optimizer = server(ServerOptions(name, lr=0.1, eps=0.01))  # type: ignore[arg-type]
    w = {"w": torch.tensor(1.0)}
    state = optimizer.init(w)
    if state:
        state.v["w"] = torch.tensor(v0)
    state, w = optimizer.step(state, w, {"w": torch.tensor(0.5)})
    return float(state.v["w"]) if state else 0.0, float(w["w"])


def test_sgd_adagrad_and_yogi_by_hand() -> None:
    assert one_step("sgd") == (0, pytest.approx(1.05))
    # m = 0.1·0.5; AdaGrad adds Δ² = 0.25
    assert one_step("adagrad") == (pytest.approx(0.25), pytest.approx(1 + 0.1 * 0.05 / (0.5 + 0.01)))
    # Yogi from v = 1: v − 0.001·0.25·sign(1 − 0.25)
    v = 1 - 0.001 * 0.25
    assert one_step("yogi", 1.0) == (pytest.approx(v), pytest.approx(1 + 0.1 * 0.05 / (v**0.5 + 0.01)))
