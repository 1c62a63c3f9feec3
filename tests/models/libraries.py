"""Models of timm, torchvision and transformers, small and with random weights; the libraries are imported when called."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn

import anybit


@functools.cache
def vision() -> Any:
    """Import torchvision, also where its compiled operators do not fit the installed torch: its models need none of them."""
    try:
        import torchvision
    except RuntimeError:
        # It describes these two to torch while it is imported, and fails where nothing has defined them.
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision
    return torchvision


def mobilenet_v2() -> nn.Module:
    blocks = [[1, 8, 1, 1], [4, 12, 2, 2], [4, 16, 1, 2]]
    model: nn.Module = vision().models.mobilenet_v2(num_classes=4, width_mult=0.5, inverted_residual_setting=blocks)
    return anybit.replace_batchnorm(model)


def timm_model(name: str, **settings: Any) -> nn.Module:
    vision()  # which timm imports
    import timm

    model: nn.Module = timm.create_model(name, num_classes=4, **settings)
    return anybit.replace_batchnorm(model)


def bert(attention_dropout: float) -> nn.Module:
    vision()  # which transformers imports where it is installed
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=12, attention_probs_dropout_prob=attention_dropout, num_labels=4))


def llama() -> nn.Module:
    vision()
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=24, max_position_embeddings=12, tie_word_embeddings=True, use_cache=False))


def gpt2() -> nn.Module:
    vision()
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(vocab_size=20, n_positions=12, n_embd=16, n_layer=1, n_head=2, attn_pdrop=0.0))
