"""nn.MultiheadAttention in plain tensor operations, and through it the Transformer layers of torch.

Sites: the projections under their own names (in_proj_weight, or q_, k_ and v_proj_weight; out_proj is a linear layer),
and the inputs `query`, `key` and `value`. The products of attention itself, which have no weights, stay in float.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anybit.errors import ModelError

INPUTS = ("query", "key", "value")


def attention_refusal(layer: nn.MultiheadAttention) -> str:
    """Say why an attention cannot be trained as it is; empty if it can."""
    return "add_bias_kv and add_zero_attn are not computed: remove them" if layer.bias_k is not None or layer.add_zero_attn \
        else ""


def attention_weights(layer: nn.MultiheadAttention) -> dict[str, tuple[str, ...]]:
    """Return {matrix: the inputs that its parts are multiplied with}."""
    if layer._qkv_same_embed_dim:
        return {"in_proj_weight": INPUTS}
    return {f"{name[0]}_proj_weight": (name,) for name in INPUTS}


class QuantizedAttention(nn.Module):
    """softmax(q·kᵀ/√d + mask)·v per head, with q, k, v and the output projected."""

    out_proj: nn.Module
    in_proj_bias: Tensor | None

    def __init__(self, like: nn.MultiheadAttention) -> None:
        super().__init__()
        for name, parameter in like._parameters.items():
            self.register_parameter(name, parameter)
        self.out_proj = like.out_proj
        self.together, self.num_heads, self.batch_first = like._qkv_same_embed_dim, like.num_heads, like.batch_first
        # Else the Transformer layers of torch would, in evaluation, use the matrices themselves.
        self._qkv_same_embed_dim = False
        self.attention_dropout: nn.Module = nn.Dropout(like.dropout) if like.dropout else nn.Identity()

    def forward(self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None,
                need_weights: bool = True, attn_mask: Tensor | None = None, average_attn_weights: bool = True,
                is_causal: bool = False) -> tuple[Tensor, Tensor | None]:
        if query.dim() != 3:
            raise ModelError("attention takes inputs with a batch dimension, as tensors of three dimensions")
        if is_causal and attn_mask is None:
            raise ModelError("attention with is_causal=True needs attn_mask, too")
        inputs = [x if self.batch_first else x.transpose(0, 1) for x in (query, key, value)]
        q, k, v = (self._heads(x) for x in self._projected(inputs))
        scores = (q / math.sqrt(q.shape[-1])) @ k.transpose(-2, -1)
        for mask in self._masks(attn_mask, key_padding_mask, scores):
            scores = scores + mask
        weights = self.attention_dropout(torch.softmax(scores, -1))
        out = (weights @ v).transpose(1, 2).flatten(2)
        out = self.out_proj(out if self.batch_first else out.transpose(0, 1))
        if not need_weights:
            return out, None
        return out, weights.mean(1) if average_attn_weights else weights

    def _projected(self, inputs: list[Tensor]) -> list[Tensor]:
        if self.together:
            matrices = self.get_submodule("in_proj_weight_quantizer")(self.in_proj_weight).chunk(3)
        else:
            matrices = [getattr(self, f"{n[0]}_proj_weight_quantizer")(getattr(self, f"{n[0]}_proj_weight")) for n in INPUTS]
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return [F.linear(getattr(self, f"{name}_quantizer")(x), matrix, bias)
                for name, x, matrix, bias in zip(INPUTS, inputs, matrices, biases, strict=True)]

    def _heads(self, x: Tensor) -> Tensor:
        """Return (batch, head, position, feature)."""
        return x.reshape(*x.shape[:2], self.num_heads, -1).transpose(1, 2)

    def _masks(self, attn_mask: Tensor | None, padding: Tensor | None, scores: Tensor) -> list[Tensor]:
        """Return what is added to the scores: −∞ where a mask of bools is true."""
        out = []
        if attn_mask is not None:
            out.append(attn_mask.reshape(scores.shape) if attn_mask.dim() == 3 else attn_mask)
        if padding is not None:
            out.append(padding[:, None, None, :])
        return [torch.where(m, -torch.inf, 0.0).to(scores.dtype) if m.dtype == torch.bool else m for m in out]
