from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from anybit.federated.state import LogSteps, Trainable
from anybit.fleet.flower import RecordDict
from anybit.fleet.traffic import (
    SCALES,
    low_bit_layout,
    low_bit_weights,
    restored_weights,
    round_delta,
    rounded_layout,
    unrounded_delta,
)
from anybit.fleet.wire import Refused, layout, payload_bytes, read_tensors, to_record
from anybit.quant.calibrate import weight_table
from anybit.quant.grid import BITS, Grid, Width, limits, quantize
from anybit.quant.ranges import SPREAD
from anybit.quant.sites import SiteOptions, prepare

W = {"a.weight": torch.randn(40, 25, generator=torch.Generator().manual_seed(1)) / 100, "a.bias": torch.zeros(3)}
DELTA = Trainable(W, LogSteps({"a": torch.randn(7)}, {}))


def there_and_back(bits: int, key: int) -> dict[str, torch.Tensor]:
    content = RecordDict({"delta": to_record(round_delta(DELTA, bits, key))})
    return unrounded_delta(read_tensors(content, "delta", rounded_layout(DELTA, bits)), DELTA, bits).named()


@pytest.mark.parametrize("bits", [4, 8])
def test_the_mean_over_many_roundings_is_the_delta(bits: int) -> None:
    """Unbiased: the error of the mean falls as 1/√n, within five standard deviations of s/√(4n)."""
    count = 400
    mean = torch.stack([there_and_back(bits, key)["a.weight"] for key in range(count)]).mean(0)
    scale = float(W["a.weight"].abs().max()) / (2 ** (bits - 1) - 1)
    assert float((mean - W["a.weight"]).abs().max()) < 5 * scale / math.sqrt(4 * count)
    assert abs(float((mean - W["a.weight"]).mean())) < 5 * scale / math.sqrt(4 * count * W["a.weight"].numel())


@pytest.mark.parametrize("bits", [4, 8])
def test_one_rounding_is_off_by_less_than_a_step_and_repeats(bits: int) -> None:
    once = there_and_back(bits, 7)
    scale = float(W["a.weight"].abs().max()) / (2 ** (bits - 1) - 1)
    assert float((once["a.weight"] - W["a.weight"]).abs().max()) < scale * 1.001
    assert torch.equal(once["a.weight"], there_and_back(bits, 7)["a.weight"])
    assert not torch.equal(once["a.weight"], there_and_back(bits, 8)["a.weight"])
    assert torch.equal(once["a.bias"], torch.zeros(3))
    assert torch.equal(once["log_step/a"], DELTA.log_steps.weights["a"])


def test_bytes_fall_with_the_bits() -> None:
    whole = payload_bytes(RecordDict({"delta": to_record(DELTA.named())}))
    eight, four = (payload_bytes(RecordDict({"delta": to_record(round_delta(DELTA, bits, 1))})) for bits in (8, 4))
    assert whole > 4000 > eight > 1000 > four - 600


def test_codes_outside_their_range_are_refused() -> None:
    arrays = round_delta(DELTA, 4, 1)
    with pytest.raises(Refused, match="outside their range"):
        unrounded_delta({**arrays, "a.weight": torch.full_like(arrays["a.weight"], 255)}, DELTA, 4)
    with pytest.raises(Refused, match="outside their range"):
        unrounded_delta({**arrays, SCALES: -arrays[SCALES]}, DELTA, 4)
    with pytest.raises(Refused, match="not finite"):
        unrounded_delta({**arrays, SCALES: torch.full_like(arrays[SCALES], 3e38)}, DELTA, 4)


@pytest.mark.parametrize("options", [SiteOptions(), SiteOptions(per_channel=True), SiteOptions(first_last_bits=8),
                                     SiteOptions(weight_grid="narrow"), SiteOptions(weight_grid="centred")])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_the_model_arrives_as_it_is_quantized(mlp: nn.Module, options: SiteOptions, bits: int) -> None:
    w = {name: p.detach() for name, p in mlp.named_parameters()}
    prepared, width = prepare(mlp, options=options), Width(bits, 32)
    table = weight_table(prepared, w, "mse", options.per_channel, SPREAD)
    packed = low_bit_weights(prepared, w, table, width)
    content = RecordDict({"weights": to_record(packed)})
    arrays = read_tensors(content, "weights", low_bit_layout(prepared, layout(w), table, width))
    arrived = restored_weights(prepared, arrays, layout(w), table, width)
    own = options.first_last_bits or bits
    steps = table.steps["0.weight_quantizer"][BITS.index(own)]
    expected = quantize(w["0.weight"], Grid(steps, *limits(torch.tensor(own), options.weight_grid or "full")))
    torch.testing.assert_close(arrived["0.weight"], expected)
    assert torch.equal(arrived["0.bias"], w["0.bias"])
    assert packed["0.weight"].numel() == math.ceil(w["0.weight"].numel() * own / 8)
