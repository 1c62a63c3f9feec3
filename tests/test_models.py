from __future__ import annotations

import pytest
import torch
from torch import nn

from anybit.models import lenet5, mlp, resnet18, resnet20


@pytest.mark.parametrize(("model", "count", "shape", "classes"), [
    (lenet5(), 657_080, (3, 32, 32), 10), (lenet5(1, 28, 62), 457_132, (1, 28, 28), 62),
    (resnet20(), 269_722, (3, 32, 32), 10), (resnet20(1), 269_434, (1, 8, 8), 10),
    (resnet18(), 11_271_432, (3, 64, 64), 200)])
def test_parameter_counts_and_shapes(model: nn.Module, count: int, shape: tuple[int, ...], classes: int) -> None:
    assert sum(p.numel() for p in model.parameters()) == count
    with torch.no_grad():
        assert model(torch.randn(2, *shape)).shape == (2, classes)


def test_resnet20_has_group_norm_with_two_groups() -> None:
    norms = [m for m in resnet20().modules() if isinstance(m, nn.GroupNorm)]
    assert len(norms) == 19
    assert all(n.num_groups == 2 for n in norms)


def test_option_a_adds_no_parameters_and_keeps_the_old_channels_in_the_middle() -> None:
    from anybit.models.resnet import Block

    block = Block(4, 8, 2, 2, "A")
    with torch.no_grad():
        for p in block.parameters():
            p.zero_()
        x = torch.rand(1, 4, 6, 6)
        y = block(x)
    assert torch.equal(y[:, 2:6], x[:, :, ::2, ::2])
    assert float(y[:, :2].sum() + y[:, 6:].sum()) == 0


def test_he_initialization_is_wider() -> None:
    torch.manual_seed(0)
    plain, he = resnet20(), resnet20(init="he")
    wide, narrow = (float(m.blocks[0].conv1.weight.detach().std()) for m in (he, plain))  # type: ignore[index, union-attr]
    assert wide > 1.5 * narrow
    first, hidden = (lenet5(init="he").get_submodule(name) for name in ("0", "7"))
    assert float(first.weight.detach().std()) == pytest.approx((2 / (20 * 25)) ** 0.5, rel=0.1)  # type: ignore[operator, union-attr]
    assert float(hidden.weight.detach().std()) == pytest.approx((2 / 500) ** 0.5, rel=0.1)  # type: ignore[operator, union-attr]


def test_xavier_initialization_reaches_the_last_layer() -> None:
    torch.manual_seed(0)
    model = lenet5(init="xavier")
    for name, inputs, outputs in (("0", 75, 500), ("3", 500, 1250), ("7", 1250, 500), ("9", 500, 10)):
        layer, bound = model.get_submodule(name), (6 / (inputs + outputs)) ** 0.5
        assert 0.95 * bound < float(layer.weight.detach().abs().max()) <= bound  # type: ignore[operator, union-attr]
        assert not layer.bias.detach().any()  # type: ignore[operator, union-attr]


def test_lenet_refuses_images_it_cannot_pool() -> None:
    with pytest.raises(ValueError, match="too small"):
        lenet5(1, 8)


def test_the_demos_network_is_nine_linear_layers_with_hes_weights() -> None:
    """8·(64·64 + 64) + 64·10 + 10 parameters; deviation √(2/64) where a ReLU follows."""
    torch.manual_seed(0)
    linears = [layer for layer in mlp() if isinstance(layer, nn.Linear)]  # type: ignore[attr-defined]
    assert len(linears) == 9
    assert sum(p.numel() for layer in linears for p in layer.parameters()) == 33_930
    spread = torch.stack([layer.weight.std() for layer in linears[:-1]]).mean().item()
    assert spread == pytest.approx((2 / 64) ** 0.5, rel=0.02)
