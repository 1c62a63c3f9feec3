"""The kinds of layers that have sites: their matrices, what these are multiplied with, and what takes their place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from anybit.quant.attention import QuantizedAttention, attention_refusal, attention_weights
from anybit.quant.embedding import QuantizedEmbedding, QuantizedEmbeddingBag, embedding_refusal
from anybit.quant.modules import LAYERS, as_it_was, quantized_layer
from anybit.quant.recurrent import QuantizedCell, QuantizedRecurrent, recurrent_refusal, recurrent_weights


@dataclass(frozen=True)
class LayerKind:
    """A class of layers."""

    of: type[nn.Module]
    weights: Callable[[Any], dict[str, tuple[str, ...]]]
    """Layer → {matrix: the inputs that it, or its parts in this order, is multiplied with}."""
    make: Callable[[Any], nn.Module]
    """Layer → the layer that passes matrix m through `m_quantizer` and input x through `x_quantizer`, which it is given."""
    refusal: Callable[[Any], str] = lambda layer: ""
    """Layer → why it cannot be trained as it is."""
    own_code: tuple[str, ...] = ("forward",)
    """Methods with which a subclass computes something else."""
    rebuilt: bool = False
    """Also in full precision: torch's own is one operation with its own draws, which no engine can take apart."""

    def inputs(self, layer: Any) -> list[str]:
        """Return the names of the activation sites."""
        return list(dict.fromkeys(name for names in self.weights(layer).values() for name in names))

    def computes_otherwise(self, layer: nn.Module) -> bool:
        """Tell if the layer is of a subclass with its own code that gives other outputs."""
        own = any(getattr(type(layer), name) is not getattr(self.of, name) for name in self.own_code)
        return own and not (self.of is nn.Linear and _is_linear(layer))


@torch.no_grad()
def _is_linear(layer: Any) -> bool:
    """Tell if the layer's own code gives x·wᵀ + b, for small x and large, and has nothing else to compute with."""
    settings = set(vars(layer)) - set(vars(nn.Linear(1, 1, device="meta")))
    if settings or list(layer.children()) or set(layer._parameters) != {"weight", "bias"} or layer._buffers:
        return False
    x = torch.arange(4.0 * layer.in_features, device=layer.weight.device).sin().reshape(4, -1).to(layer.weight.dtype)
    try:
        return all(torch.equal(layer(y), F.linear(y, layer.weight, layer.bias)) for y in (x, 1000 * x))
    except Exception:
        return False


def _replaced(new: Callable[[Any], nn.Module]) -> Callable[[Any], nn.Module]:
    return lambda layer: as_it_was(new(layer), layer)


KINDS = (
    *(LayerKind(of, lambda layer: {"weight": ("input",)}, quantized_layer,
                own_code=("forward", "_conv_forward") if hasattr(of, "_conv_forward") else ("forward",)) for of in LAYERS),
    *(LayerKind(of, lambda layer: {"weight": ()}, _replaced(new), embedding_refusal)
      for of, new in ((nn.Embedding, QuantizedEmbedding), (nn.EmbeddingBag, QuantizedEmbeddingBag))),
    *(LayerKind(of, recurrent_weights, _replaced(QuantizedRecurrent), recurrent_refusal, rebuilt=True)
      for of in (nn.LSTM, nn.GRU, nn.RNN)),
    *(LayerKind(of, lambda layer: {"weight_ih": ("input",), "weight_hh": ("hidden",)}, _replaced(QuantizedCell))
      for of in (nn.LSTMCell, nn.GRUCell, nn.RNNCell)),
    LayerKind(nn.MultiheadAttention, attention_weights, _replaced(QuantizedAttention), attention_refusal, rebuilt=True),
)


def kind_of(module: nn.Module) -> LayerKind | None:
    """Return the kind of a layer with sites; none of any other module."""
    return next((kind for kind in KINDS if isinstance(module, kind.of)), None)
