"""Models of text, and their recipes end to end."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from anybit import recipes
from anybit.config import from_recipe
from anybit.errors import ModelError
from anybit.models import char_lstm, char_transformer
from anybit.training.build import build_task
from anybit.training.loop import Simulation, begin, train
from anybit.training.opening import open_run

TEXT = [name for name in recipes.names() if name.startswith("text/")]
TINY = ["rounds=2", "cohort=2", "client.batch_size=4", "data.length=8", "data.longest=1000", "split.clients=3", "device=cpu",
        "engine=sequential", "threads=1", "evaluation.bits=[32,4]", 'evaluation.steps=["mse"]']


@pytest.mark.parametrize(("model", "count"), [(char_lstm(), 34_497), (char_transformer(), 116_705)])
def test_a_prediction_depends_on_earlier_characters_alone(model: nn.Module, count: int) -> None:
    assert sum(p.numel() for p in model.parameters()) == count
    x = torch.randint(97, (2, 20), generator=torch.Generator().manual_seed(0))
    changed = x.clone()
    changed[:, 12] = (changed[:, 12] + 1) % 97
    with torch.no_grad():
        logits, others = model(x), model(changed)
    assert logits.shape == (2, 97, 20)
    assert torch.equal(logits[:, :, :12], others[:, :, :12])
    assert not torch.equal(logits[:, :, 12], others[:, :, 12])


def test_a_transformer_refuses_texts_beyond_its_positions() -> None:
    with pytest.raises(ModelError, match="the texts have 5 characters"):
        char_transformer(length=4)(torch.zeros(1, 5, dtype=torch.int64))


def test_there_is_a_recipe_per_model_and_variant() -> None:
    variants, models = ("carousel", "fedavg", "mqat"), ("lstm", "transformer")
    assert [f"text/{variant}-{model}" for variant in variants for model in models] == TEXT


@pytest.mark.parametrize("name", TEXT)
def test_a_text_recipe_trains_and_evaluates(name: str, tmp_path: Path) -> None:
    small = ["model.hidden=8"] if "lstm" in name else ["model.width=8", "model.heads=2", "model.layers=1"]
    opened = open_run(tmp_path / "run", from_recipe(name, [*TINY, *small]), build_task)
    with opened.held():
        training = begin(opened.computation, opened.folder)
        trained = train(training, Simulation(training))
    scores = trained.evaluation["grid"][trained.evaluation["own"]]
    assert 0 < scores["FP32"]["loss"] < 6
    assert 0 <= scores["W4"]["metric"] <= 100
