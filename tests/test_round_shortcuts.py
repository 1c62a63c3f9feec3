"""What a ResNet's shortcuts carry, rounded: by hand, in every engine, and refused where no artifact computes it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from anybit.config import from_recipe
from anybit.errors import ModelError
from anybit.export.exporting import Exporter, Options
from anybit.federated.client import ClientOptions
from anybit.federated.cohort import build_cohort
from anybit.federated.variants import mqat
from anybit.models.resnet import Block, ResNet
from anybit.quant.at_width import at_width
from anybit.quant.grid import BITS, Width
from anybit.quant.ranges import StepTable
from anybit.quant.sites import SiteOptions, prepare, quantizers
from anybit.training.build import Components
from tests.export.test_onnx import untrained
from tests.gathered import ENGINES, deltas_of
from tests.test_stem import SIZES, training

WIDTHS = [Width(32, 2), Width(32, 4), Width(32, 32)]


def small(round_shortcuts: bool = True, classes: int = 3) -> nn.Module:
    torch.manual_seed(3)
    return ResNet(1, classes, (4, 8), 1, 2, "A", "torch", round_shortcuts=round_shortcuts)


@pytest.mark.parametrize(("round_shortcuts", "expected"), [(True, [0.0, 0.5, 0.5, 0.0]), (False, [0.2, 0.7, 3.0, 0.0])])
def test_a_block_without_weights_is_its_shortcut(round_shortcuts: bool, expected: list[float]) -> None:
    """Δ = 0.5 at 2 bits has the levels −1, −0.5, 0, 0.5: 0.2 → 0, 0.7 and 3 → 0.5, −2 → −1, which the ReLU takes."""
    block = Block(1, 1, 1, 1, "A", round_shortcuts)
    for parameter in block.parameters():
        nn.init.zeros_(parameter)
    x = torch.tensor([0.2, 0.7, 3.0, -2.0]).reshape(1, 1, 2, 2)
    steps = {name: torch.full((len(BITS),), 0.5) for name in quantizers(prepare(block))}
    rounded = at_width(block, StepTable(steps), Width(32, 2), SiteOptions())
    assert rounded(x).flatten().tolist() == pytest.approx(expected)
    assert block(x).flatten().tolist() == pytest.approx([0.2, 0.7, 3.0, 0.0]), "in full precision it changes nothing"


def test_every_engine_trains_it_alike_and_not_as_without_it() -> None:
    reference = deltas(small().double(), "sequential")
    for engine in ENGINES.keys() - {"sequential"}:
        for name, delta in deltas(small().double(), engine).items():
            assert torch.allclose(reference[name], delta, atol=1e-9), (engine, name)
    without = deltas(small(False).double(), "sequential")
    assert not torch.allclose(reference["stem.weight"], without["stem.weight"], atol=1e-6)


def deltas(model: nn.Module, engine: str) -> dict[str, Tensor]:
    run = training(model, mqat(sites="A"))
    cohort = build_cohort(1, 3, range(len(SIZES)), WIDTHS, run.computation.task.split, ClientOptions(batch_size=2))
    found, _ = deltas_of(ENGINES[engine], run, cohort)
    return found


def test_it_is_a_setting_of_recipes() -> None:
    model = Components(from_recipe("paper/cifar10-resnet20/qat4-a", ["model.round_shortcuts=true"])).build_model()
    assert all(block.round_shortcuts for block in model.modules() if isinstance(block, Block))
    assert not any(block.round_shortcuts for block in small(False).modules() if isinstance(block, Block))


def test_artifacts_that_round_activations_are_refused(tmp_path: Path) -> None:
    exporter = Exporter(untrained(SiteOptions(), small(classes=10)), tmp_path, Options())
    with pytest.raises(ModelError, match=r"^W4A8: artifacts do not round what shortcuts carry .* like W4$"):
        exporter.export(Width(4, 8))
    assert not list(tmp_path.iterdir())
    assert not exporter.export(Width(4, 32)).rejected
