"""Small networks that predict the next character: whole numbers (example, position) → logits (example, class, position).

The class, a character, comes second because that is where cross-entropy wants it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from anybit.errors import ModelError

CHARACTERS = 97
"""Of the data source `text`: its alphabet, and one number for all other characters."""


class CharLSTM(nn.Module):
    """Embedding – LSTM – linear."""

    def __init__(self, classes: int, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(x))
        return self.head(states).transpose(1, 2)  # type: ignore[no-any-return]


class CausalBlock(nn.Module):
    """x + attention(norm(x)) to this and earlier positions, then x + linear – GELU – linear of norm(x)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.project = nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.activation = nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        q, k, v = (layer(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        seen = scores.masked_fill(later, -math.inf).softmax(-1) @ v
        x = x + self.project(seen.transpose(1, 2).flatten(2))
        return x + self.narrow(self.activation(self.wide(self.norm2(x))))  # type: ignore[no-any-return]


class CharTransformer(nn.Module):
    """Embeddings of characters and positions, causal blocks, a norm and one linear."""

    def __init__(self, classes: int, width: int, heads: int, layers: int, length: int) -> None:
        super().__init__()
        self.length = length
        self.embedding, self.position = nn.Embedding(classes, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(CausalBlock(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] > self.length:
            raise ModelError(f"model.length = {self.length}: the texts have {x.shape[1]} characters, set both to the same")
        x = self.embedding(x) + self.position(torch.arange(x.shape[1], device=x.device))
        return self.head(self.norm(self.blocks(x))).transpose(1, 2)  # type: ignore[no-any-return]


def char_lstm(classes: int = CHARACTERS, embedding: int = 32, hidden: int = 64, layers: int = 1) -> nn.Module:
    """Build an embedding, `layers` LSTM layers of `hidden` states and a linear; 34,497 parameters."""
    return CharLSTM(classes, embedding, hidden, layers)


def char_transformer(classes: int = CHARACTERS, width: int = 64, heads: int = 4, layers: int = 2,
                     length: int = 64) -> nn.Module:
    """Build a causal transformer for up to `length` characters, norms first; 116,705 parameters."""
    if heads < 1 or width % heads:
        raise ValueError(f"width = {width} cannot be shared by {heads} heads")
    return CharTransformer(classes, width, heads, layers, length)
