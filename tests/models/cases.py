"""The table of models that are proven to work, and of what is refused: tests and docs/models.md are made from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

import anybit
from anybit.models.text import char_lstm
from tests.models import libraries, nets

CHECKS = {"sequential": "fit, sequential", "stacked": "fit, stacked", "processes": "fit, processes",
          "evaluate": "evaluate", "onnx": "ONNX", "resume": "resume"}
"""What every model goes through, with the heads of the page's columns."""


@dataclass(frozen=True)
class Case:
    """A model, the data of a small task, and what is known of them."""

    name: str
    about: str
    """What is in the model that others do not have, for the page."""
    model: Callable[[], nn.Module]
    data: Callable[[np.random.Generator], tuple[Any, np.ndarray]]
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `fit` and `evaluate`."""
    variant: anybit.Variant = anybit.mqat((2, 8), sites="WA")
    in_float: tuple[str, ...] = ()
    """The matrices that stay in float, named in full_precision."""
    refusals: Mapping[str, str] = field(default_factory=dict)
    """{check: the error}."""


@dataclass(frozen=True)
class Refusal:
    """A model that is not trained as it is, and the words of the error."""

    name: str
    model: Callable[[], nn.Module]
    data: Callable[[np.random.Generator], tuple[Any, np.ndarray]]
    error: str
    fix: str
    """What to do, for the page."""


def images(draw: np.random.Generator, size: int = 16) -> tuple[np.ndarray, np.ndarray]:
    """Draw images of four classes, one per bright quarter."""
    x, y = draw.normal(size=(SIZE, 3, size, size)).astype(np.float32), draw.integers(4, size=SIZE)
    half = size // 2
    for i, label in enumerate(y):
        top, left = label // 2 * half, label % 2 * half
        x[i, :, top:top + half, left:left + half] += 1
    return x, y


def texts(draw: np.random.Generator) -> tuple[dict[str, np.ndarray], np.ndarray]:
    ids, lengths = draw.integers(1, 20, (SIZE, 8)), draw.integers(4, 9, SIZE)
    mask = (np.arange(8) < lengths[:, None]).astype(np.int64)
    return {"input_ids": ids * mask, "attention_mask": mask}, ids[:, 0] // 5


def tokens(draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw sequences that count upward; the target is the next token."""
    both = (draw.integers(20, size=(SIZE, 1)) + np.arange(9)) % 20
    return both[:, :-1], both[:, 1:]


def series(draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    x, y = draw.normal(size=(SIZE, 7, 3)).astype(np.float32), draw.integers(4, size=SIZE)
    x[:, :, 0] += y[:, None]
    return x, y


def rows(draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    y = draw.integers(4, size=SIZE)
    return (draw.normal(size=(SIZE, 6)) + y[:, None]).astype(np.float32), y


def both(draw: np.random.Generator) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    x, y = images(draw)
    return (x, rows(draw)[0]), y


def numbers(draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    x = draw.normal(size=(SIZE, 6)).astype(np.float32)
    return x, 20 + x.sum(1)


def masks(draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    x, _ = images(draw, 12)
    return x, np.digitize(x[:, 0], (-0.5, 0.5))


def last_class(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of outputs (example, position, class)."""
    return F.cross_entropy(outputs.transpose(1, 2), targets, reduction="none").mean(1)


SIZE = 64
WEIGHTS = anybit.mqat((4, 8))
"""For deep untrained models: at 2-bit activations some of their layers have equal values, whose norm blows up gradients."""

CASES = (
    Case("MobileNet-like network", "depthwise convolutions with reflected borders, squeeze-and-excite, no biases",
         nets.mobilenet, images),
    Case("timm EfficientNet", "its BatchNorm with built-in activation through `replace_batchnorm`; its own `Linear`",
         lambda: libraries.timm_model("test_efficientnet"), images, variant=WEIGHTS),
    Case("timm vision transformer", "fused attention, stochastic depth, class token and position embedding",
         lambda: libraries.timm_model("vit_tiny_patch16_224", img_size=16, patch_size=8, embed_dim=24, depth=2, num_heads=2,
                                      drop_path_rate=0.2),
         images, {"sites": anybit.SiteOptions(full_precision=("pos_embed",))}, in_float=("pos_embed",)),
    Case("torchvision MobileNetV2", "BatchNorm through `replace_batchnorm`", libraries.mobilenet_v2, images,
         variant=WEIGHTS),
    Case("Hugging Face BERT", "ids and padding mask by name, `ModelOutput`; attention dropout set to 0",
         lambda: libraries.bert(0.0), texts,
         refusals={"stacked": "its forward decides by values of tensors, as in 'if mask.all()'"}),
    Case("Hugging Face Llama", "ids alone; rotary positions, grouped queries, head tied to the embedding; loss of its own",
         libraries.llama, tokens, {"loss": last_class}),
    Case("LSTM text model", "`char_lstm`: embedding, LSTM, one class per position",
         lambda: char_lstm(20), tokens),
    Case("GRU", "in both directions over a series of numbers", nets.Gru, series),
    Case("tied language model", "torch's Transformer layer; the head is the embedding", nets.Tied, tokens),
    Case("frozen body", "fine-tuning: a trained body with BatchNorm is frozen, a head is trained", nets.tuned, images),
    Case("dict output", "scores and features by name", nets.Named, rows, {"output": "scores"}),
    Case("two inputs", "an image and a row of numbers", nets.Two, both),
    Case("regression", "outputs (N,), loss mse, metric mae", nets.Regressor, numbers, {"loss": "mse", "metric": "mae"}),
    Case("segmentation", "a U-Net with a transposed convolution, metric iou", nets.UNet, masks, {"metric": "iou"}),
)

REFUSALS = (
    Refusal("BatchNorm in training", nets.batchnorm, images, "whose running statistics do not federate",
            "`anybit.replace_batchnorm(model)`, or of a trained body `.eval()`"),
    Refusal("dropout inside `forward` (`F.dropout`, attention dropout of Hugging Face)", lambda: libraries.bert(0.1), texts,
            "draws its own random numbers",
            "`nn.Dropout` as a module, or a probability of 0 (`attention_probs_dropout_prob=0`)"),
    Refusal("linear layers of another class (GPT-2's `Conv1D`)", libraries.gpt2, tokens,
            "belongs to no layer that is quantized", "`nn.Linear`, or `full_precision` if they may stay in float"),
    Refusal("convolutions with their own code (timm's `StdConv2d`)", lambda: libraries.timm_model("test_nfnet"), images,
            "with its own code", "`nn.Conv2d`, or `full_precision`"),
    Refusal("weights computed from others (`weight_norm`)", nets.weight_norm, rows, "computes its weight from others",
            "remove the parametrization, or `full_precision`"),
    Refusal("weights used outside of their layer (`F.linear(x, self.emb.weight)`)", nets.TiedByHand, rows,
            "is also used outside of its layer", "a layer that shares it (`head.weight = emb.weight`), or `full_precision`"),
    Refusal("layers that `forward` never calls", nets.Unused, rows, "never called", "remove them, or `full_precision`"),
    Refusal("a buffer that `forward` changes", nets.Counting, rows, "changes its buffer", "drop it, or keep it elsewhere"),
    Refusal("lazy layers", nets.lazy, rows, "has no shape yet", "run one batch through the model first"),
)
