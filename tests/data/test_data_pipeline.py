"""Augmentation on the device: what it computes, and that every engine draws the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anybit.config import ClientOptions, Config
from anybit.data.examples import Data, Examples, Pipeline
from anybit.errors import DataError
from anybit.federated.cohort import build_cohort
from anybit.federated.variants import mqat
from anybit.quant.grid import Width
from anybit.training.task import Task
from tests.gathered import ENGINES, deltas_of
from tests.trainings import begun

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)


@pytest.fixture
def images() -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(256, size=(40, 3, 9, 9), dtype=np.uint8))


def keyed(key: int, step: int) -> tuple[Tensor, Tensor]:
    return torch.tensor(key), torch.tensor(step)


def windows(padded: Tensor, crop: int) -> list[Tensor]:
    """Every window of one padded image, and its mirror image."""
    places = range(padded.shape[-1] - crop + 1)
    cut = [padded[:, t:t + crop, left:left + crop] for t in places for left in places]
    return [w for window in cut for w in (window, window.flip(2))]


def test_training_sees_a_window_of_the_normalized_padded_image(images: Tensor) -> None:
    pipeline = Pipeline(MEAN, STD, crop=7, padding=2, flip=True)
    seen = pipeline.augmented(images, *keyed(12345678901, 3))
    padded = F.pad(Pipeline(MEAN, STD)(images), (2, 2, 2, 2))
    places = [[torch.equal(one, w) for w in windows(p, 7)] for one, p in zip(seen, padded, strict=True)]
    assert all(any(row) for row in places)
    assert len({row.index(True) for row in places}) > 20


def test_evaluation_sees_the_centre(images: Tensor) -> None:
    pipeline = Pipeline(MEAN, STD, crop=7, padding=4, flip=True)
    assert torch.equal(pipeline(images), Pipeline(MEAN, STD)(images)[:, :, 1:8, 1:8])
    assert torch.equal(pipeline.to(torch.device("cpu"))(images), pipeline(images))


def test_half_of_the_images_are_mirrored(images: Tensor) -> None:
    flipped = Pipeline(flip=True).augmented(images.repeat(25, 1, 1, 1), *keyed(9, 0))
    same = (flipped == Pipeline()(images).repeat(25, 1, 1, 1)).flatten(1).all(1)
    assert 0.45 < same.float().mean() < 0.55


def test_draws_change_with_key_and_step_and_not_with_padding_rows(images: Tensor) -> None:
    pipeline = Pipeline(crop=6, padding=1)
    first = pipeline.augmented(images, *keyed(1, 0))
    assert torch.equal(first[:11], pipeline.augmented(images[:11], *keyed(1, 0)))
    assert not torch.equal(first, pipeline.augmented(images, *keyed(1, 1)))
    assert not torch.equal(first, pipeline.augmented(images, *keyed(2, 0)))


def test_vmap_draws_what_a_loop_draws(images: Tensor) -> None:
    pipeline = Pipeline(MEAN, STD, crop=6, padding=2, flip=True)
    keys, steps, index = torch.tensor([5, 6]), torch.tensor([0, 0]), torch.arange(40).reshape(2, 20)
    both = torch.func.vmap(lambda i, k, s: pipeline.augmented(images[i], k, s))(index, keys, steps)
    for one, i, k, s in zip(both, index, keys, steps, strict=True):
        assert torch.equal(one, pipeline.augmented(images[i], k, s))


def test_every_engine_trains_on_the_same_augmented_images(images: Tensor) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 5 * 5, 3)).double()
    examples = Examples(images.double() / 255, torch.arange(40) % 3)
    data = Data(examples, examples, Pipeline(crop=7, padding=2, flip=True))
    split = np.split(np.arange(40), [1, 10, 17])
    config = Config(cohort=4, client=ClientOptions(lr=0.1, batch_size=4, epochs=2))
    training = begun(Task(model, mqat(), data, split), config)
    widths = [Width(4, 32), Width(2, 32), Width(32, 32), Width(8, 32)]
    cohort = build_cohort(1, 0, range(4), widths, split, ClientOptions(batch_size=4, epochs=2))
    assert len(cohort.segments()) > 1
    reference, losses = deltas_of(ENGINES["sequential"], training, cohort)
    stacked, stacked_losses = deltas_of(ENGINES["stacked"], training, cohort)
    assert all(float(delta.abs().max()) > 0 for delta in reference.values())
    for name, delta in reference.items():
        assert torch.allclose(delta, stacked[name], rtol=1e-6, atol=1e-9), name
    assert torch.allclose(losses, stacked_losses, rtol=1e-6)


def test_what_does_not_fit_is_said(images: Tensor) -> None:
    with pytest.raises(DataError, match="does not fit images of 9×9 with padding 1"):
        Pipeline(crop=12, padding=1).augmented(images, *keyed(0, 0))
    with pytest.raises(DataError, match=r"data.padding = -1"):
        Pipeline(padding=-1)
    with pytest.raises(DataError, match="need images"):
        Pipeline(flip=True).augmented(images.flatten(1), *keyed(0, 0))
