"""Embeddings whose rows are looked up in a quantized weight; their input, whole numbers, is no site."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from anybit.errors import ModelError
from anybit.quant.modules import Quantizer


def embedding_refusal(layer: nn.Embedding | nn.EmbeddingBag) -> str:
    """Say why an embedding cannot be trained as it is; empty if it can."""
    if layer.max_norm is not None:
        return "max_norm changes its weight in the forward pass: remove it"
    if layer.scale_grad_by_freq or layer.sparse:
        return "scale_grad_by_freq and sparse gradients are of one batch on one machine: remove them"
    if isinstance(layer, nn.EmbeddingBag) and (layer.padding_idx is not None or layer.include_last_offset):
        return "padding_idx and include_last_offset are not computed: remove them, or use nn.Embedding and a mean"
    return ""


class QuantizedEmbedding(nn.Module):
    """Rows of Q(weight)."""

    weight: Tensor
    weight_quantizer: Quantizer

    def __init__(self, like: nn.Embedding) -> None:
        super().__init__()
        self.weight, self.padding_idx = like.weight, like.padding_idx

    def forward(self, x: Tensor) -> Tensor:
        return F.embedding(x, self.weight_quantizer(self.weight), self.padding_idx)


class QuantizedEmbeddingBag(nn.Module):
    """Sums, means or maxima over bags of rows of Q(weight): bags of one length, a row of x each."""

    weight: Tensor
    weight_quantizer: Quantizer

    def __init__(self, like: nn.EmbeddingBag) -> None:
        super().__init__()
        self.weight, self.mode = like.weight, like.mode

    def forward(self, x: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        if x.dim() != 2 or offsets is not None:
            raise ModelError("an EmbeddingBag with offsets: give bags of one length as the rows of a matrix")
        rows = F.embedding(x, self.weight_quantizer(self.weight))
        if per_sample_weights is not None:
            rows = rows * per_sample_weights[..., None]
        return rows.amax(1) if self.mode == "max" else rows.mean(1) if self.mode == "mean" else rows.sum(1)
