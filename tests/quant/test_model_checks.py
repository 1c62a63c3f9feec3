"""What a model may be made of: subclasses, tied weights, modules kept in float; and what stands in its way, all at once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from anybit.errors import ModelError
from anybit.federated.state import trainable_weights
from anybit.quant.grid import rounding
from anybit.quant.sites import SiteOptions, float_parameters, prepare, quantizers, replace_batchnorm, weight_sites


class Named(nn.Conv2d):
    """A convolution that only adds to the class."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, channels, 3, padding=1)

    def doubled(self, x: Tensor) -> Tensor:
        return 2 * self(x)


class Doubled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = Named(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv.doubled(x)


def test_a_subclass_that_computes_the_same_is_quantized_and_stays_itself() -> None:
    model, x = Doubled(), torch.randn(1, 2, 4, 4)
    prepared = prepare(model, rounding, rounding)
    assert list(weight_sites(prepared)) == ["conv.weight_quantizer"]
    assert torch.equal(prepared(x), model(x))
    assert type(model.conv) is Named, "the user's model is untouched"
    quantizer = quantizers(prepared)["conv.weight_quantizer"]
    quantizer.step, quantizer.low, quantizer.high = torch.tensor(0.1), torch.tensor(-2.0), torch.tensor(1.0)
    assert not torch.equal(prepared(x), model(x))


def test_all_problems_come_in_one_error() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.RReLU(), nn.Embedding(3, 2, max_norm=1.0))
    with pytest.raises(ModelError) as error:
        prepare(model, options=SiteOptions(full_precision=("5",)))
    said = str(error.value)
    assert said.startswith("the model cannot be trained as it is: (1) full_precision names '5'")
    for part in ("(2) layer '1' is BatchNorm2d", "(3) layer '2' (RReLU)", "(4) layer '3' (Embedding): max_norm"):
        assert part in said


def test_layers_of_one_kind_come_in_one_line_with_the_advice_that_suits_them() -> None:
    norms = nn.Sequential(nn.Conv2d(1, 2, 1), *(nn.BatchNorm2d(2) for _ in range(5)))
    with pytest.raises(ModelError) as error:
        prepare(norms)
    assert str(error.value) == ("layers '1', '2', '3' and 2 more are BatchNorm2d in training, whose running statistics do "
                                "not federate: use anybit.replace_batchnorm(model, groups=2)"), "nothing is there to freeze"
    norms(torch.zeros(2, 1, 4, 4))
    with pytest.raises(ModelError, match=r"groups=2\), or keep the statistics of an earlier training with \.eval\(\)"):
        prepare(norms)


def test_lazy_and_parametrized_layers_are_named() -> None:
    for refuse in (prepare, trainable_weights):
        with pytest.raises(ModelError, match=r"'0\.weight' of a lazy layer.*run one batch through the model first"):
            refuse(nn.Sequential(nn.LazyLinear(3)))
    with pytest.raises(ModelError, match=r"layer '0'.*computes its weight from others"):
        prepare(nn.Sequential(weight_norm(nn.Linear(2, 2)), nn.Linear(2, 2)))
    prepare(nn.Sequential(weight_norm(nn.Linear(2, 2)), nn.Linear(2, 2)), options=SiteOptions(full_precision=("0",)))


def test_full_precision_covers_what_is_below() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 2))), nn.Linear(2, 2), nn.Linear(2, 2))
    options = SiteOptions(full_precision=("0", "2.weight"))
    assert list(weight_sites(prepare(model, options=options))) == ["1.weight_quantizer"]
    assert float_parameters(model, options) == {"0.0.weight": 24, "0.0.bias": 12, "0.1.0.weight": 24, "0.1.0.bias": 8,
                                                "1.bias": 8, "2.weight": 16, "2.bias": 8}


class Tied(nn.Module):
    """A language model's embedding and head, and one module under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.same, self.head = nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 5, bias=False)
        self.again, self.head.weight = self.same, self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.again(self.same(self.embed(x))).mean(1))
        return out


def test_tied_weights_are_one_tensor_with_one_site() -> None:
    prepared = prepare(Tied(), options=SiteOptions(first_last_bits=8))
    assert weight_sites(prepared) == {"embed.weight_quantizer": "embed.weight", "same.weight_quantizer": "same.weight"}
    assert prepared.head.weight_quantizer is prepared.embed.weight_quantizer
    assert set(quantizers(prepared, "activations")) == {"same.input_quantizer", "head.input_quantizer"}
    kept = prepare(Tied(), options=SiteOptions(full_precision=("head",)))
    assert list(weight_sites(kept)) == ["same.weight_quantizer"], "named once, in float everywhere"


def test_a_weight_with_a_name_of_its_own_is_refused() -> None:
    model = Tied()
    model.alias = model.same.weight
    with pytest.raises(ModelError, match="parameter 'alias' is the weight of layer 'same', too"):
        prepare(model)


class NormAct(nn.BatchNorm2d):
    """A BatchNorm with an activation, as timm has it."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, eps=0.5)
        self.drop, self.act = nn.Identity(), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.act(self.drop(super().forward(x)))
        return out


def test_replaced_batchnorm_keeps_what_it_learned_and_its_activation() -> None:
    norm, x = NormAct(4), torch.randn(3, 4, 2, 2)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.0, 2, 3, 4]))
        norm.bias.copy_(torch.tensor([0.1, 0.2, 0.3, 0.4]))
    replaced = replace_batchnorm(nn.Sequential(nn.Conv2d(4, 4, 1), norm))[1]  # type: ignore[index]
    expected = torch.relu(nn.functional.group_norm(x, 2, norm.weight, norm.bias, 0.5))
    assert torch.equal(replaced(x), expected)
    plain = replace_batchnorm(nn.Sequential(nn.BatchNorm1d(4, affine=False)))[0]  # type: ignore[index]
    assert plain.weight is None
    norm.more = nn.Tanh()
    with pytest.raises(ModelError, match=r"\(1\) layer '0\.0' is a NormAct.*\(2\) layer '0\.1' has 3 channels"):
        replace_batchnorm(nn.Sequential(nn.Sequential(norm, nn.BatchNorm2d(3))))
