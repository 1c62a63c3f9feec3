"""Recurrent layers and attention in plain operations: torch's own outputs in float, and every matrix a site."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from anybit.errors import ModelError
from anybit.quant.modules import KeyedDropout
from anybit.quant.sites import SiteOptions, prepare, quantizers, weight_sites


class Holder(nn.Module):
    """A model that is one layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.layer(*inputs, **named)


def tensors(out: Any) -> Iterator[Tensor]:
    if isinstance(out, Tensor):
        yield out
    elif out is not None:
        for part in out:
            yield from tensors(part)


def assert_same(model: nn.Module, *inputs: Any, **named: Any) -> None:
    """The prepared model gives what torch gives, in training and in evaluation, with and without gradients."""
    for training, grad in itertools.product((True, False), repeat=2):
        model.train(training)
        with torch.set_grad_enabled(grad):
            expected, got = (list(tensors(m(*inputs, **named))) for m in (model, prepare(model).train(training)))
        assert len(expected) == len(got)
        for e, g in zip(expected, got, strict=True):
            torch.testing.assert_close(g, e, atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize(("layers", "both", "batch_first", "bias"), [(1, False, True, True), (2, True, False, True),
                                                                     (2, True, True, False)])
def test_recurrent_layers_compute_what_torch_does(kind: Any, layers: int, both: bool, batch_first: bool, bias: bool) -> None:
    torch.manual_seed(0)
    layer = kind(5, 4, layers, bias=bias, batch_first=batch_first, bidirectional=both)
    h = torch.randn(layers * (1 + both), 3 if batch_first else 6, 4)
    assert_same(Holder(layer), torch.randn(3, 6, 5))
    assert_same(Holder(layer), torch.randn(3, 6, 5), (h, torch.randn_like(h)) if kind is nn.LSTM else h)


@pytest.mark.parametrize("layer", [nn.LSTMCell(5, 4), nn.GRUCell(5, 4, bias=False), nn.RNNCell(5, 4, nonlinearity="relu")])
def test_cells_compute_what_torch_does(layer: nn.Module) -> None:
    assert_same(Holder(layer), torch.randn(3, 5))


@pytest.mark.parametrize(("batch_first", "kdim"), [(True, None), (False, None), (True, 7)])
@pytest.mark.parametrize("options", [{}, {"attn_mask": torch.tril(torch.ones(3, 5)) == 0},
                                     {"attn_mask": torch.arange(120.0).reshape(8, 3, 5).sin()},
                                     {"key_padding_mask": torch.arange(5).expand(4, 5) >= 3}, {"need_weights": False},
                                     {"average_attn_weights": False}])
def test_attention_computes_what_torch_does(batch_first: bool, kdim: int | None, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(6, 2, batch_first=batch_first, kdim=kdim, vdim=kdim)
    query, key = (torch.randn(*((4, n) if batch_first else (n, 4)), size) for n, size in ((3, 6), (5, kdim or 6)))
    assert_same(Holder(attention), query, key, key, **options)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_transformers_never_take_the_path_around_the_quantizers() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    x, mask = torch.randn(3, 5, 8), nn.Transformer.generate_square_subsequent_mask(5)
    assert_same(Holder(nn.TransformerEncoder(layer, 2)), x)
    assert_same(Holder(nn.TransformerEncoder(layer, 2)), x, mask=mask, is_causal=True)
    assert_same(Holder(nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True)), x, x, tgt_mask=mask)
    encoder = Holder(nn.TransformerEncoder(layer, 1)).eval()
    padding = torch.arange(5).expand(3, 5) >= 3
    with torch.no_grad():  # where torch itself leaves the padding out
        expected, got = (m(x, src_key_padding_mask=padding)[:, :3] for m in (encoder, prepare(encoder).eval()))
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=0)


def test_every_matrix_is_a_site_under_its_own_name() -> None:
    model = nn.ModuleDict({"lstm": nn.LSTM(3, 2, bidirectional=True), "attention": nn.MultiheadAttention(4, 2),
                           "cross": nn.MultiheadAttention(4, 2, kdim=3, vdim=3), "cell": nn.GRUCell(3, 2)})
    prepared = prepare(model)
    assert {n for n, p in model.named_parameters() if p.dim() > 1} == set(weight_sites(prepared).values())
    assert [n for n, _ in prepared.named_parameters()] == [n for n, _ in model.named_parameters()]
    inputs = {name for name in quantizers(prepared, "activations") if name.startswith("lstm")}
    assert inputs == {"lstm.input_l0_quantizer", "lstm.hidden_l0_quantizer", "lstm.hidden_l0_reverse_quantizer"}
    numbers = [site.number for site in quantizers(prepared).values()]
    assert len(set(numbers)) == len(numbers), "draws are independent"


def test_dropout_inside_is_keyed_also_in_full_precision() -> None:
    model = nn.ModuleDict({"lstm": nn.LSTM(3, 3, 3, dropout=0.5), "attention": nn.MultiheadAttention(4, 2, dropout=0.5),
                           "head": nn.Linear(2, 2)})
    for options in (SiteOptions(), SiteOptions(full_precision=("lstm", "attention"))):
        prepared = prepare(model, options=options)
        assert len({m.number for m in prepared.modules() if isinstance(m, KeyedDropout)}) == 3
        assert not any(isinstance(m, nn.Dropout | nn.RNNBase | nn.MultiheadAttention) for m in prepared.modules())
    assert list(weight_sites(prepared).values()) == ["head.weight"]


@pytest.mark.parametrize(("layer", "message"), [
    (nn.LSTM(3, 4, proj_size=2), r"layer 'layer' \(LSTM\): proj_size"),
    (nn.MultiheadAttention(4, 2, add_bias_kv=True), r"layer 'layer' \(MultiheadAttention\): add_bias_kv"),
    (nn.Embedding(4, 2, max_norm=1.0), r"layer 'layer' \(Embedding\): max_norm"),
    (nn.Embedding(4, 2, sparse=True), "scale_grad_by_freq and sparse"),
    (nn.EmbeddingBag(4, 2, padding_idx=0), r"layer 'layer' \(EmbeddingBag\): padding_idx")])
def test_what_is_not_computed_is_refused(layer: nn.Module, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        prepare(Holder(layer))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_compute_what_torch_does(mode: Any) -> None:
    assert_same(Holder(nn.EmbeddingBag(9, 4, mode=mode)), torch.randint(9, (3, 5)))
