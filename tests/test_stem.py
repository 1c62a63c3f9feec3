"""ResNet-18's two stems: sizes by hand, and a small network with the pooled one in every engine and artifact."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from anybit.config import ClientOptions, Config, from_recipe
from anybit.data.examples import Data, Examples
from anybit.engines.sequential import Sequential
from anybit.errors import ConfigError
from anybit.export.exporting import Exporter, Options
from anybit.export.reference import outputs, reference
from anybit.federated.cohort import build_cohort
from anybit.federated.variants import Variant, mqat
from anybit.models import resnet18
from anybit.models.resnet import ResNet
from anybit.quant.grid import Width
from anybit.quant.sites import SiteOptions
from anybit.training.build import Components
from anybit.training.course import Training
from anybit.training.task import Task
from tests.export.test_c import found
from tests.export.test_onnx import untrained
from tests.gathered import ENGINES, deltas_of
from tests.trainings import begun

SIZES = [1, 5, 3]
WIDTHS = [Width(2, 32), Width(4, 32), Width(32, 32)]


def small(classes: int = 3) -> nn.Module:
    """Two stages of one block: 1×8×8 → 4×2×2 behind the stem → 8×1×1."""
    torch.manual_seed(3)
    return ResNet(1, classes, (4, 8), 1, 2, "B", "torch", "7x7")


def training(model: nn.Module, variant: Variant | None = None) -> Training:
    draw, total = np.random.default_rng(0), sum(SIZES)
    dtype = next(model.parameters()).dtype
    examples = Examples(torch.from_numpy(draw.normal(size=(total, 1, 8, 8))).to(dtype),
                        torch.from_numpy(draw.integers(3, size=total)))
    config = Config(cohort=len(SIZES), threads=1, device="cpu", client=ClientOptions(lr=0.1, batch_size=2))
    return begun(Task(model, variant or mqat(), Data(examples, Examples(examples.images[:2], examples.y[:2])),
                      np.split(np.arange(total), np.cumsum(SIZES)[:-1])), config)


def test_the_stems_differ_by_their_own_weights_alone() -> None:
    """Blocks: 147,968 + 525,568 + 2,099,712 + 8,393,728 by stage; norm of the stem 128; head 512·200 + 200.

    A stage of n channels behind m: convolutions 9·m·n + 27·n², norms 8·n, and (m ≠ n) a projection m·n + 2·n.
    """
    def stage(m: int, n: int) -> int:
        return 9 * m * n + 27 * n * n + 8 * n + (m * n + 2 * n if m != n else 0)

    rest = stage(64, 64) + stage(64, 128) + stage(128, 256) + stage(256, 512) + 128 + 512 * 200 + 200
    counts = {stem: sum(p.numel() for p in resnet18(stem=stem).parameters()) for stem in ("3x3", "7x7")}  # type: ignore[arg-type]
    assert counts == {"3x3": rest + 3 * 64 * 9, "7x7": rest + 3 * 64 * 49}
    assert counts["7x7"] == 11_279_112


def test_the_pooled_stem_leaves_a_sixteenth_of_the_pixels() -> None:
    model = resnet18(stem="7x7")
    seen = {}
    model.blocks[0].register_forward_pre_hook(lambda module, inputs: seen.update(shape=inputs[0].shape))  # type: ignore[union-attr, operator, index]
    with torch.no_grad():
        assert model(torch.randn(1, 3, 64, 64)).shape == (1, 200)
    assert seen["shape"] == (1, 64, 16, 16)


@pytest.mark.parametrize("recipe", ["paper/tinyimagenet-resnet18/mqat", "carousel/tinyimagenet-resnet18"])
def test_recipes_of_tiny_imagenet_take_imagenets_stem(recipe: str) -> None:
    assert isinstance(Components(from_recipe(recipe)).build_model().get_submodule("pool"), nn.MaxPool2d)
    assert Components(from_recipe(recipe, ["model.stem=3x3"])).build_model().pool is None
    with pytest.raises(ConfigError, match=r"model.stem = '9x9': must be one of 3x3, 7x7"):
        Components(from_recipe(recipe, ["model.stem=9x9"])).build_model()


def test_every_engine_trains_it_alike() -> None:
    run = training(small().double())
    cohort = build_cohort(1, 3, range(len(SIZES)), WIDTHS, run.computation.task.split, ClientOptions(batch_size=2))
    reference, _ = deltas_of(Sequential(), run, cohort)
    assert float(reference["stem.weight"].abs().amax()) > 0
    for name, engine in ENGINES.items():
        deltas, _ = deltas_of(engine, run, cohort)
        for parameter, delta in reference.items():
            assert torch.allclose(delta, deltas[parameter], atol=1e-9), (name, parameter)


def test_the_artifact_in_c_computes_it(tmp_path: Path) -> None:
    subject = untrained(SiteOptions(), small(10))
    for width in ("W4", "W2A8"):
        expected = outputs(reference(subject, Width.parse(width)), subject)
        close = (found(subject, width, tmp_path) - expected).abs().amax(1) <= 1e-5 * expected.abs().max()
        assert float(close.float().mean()) >= (0.97 if "A" in width else 1), width


def test_the_onnx_artifact_computes_it(tmp_path: Path) -> None:
    artifact = Exporter(untrained(SiteOptions(), small(10)), tmp_path, Options()).export(Width(4, 32))
    assert not artifact.rejected, artifact.verdict.problem
