from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import anybit
from anybit.errors import ConfigError, DataError, ModelError, RunError
from anybit.quant.grid import Grid

Arrays = tuple[np.ndarray, np.ndarray]
FAST = {"rounds": 12, "cohort": 5, "client": anybit.ClientOptions(lr=0.1, batch_size=16),
        "server": anybit.ServerOptions(lr=0.05)}


def test_fit_trains_the_users_model_and_leaves_it_alone(mlp: nn.Module, clients: list[Arrays], held_out: Arrays) -> None:
    before = {n: p.clone() for n, p in mlp.named_parameters()}
    result = anybit.fit(mlp, clients, held_out, anybit.mqat(bits=(2, 4, 32)), **FAST)  # type: ignore[arg-type]
    assert result.scores["FP32"].metric > 80
    assert result.scores["W4"].metric > 80
    assert all(torch.equal(before[n], p) for n, p in mlp.named_parameters())
    assert [m["round"] for m in result.metrics] == list(range(1, 13))
    assert result.metrics[-1]["loss"] < result.metrics[0]["loss"]
    x, y = held_out
    with torch.no_grad():
        outputs = result.model(torch.from_numpy(x))
    assert float((outputs.argmax(1).numpy() == y).mean() * 100) == pytest.approx(result.scores["FP32"].metric)


def test_evaluate_agrees_with_the_training(mlp: nn.Module, clients: list[Arrays], held_out: Arrays) -> None:
    result = anybit.fit(mlp, clients, held_out, anybit.mqat(sites="WA"), **FAST)  # type: ignore[arg-type]
    scores = anybit.evaluate(result.model, held_out, ["W2", "A3", "W4A8"], steps="table", table=result.steps)
    assert scores["W2"] == pytest.approx(result.scores["W2"])
    assert scores["A3"] == pytest.approx(result.scores["A3"])
    again = anybit.evaluate(result.model, held_out, ["FP32", "W3"])
    assert again["W3"] == pytest.approx(tuple(result.evaluation["grid"]["mse"]["W3"].values()))


def test_evaluate_takes_a_model_that_is_frozen_as_a_whole() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 3)), np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    test = x, np.arange(9) % 3
    assert anybit.evaluate(model, test) == anybit.evaluate(model.requires_grad_(False), test)


def test_evaluate_wants_calibration_for_activations(mlp: nn.Module, held_out: Arrays) -> None:
    with pytest.raises(DataError, match="calibration"):
        anybit.evaluate(mlp, held_out, ["A4"])
    assert anybit.evaluate(mlp, held_out, ["A4"], calibration=held_out[0])["A4"].loss > 0
    with pytest.raises(ConfigError, match="together with table"):
        anybit.evaluate(mlp, held_out, ["W4"], steps="table")


def test_a_run_is_kept_opened_and_resumed(mlp: nn.Module, clients: list[Arrays], held_out: Arrays, tmp_path: Path) -> None:
    seen: list[int] = []

    def stop_at_seven(progress: object) -> None:
        seen.append(progress.round)  # type: ignore[attr-defined]
        if progress.round == 7:  # type: ignore[attr-defined]
            raise KeyboardInterrupt

    settings = {**FAST, "checkpoint_every": 3}
    settings["variant"] = anybit.baseline(weight_decay=1e-3)
    whole = anybit.fit(mlp, clients, held_out, path=tmp_path / "whole", **settings)  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        anybit.fit(mlp, clients, held_out, path=tmp_path / "cut", on_round=stop_at_seven, **settings)  # type: ignore[arg-type]
    with pytest.raises(RunError, match="already holds a run"):
        anybit.fit(mlp, clients, held_out, path=tmp_path / "cut", **settings)  # type: ignore[arg-type]
    with pytest.raises(RunError, match="another config"):
        anybit.fit(mlp, clients, held_out, path=tmp_path / "cut", resume=True, seed=9, **settings)  # type: ignore[arg-type]
    again = anybit.fit(mlp, clients, held_out, path=tmp_path / "cut", resume=True, **settings)  # type: ignore[arg-type]
    assert again.metrics == whole.metrics
    for name in ("model.safetensors", "metrics.jsonl", "steps.json", "evaluation.json"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    run = anybit.Run.load(tmp_path / "cut", model=mlp)
    assert run.evaluation == whole.evaluation
    assert all(torch.equal(a, b) for a, b in zip(run.model().parameters(), whole.model.parameters(), strict=True))
    assert torch.equal(run.steps().steps["0.weight_quantizer"], whole.steps.steps["0.weight_quantizer"])
    with pytest.raises(RunError, match="Python objects"):
        anybit.Run.load(tmp_path / "cut").task()
    other = copy.deepcopy(mlp)
    name = next(name for name, part in other.named_modules() if isinstance(part, nn.ReLU))
    other.set_submodule(name, nn.Tanh())
    with pytest.warns(anybit.AnybitWarning, match=rf"trained with another model: '{name}' was ReLU\(\), now Tanh\(\); its"):
        anybit.Run.load(tmp_path / "cut", model=other).model()


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs[:, 0] - targets) ** 2


def test_own_loss_and_metric(clients: list[Arrays], held_out: Arrays) -> None:
    """Regression: no labels, no accuracy."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    numbers = [(x, x[:, 0] * 0.5) for x, _ in clients]
    result = anybit.fit(model, numbers, (held_out[0], held_out[0][:, 0] * 0.5), loss=squared, metric=squared, **FAST)  # type: ignore[arg-type]
    assert result.evaluation["metric"] == "squared"
    assert result.scores["FP32"].loss == pytest.approx(result.scores["FP32"].metric)
    assert result.metrics[-1]["loss"] < 0.5 * result.metrics[0]["loss"]
    with pytest.raises(ConfigError, match="one value per example"):
        anybit.fit(model, numbers, numbers[1], loss=lambda o, t: squared(o, t).mean(), metric=squared, **FAST)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="whole-number label"):
        anybit.fit(model, numbers, numbers[1], **FAST)  # type: ignore[arg-type]


def stochastic_rounding(x: Tensor, grid: Grid, draw: Callable[[], Tensor]) -> Tensor:
    scaled = x / grid.step
    rounded = scaled + (torch.floor(scaled + draw()) - scaled).detach()
    return grid.step * torch.clamp(rounded, grid.low, grid.high)


def stochastic_qat(bits: int = 4) -> anybit.Variant:
    """A variant of one's own: QAT with stochastic rounding."""
    from anybit.federated.variants import fixed_width

    return anybit.Variant("stochastic-qat", "W", stochastic_rounding, (bits,), fixed_width(anybit.Width.of("W", bits)),
                          evaluate="rule")


def test_a_variant_from_outside_is_one_function(mlp: nn.Module, clients: list[Arrays], held_out: Arrays) -> None:
    result = anybit.fit(mlp, clients, held_out, stochastic_qat(3), **FAST)  # type: ignore[arg-type]
    assert result.evaluation["variant"] == "stochastic-qat"
    assert result.scores["W3"].metric > 70


@pytest.mark.parametrize(("change", "error", "message"), [
    ({"cohort": 6}, ConfigError, "cohort = 6, but there are only 5 clients"),
    ({"clients": []}, DataError, "clients is empty"),
    ({"empty": True}, DataError, "client 5 has no examples"), ({"nan": True}, DataError, "client 0.*NaN"),
    ({"label": 4}, DataError, "client 2: example 3 has label 4, but the model's 4 outputs allow 0…3"),
    ({"device": "cuda:9"}, ConfigError, "device"),
    ({"rounds": 0}, ConfigError, "rounds = 0"), ({"ragged": True}, DataError, "same length"),
    ({"shape": True}, DataError, "give all in one shape"), ({"frozen": True}, ModelError, "nothing can be trained")])
def test_bad_input_is_named(mlp: nn.Module, clients: list[Arrays], held_out: Arrays, change: dict[str, object],
                            error: type[Exception], message: str) -> None:
    settings: dict[str, object] = {**FAST}
    if "empty" in change:
        clients = [*clients, (clients[0][0][:0], clients[0][1][:0])]
    elif "nan" in change:
        clients[0][0][0, 0] = np.nan
    elif "label" in change:
        clients[2][1][3] = 4
    elif "ragged" in change:
        clients[1] = (clients[1][0], clients[1][1][:-1])
    elif "shape" in change:
        clients[1] = (clients[1][0][:, :3], clients[1][1])
    elif "frozen" in change:
        mlp.requires_grad_(False)
    elif "clients" in change:
        clients = []
    else:
        settings |= change
    with pytest.raises(error, match=message):
        anybit.fit(mlp, clients, held_out, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("variant", [anybit.mqat(start="lsq"), anybit.qat(3), anybit.mqat(sites="WA")])
def test_learned_steps_move_and_are_saved(mlp: nn.Module, clients: list[Arrays], held_out: Arrays, tmp_path: Path,
                                          variant: anybit.Variant) -> None:
    ranges = anybit.RangeOptions(learned=True)
    client = anybit.ClientOptions(lr=0.1, batch_size=16, step_lr=0.1)
    learned = anybit.fit(mlp, clients, held_out, variant, ranges=ranges, path=tmp_path / "r",
                         **{**FAST, "client": client})  # type: ignore[arg-type]
    plain = anybit.fit(mlp, clients, held_out, variant, **{**FAST, "rounds": 1})  # type: ignore[arg-type]
    site, bits = "0.weight_quantizer", 1
    assert learned.steps.steps[site][bits] != plain.steps.steps[site][bits]
    assert torch.equal(anybit.Run.load(tmp_path / "r", mlp).steps().steps[site], learned.steps.steps[site])
    assert learned.scores["FP32"].metric > 70


def test_learned_steps_need_a_variant_that_quantizes(mlp: nn.Module, clients: list[Arrays], held_out: Arrays) -> None:
    with pytest.raises(ConfigError, match="quantizes nothing"):
        anybit.fit(mlp, clients, held_out, anybit.baseline(), ranges=anybit.RangeOptions(learned=True), **FAST)  # type: ignore[arg-type]


@pytest.mark.parametrize(("wrong", "message"), [
    ({"server": {"mean": "median"}}, "server is a dict: give an anybit.ServerOptions"),
    ({"weighting": "example"}, "weighting = 'example': must be one of uniform, examples (did you mean 'examples'?)"),
    ({"engine": "fastest"}, "engine = 'fastest': must be one of auto"),
    ({"rounds": "3"}, "rounds = '3': must be a whole number"),
    ({"cohort": 2.5}, "cohort = 2.5: must be a whole number"),
    ({"sampling": "uniform"}, "sampling is a str: give an anybit.SamplingOptions"),
    ({"variant": "mqat"}, "variant must be a Variant, and is 'mqat'"), ({"model": 3}, "model must be a torch.nn.Module")])
def test_settings_are_checked_before_anything_is_trained(mlp: nn.Module, clients: list[Arrays], held_out: Arrays,
                                                         tmp_path: Path, wrong: dict[str, object], message: str) -> None:
    given: dict[str, object] = {"model": mlp, **FAST, **wrong}
    with pytest.raises(ConfigError) as caught:
        anybit.fit(clients=clients, test=held_out, path=tmp_path / "run", **given)  # type: ignore[arg-type]
    assert message in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_numbers_may_be_numpys(mlp: nn.Module, clients: list[Arrays], held_out: Arrays, tmp_path: Path) -> None:
    anybit.fit(mlp, clients, held_out, rounds=np.int64(1), cohort=2, path=tmp_path / "run",  # type: ignore[arg-type]
               client=anybit.ClientOptions(lr=np.float32(0.5)))  # type: ignore[arg-type]
    config = anybit.Run.load(tmp_path / "run").config
    assert (config.rounds, config.client.lr) == (1, 0.5)


def test_clients_are_pairs(mlp: nn.Module, clients: list[Arrays], held_out: Arrays) -> None:
    with pytest.raises(DataError, match=r"client 1 is a ndarray: give a pair \(inputs, targets\)"):
        anybit.fit(mlp, [clients[0], clients[1][0]], held_out, **FAST)  # type: ignore[list-item, arg-type]
    with pytest.raises(ConfigError, match="steps: use 'mse'"):
        anybit.evaluate(mlp, held_out, ["W4"], steps="foo")  # type: ignore[arg-type]


def test_a_folder_with_other_files_is_left_alone(mlp: nn.Module, clients: list[Arrays], held_out: Arrays,
                                                 tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("mine")
    with pytest.raises(RunError, match=r"is not empty \(it has metrics\.jsonl\): choose a new folder"):
        anybit.fit(mlp, clients, held_out, path=tmp_path, **FAST)  # type: ignore[arg-type]
    assert [p.name for p in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_one_script_starts_and_resumes(mlp: nn.Module, clients: list[Arrays], held_out: Arrays, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="resume=True needs path"):
        anybit.fit(mlp, clients, held_out, resume=True, **FAST)  # type: ignore[arg-type]
    first, second = (anybit.fit(mlp, clients, held_out, path=tmp_path / "run", resume=True, **FAST)  # type: ignore[arg-type]
                     for _ in range(2))
    assert first.scores == second.scores


def test_scores_are_shown_before_a_disk_refuses_them(mlp: nn.Module, clients: list[Arrays], held_out: Arrays, tmp_path: Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    result = anybit.fit(mlp, clients, held_out, path=tmp_path / "run", **FAST)  # type: ignore[arg-type]
    run = anybit.Run.load(tmp_path / "run", model=mlp)
    monkeypatch.setattr(anybit.Run, "task", lambda self: result.task)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("anybit.training.ledger.write_bytes", full)
    shown: list[str] = []
    with pytest.raises(RunError, match=r"evaluation\.json cannot be written .*: fix the disk, then do it again$"):
        run.mixed(lambda scores: shown.extend(scores))
    assert "W4A8" in shown
