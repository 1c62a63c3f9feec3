from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anybit.errors import ModelError
from anybit.models import resnet20
from anybit.quant.calibrate import activation_ranges, activation_table, health_seen, layer_health, weight_table
from anybit.quant.grid import BITS, Grid, Width, limits, quantize, rounding
from anybit.quant.ranges import SPREAD
from anybit.quant.sites import SiteOptions, bind, prepare, quantizers, replace_batchnorm, weight_sites

ZERO = torch.zeros((), dtype=torch.int64)


def run(model: nn.Module, x: Tensor, width: tuple[int, int], options: SiteOptions = SiteOptions(),
        rule: str = "minmax") -> Tensor:
    """The model's output at a width, with steps by `rule`."""
    prepared = prepare(model, rounding, rounding, options).eval()
    w = dict(model.named_parameters())
    table = weight_table(prepared, w, rule, options.per_channel, SPREAD)  # type: ignore[arg-type]
    table = table.merged(activation_table(model, options, w, x, "cover"))
    buffers = bind(prepared, table.steps, torch.tensor(width), rows=torch.ones(len(x)), key=ZERO, count=ZERO)
    with torch.no_grad():
        out: Tensor = torch.func.functional_call(prepared, {**w, **buffers}, (x,))
    return out


def test_names_stay_and_the_users_model_is_untouched(mlp: nn.Module) -> None:
    before = copy.deepcopy(mlp.state_dict())
    prepared = prepare(mlp, rounding, rounding)
    assert [n for n, _ in prepared.named_parameters()] == [n for n, _ in mlp.named_parameters()]
    assert list(prepared.state_dict()) == list(before)
    assert type(mlp[0]) is nn.Linear
    assert isinstance(prepared[0], nn.Linear)  # type: ignore[index]
    assert prepared[0].in_features == 8  # type: ignore[index]


def test_everything_new_lives_where_the_model_lives(mlp: nn.Module) -> None:
    model = nn.Sequential(*mlp, nn.Dropout(0.1)).to("meta")
    prepared = prepare(model, rounding, rounding, last_dropout=0.5)
    assert {buffer.device.type for buffer in prepared.buffers()} == {"meta"}


def test_32_bits_change_nothing(mlp: nn.Module) -> None:
    x = torch.randn(5, 8)
    assert torch.equal(run(mlp, x, (32, 32)), mlp(x))


def test_weights_and_inputs_are_quantized_by_hand(mlp: nn.Module) -> None:
    x = torch.randn(5, 8)
    first, last = mlp[0], mlp[2]  # type: ignore[index]

    def q(t: Tensor, rule: str, bits: int) -> Tensor:
        low, high = t.min(), t.max()
        step = (high - low) / (2**bits - 1) if rule == "minmax" else \
            torch.maximum(-low.clamp(max=0) / 2 ** (bits - 1), high / (2 ** (bits - 1) - 1))
        return quantize(t, Grid(step, *limits(torch.tensor(bits), "full")))

    with torch.no_grad():
        hidden = F.relu(first(x))
        inner = F.relu(F.linear(q(x, "cover", 4), q(first.weight, "minmax", 3), first.bias))
        low, high = hidden.min(), hidden.max()
        step = torch.maximum(-low.clamp(max=0) / 8, high / 7)
        inner = quantize(inner, Grid(step, *limits(torch.tensor(4), "full")))
        expected = F.linear(inner, q(last.weight, "minmax", 3), last.bias)
    assert torch.allclose(run(mlp, x, (3, 4)), expected, atol=1e-6)


def test_first_and_last_layer_at_another_width() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    prepared = prepare(model, rounding, rounding, SiteOptions(first_last_bits=8))
    w = dict(model.named_parameters())
    table = weight_table(prepared, w, "minmax", False, SPREAD)
    buffers = bind(prepared, table.steps, torch.tensor([2, 32]), rows=torch.ones(1), key=ZERO, count=ZERO)
    for layer, bits in (("0", 8), ("1", 2), ("2", 8)):
        step = table.steps[f"{layer}.weight_quantizer"][BITS.index(bits)]
        assert buffers[f"{layer}.weight_quantizer.step"] == step
    free = bind(prepared, table.steps, torch.tensor([32, 32]), rows=torch.ones(1), key=ZERO, count=ZERO)
    assert all(free[f"{layer}.weight_quantizer.step"] == 0 for layer in "012")


def test_the_image_may_stay_unquantized(mlp: nn.Module) -> None:
    prepared = prepare(mlp, None, rounding, SiteOptions(quantize_image=False))
    assert quantizers(prepared)["0.input_quantizer"].transform is None
    assert quantizers(prepared)["2.input_quantizer"].transform is rounding


@pytest.mark.parametrize("layer", [nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1, output_padding=1),
                                   nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular", groups=2),
                                   nn.ConvTranspose2d(2, 3, 3, dilation=2)])
def test_other_convolutions_keep_their_geometry(layer: nn.Module) -> None:
    model = nn.Sequential(layer, nn.Flatten())
    x = torch.randn(2, 2, 5, 5)
    assert torch.allclose(run(model, x, (32, 32)), model(x), atol=1e-6)
    assert not torch.allclose(run(model, x, (2, 32)), model(x))


def test_tied_layers_share_a_site() -> None:
    shared = nn.Linear(6, 6)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    assert list(weight_sites(prepare(model))) == ["0.weight_quantizer"]
    assert activation_ranges(model, SiteOptions(), dict(model.named_parameters()), torch.randn(3, 6)).keys() == {
        "0.input_quantizer"}


class NeverCalled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.used(x), self.spare.weight)


class Stray(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.mix = nn.Linear(4, 4), nn.Parameter(torch.ones(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x) @ self.mix
        return out


class OwnLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def test_a_layer_that_is_never_called_is_named() -> None:
    model = NeverCalled()
    with pytest.raises(ModelError, match="layer 'spare' is never called"):
        activation_ranges(model, SiteOptions(), dict(model.named_parameters()), torch.randn(2, 4))
    relaxed = SiteOptions(full_precision=("spare",))
    assert activation_ranges(model, relaxed, dict(model.named_parameters()), torch.randn(2, 4))


@pytest.mark.parametrize(("model", "message"), [
    (nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)), "layer '1' is BatchNorm2d in training.*replace_batchnorm"),
    (Stray(), "parameter 'mix'.*full_precision"),
    (nn.Sequential(OwnLinear(2, 2)), "layer '0' is a OwnLinear, a Linear with its own code"),
    (nn.Sequential(nn.ReLU()), "no conv or linear layer"),
    (nn.Linear(2, 2), r"the model is a single Linear: wrap it, as in nn\.Sequential\(layer\)"),
    (nn.Sequential(nn.Linear(2, 2), nn.RReLU()), "draws its own random numbers")])
def test_models_that_cannot_work_are_refused_by_name(model: nn.Module, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        prepare(model)


def test_misspelt_full_precision_gets_a_hint() -> None:
    with pytest.raises(ModelError, match="did you mean 'mix'"):
        prepare(Stray(), options=SiteOptions(full_precision=("mixx",)))
    prepare(Stray(), options=SiteOptions(full_precision=("mix",)))


def test_frozen_batchnorm_is_welcome_and_training_batchnorm_can_be_replaced() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))
    replaced = replace_batchnorm(model, groups=2)
    assert isinstance(replaced[1], nn.GroupNorm)  # type: ignore[index]
    assert isinstance(model[1], nn.BatchNorm2d)
    prepare(replaced)
    model[1].eval()
    prepare(model)
    with pytest.raises(ModelError, match="4 channels, not divisible by 3 groups: give groups=2"):
        replace_batchnorm(model, groups=3)


def test_dropout_is_keyed_and_off_in_evaluation() -> None:
    model = nn.Sequential(nn.Linear(50, 50), nn.Dropout(0.5), nn.Linear(50, 50))
    prepared = prepare(model)
    x, w = torch.randn(3, 50), dict(model.named_parameters())

    def out(key: int, step: int) -> Tensor:
        buffers = bind(prepared, {}, torch.tensor([32, 32]), rows=torch.ones(3), key=torch.tensor(key),
                       count=torch.tensor(step))
        result: Tensor = torch.func.functional_call(prepared, {**w, **buffers}, (x,))
        return result

    assert torch.equal(out(1, 0), out(1, 0))
    assert not torch.equal(out(1, 0), out(1, 1))
    assert not torch.equal(out(1, 0), out(2, 0))
    prepared.eval()
    assert torch.equal(out(1, 0), model.eval()(x))


def test_dropout_before_the_last_layer_drops_half_and_scales() -> None:
    model = nn.Sequential(nn.Linear(2, 1000), nn.Linear(1000, 1))
    prepared = prepare(model, last_dropout=0.5)
    dropout = prepared[1].input_dropout  # type: ignore[index]
    x = dropout(torch.ones(4, 1000))
    assert sorted(x.unique().tolist()) == [0.0, 2.0]
    assert float(x.mean()) == pytest.approx(1, abs=0.1)


def test_health_counts_what_lies_outside_the_grid() -> None:
    model = nn.Sequential(nn.Linear(4, 2, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[-3.0, -2.0, 0.0, 1.0], [1.0, 2.0, 3.0, 0.0]]))
    steps = {"0.weight_quantizer": torch.ones(7), "0.input_quantizer": torch.ones(7)}
    w = dict(model.named_parameters())
    prepared = prepare(model).eval()
    seen = health_seen(prepared, w, steps, torch.zeros(2, 4), torch.tensor([2, 32]))
    health = layer_health(prepared, seen, Width(2, 32))
    assert health["0.weight_quantizer"].saturation == pytest.approx(3 / 8)  # −3, 2 and 3 lie outside −2 … 1
    assert health["0.input_quantizer"].saturation == 0


def test_mse_activation_steps_beat_cover_on_heavy_tails() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 3))
    x = torch.randn(64, 30) ** 3
    w = dict(model.named_parameters())

    def error(rule: str) -> float:
        steps = activation_table(model, SiteOptions(), w, x, rule).steps["0.input_quantizer"]  # type: ignore[arg-type]
        return float(((quantize(x, Grid(steps[2], *limits(torch.tensor(4), "full"))) - x) ** 2).mean())

    assert error("mse") < 0.8 * error("cover")


def test_running_ranges_are_what_is_usual_in_a_batch() -> None:
    """Batches of 64 with [−1, 3] and [−3, 1]: on average [−2, 2], so Δ_2 = 4/3, where the range of all gives 2."""
    model = nn.Sequential(nn.Linear(1, 1))
    w = {name: p.detach() for name, p in model.named_parameters()}
    x = torch.zeros(128, 1)
    x[0], x[1], x[64], x[65] = -1, 3, -3, 1
    of = {rule: activation_table(model, SiteOptions(), w, x, rule).steps["0.input_quantizer"]  # type: ignore[arg-type]
          for rule in ("running", "minmax")}
    assert float(of["running"][0]) == pytest.approx(4 / 3)
    assert float(of["minmax"][0]) == 2
    shifted = activation_table(model, SiteOptions(), w, x[64:] + 1, "minmax").steps["0.input_quantizer"]
    assert torch.equal(of["running"], shifted)


def test_resnet20_has_a_site_for_every_conv_and_linear() -> None:
    assert len(weight_sites(prepare(resnet20()))) == 20
