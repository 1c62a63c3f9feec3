from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import anybit
from anybit.errors import Diverged
from anybit.training.run_folder import RunFolder

Arrays = tuple[np.ndarray, np.ndarray]


def test_a_loss_that_is_not_finite_stops_the_run_by_name(mlp: nn.Module, clients: list[Arrays], held_out: Arrays,
                                                         tmp_path: Path) -> None:
    settings: dict[str, object] = {"rounds": 50, "cohort": 5, "client": anybit.ClientOptions(lr=1e38, batch_size=16),
                                   "checkpoint_every": 1, "evaluation": anybit.EvaluationOptions(every=1000)}
    with pytest.raises(Diverged) as caught:
        anybit.fit(mlp, clients, held_out, anybit.apqn(4), path=tmp_path / "run", **settings)  # type: ignore[arg-type]
    message = str(caught.value)
    for part in ("the loss is", "in round ", "client ", "local step ", "width W4", "lower client.lr (now 1e+38)"):
        assert part in message


def test_the_last_good_checkpoint_is_kept(mlp: nn.Module, clients: list[Arrays], held_out: Arrays, tmp_path: Path) -> None:
    """A client whose inputs overflow only from round 4 on: the checkpoint of round 3 is named and readable."""
    rounds: list[int] = []

    def explode(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        value = torch.nn.functional.cross_entropy(outputs, targets, reduction="none")
        return value * (float("inf") if len(rounds) >= 3 else 1.0)

    with pytest.raises(Diverged, match=r"round 4.*last good checkpoint is .*round-000003"):
        anybit.fit(mlp, clients, held_out, loss=explode, path=tmp_path / "run", rounds=9, cohort=5, checkpoint_every=1,
                   on_round=lambda p: rounds.append(p.round))
    folder = RunFolder.open(tmp_path / "run")
    checkpoint = folder.load_checkpoint(folder.checkpoints()[-1], torch.device("cpu"))
    assert checkpoint.round == 3
    assert all(bool(torch.isfinite(p).all()) for p in checkpoint.weights().values())
    assert checkpoint.tensors["optimizer/count"].shape == ()


def test_evaluation_logs_kurtosis_and_saturation_of_every_layer(mlp: nn.Module, clients: list[Arrays],
                                                                held_out: Arrays) -> None:
    result = anybit.fit(mlp, clients, held_out, anybit.qat(2), rounds=4, cohort=5,
                        evaluation=anybit.EvaluationOptions(every=2))
    evaluations = [m["evaluation"] for m in result.metrics if "evaluation" in m]
    assert [m["round"] for m in result.metrics if "evaluation" in m] == [2, 4]
    layers = evaluations[-1]["layers"]
    assert set(layers) == {"0.weight_quantizer", "0.input_quantizer", "2.weight_quantizer", "2.input_quantizer"}
    assert all(layer["kurtosis"] > 0 for layer in layers.values())
    assert 0 <= layers["0.weight_quantizer"]["saturation"] < 1
    assert evaluations[-1]["layers_at"] == "W2"


def test_evaluations_on_the_way_are_in_the_precision_of_the_training_and_the_grid_is_exact(
        mlp: nn.Module, clients: list[Arrays], held_out: Arrays) -> None:
    result = anybit.fit(mlp, clients, held_out, anybit.baseline(), rounds=1, cohort=2,
                        compute=anybit.ComputeOptions(precision="bf16"))
    on_the_way = result.metrics[-1]["evaluation"]["scores"]["FP32"]["loss"]
    at_the_end = result.evaluation["grid"]["mse"]["FP32"]["loss"]
    logits = result.model(torch.from_numpy(held_out[0]))
    exact = float(torch.nn.functional.cross_entropy(logits.detach(), torch.from_numpy(held_out[1])))
    assert at_the_end == pytest.approx(exact, rel=1e-5)
    assert on_the_way == pytest.approx(exact, rel=2e-2)
    assert abs(on_the_way - exact) > 1e-6


def test_the_grid_has_all_widths_and_the_rules_that_make_sense(mlp: nn.Module, clients: list[Arrays],
                                                               held_out: Arrays) -> None:
    short = {"rounds": 1, "cohort": 2}
    quantized = anybit.fit(mlp, clients, held_out, anybit.qat(4), **short).evaluation  # type: ignore[arg-type]
    assert list(quantized["grid"]) == ["rule", "table", "mse"]
    assert len(quantized["grid"]["mse"]) == 16  # FP32, and five bit-widths each for W, A and WA
    few = anybit.EvaluationOptions(sites=("W",), bits=(32, 4))
    both = anybit.fit(mlp, clients, held_out, anybit.mqat(sites="WA"), evaluation=few, **short).evaluation  # type: ignore[arg-type]
    assert list(both["grid"]["table"]) == ["FP32", "WA4", "W4"]
    plain = anybit.fit(mlp, clients, held_out, anybit.baseline(), **short).evaluation  # type: ignore[arg-type]
    assert list(plain["grid"]) == ["mse"]


def test_mixed_widths_are_every_pair_of_bits(mlp: nn.Module, clients: list[Arrays], held_out: Arrays,
                                             tmp_path: Path) -> None:
    options = anybit.EvaluationOptions(bits=(32, 8, 2), mixed=True)
    result = anybit.fit(mlp, clients, held_out, rounds=2, cohort=2, evaluation=options, path=tmp_path / "run").evaluation
    assert list(result["mixed"]) == ["FP32", "A8", "A2", "W8", "WA8", "W8A2", "W2", "W2A8", "WA2"]
    for width, score in result["grid"]["table"].items():
        assert result["mixed"][width] == score
    assert result["mixed"]["W2A8"] != result["mixed"]["W2"]
    assert RunFolder.open(tmp_path / "run").evaluation() == result


def test_sites_that_were_not_trained_have_no_training_range(mlp: nn.Module, clients: list[Arrays],
                                                            held_out: Arrays) -> None:
    """MQAT on weights, evaluated at A4: ranges of the untrained model would clip; they are measured on the trained one."""
    result = anybit.fit(mlp, clients, held_out, anybit.mqat(), rounds=8, cohort=5,
                        server=anybit.ServerOptions(lr=0.1)).evaluation["grid"]
    assert result["table"]["A4"] == result["mse"]["A4"]
    assert result["table"]["W2"] != result["mse"]["W2"]


def test_one_client_one_image_one_class(held_out: Arrays) -> None:
    model = nn.Sequential(nn.Linear(8, 4))
    one = [(held_out[0][:1], held_out[1][:1])]
    result = anybit.fit(model, one, held_out, rounds=2, cohort=1)
    assert np.isfinite(result.metrics[-1]["loss"])


def test_the_same_seed_gives_the_same_run_and_another_a_different_one(mlp: nn.Module, clients: list[Arrays],
                                                                      held_out: Arrays) -> None:
    def losses(seed: int) -> list[float]:
        result = anybit.fit(mlp, clients, held_out, anybit.apqn(2), rounds=3, cohort=3, seed=seed)
        return [m["loss"] for m in result.metrics]

    assert losses(0) == losses(0)
    assert losses(0) != losses(1)
