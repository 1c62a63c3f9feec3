"""Activation step sizes without server data: devices send statistics of their sites, the server merges them.

Extremes of extremes and sums of sums are those of all images together, so min-max, covering and LSQ step sizes come out
as on one machine; running ones average over the devices' batches. The MSE rule needs a second question: the merged range
fixes one grid of candidates, devices send their squared errors on it, and the candidate with the least sum wins.

Among three devices or more, the median bounds what a minority can do: a range or mean that lies further from the median
than devices usually do, and a weight or error beyond `FACTOR` times the usual, is cut down before it is merged, and nothing
else is changed. At 2 bits a range that is merely tripled has no level left for most values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from anybit.federated.robust import median
from anybit.fleet.checks import ANSWER, read_answer
from anybit.fleet.exchange import Reply
from anybit.fleet.wire import LARGEST, Layout, Refused, read_tensors
from anybit.quant.calibrate import SEEN, merge_seen
from anybit.tensors import Tensors

FACTOR = 3
"""How many times the devices' median a device's weight, values per image or squared error can be."""
DEVIATIONS = 3
"""How many median deviations a device's extremes and means can lie from the devices' median, …"""
SLACK = 0.1
"""… and this share of the usual range more: where devices are alike, a small difference is no lie."""


def check_seen(reply: Reply, round: int, sites: Sequence[str]) -> dict[str, Tensor]:
    """Read the statistics of a device's sites: counts above 0, and no lowest value above the highest."""
    expected = {site: Layout(torch.float32, (SEEN,)) for site in sites}
    content, _ = read_answer(reply, round, ANSWER, {"seen": expected})
    seen = read_tensors(content, "seen", expected)
    for site, statistics in seen.items():
        calls, low, high, total, values, rows, lows, highs = statistics.tolist()
        if min(calls, values, rows) < 1 or calls > rows or low > high or total < 0 or lows > highs:
            raise Refused(f"seen '{site}': a range that cannot be")
        if (largest := float(statistics.abs().max())) > LARGEST:
            raise Refused(f"seen '{site}': {largest:.4g}, above {LARGEST:.4g}")
    return seen


class Errors(NamedTuple):
    """A device's squared errors of every site on the shared candidates."""

    images: int
    by_site: dict[str, Tensor]


def check_errors(reply: Reply, round: int, candidates: Tensors, images: int) -> Errors:
    """Read a device's squared errors on as many examples as it has of the `images` that it was asked for."""
    expected = {site: Layout(torch.float64, tuple(steps.shape)) for site, steps in candidates.items()}
    content, answer = read_answer(reply, round, ANSWER, {"errors": expected})
    errors = read_tensors(content, "errors", expected)
    for site, values in errors.items():
        if bool((values < 0).any()):
            raise Refused(f"errors '{site}': a negative square")
        if (largest := float(values.max())) > LARGEST**2:
            raise Refused(f"errors '{site}': {largest:.4g}, above {LARGEST**2:.4g}")
    return Errors(max(1, min(images, answer["examples"])), errors)


def merged_seen(parts: Sequence[Tensors], images: int) -> dict[str, Tensor]:
    """Merge the statistics of every site of devices that were asked for so many images each."""
    return {site: merge_seen(list(_moderate(torch.stack([part[site] for part in parts]), images))) for site in parts[0]}


def merged_errors(parts: Sequence[Errors]) -> dict[str, Tensor]:
    """Add up the devices' squared errors of every site; none is above `FACTOR` times the median, per image."""
    merged = {}
    for site in parts[0].by_site:
        errors = torch.stack([part.by_site[site] for part in parts])
        if len(parts) > 2:
            images = torch.tensor([part.images for part in parts]).reshape(-1, *[1] * (errors.dim() - 1))
            errors = errors.minimum(FACTOR * median(errors / images) * images)
        merged[site] = errors.sum(0)
    return merged


def _moderate(seen: Tensor, images: int) -> Tensor:
    """Return (device, statistics) of one site with immoderate rows made moderate, all others as they are."""
    if len(seen) < 3:
        return seen
    calls, low, high, total, values, rows, lows, highs = seen.double().unbind(1)
    slack = SLACK * median(high - low)
    # A layer that is called several times sees every image as often.
    weight = rows.minimum(FACTOR * median(rows).clamp_min(images)) / rows
    features = (values / rows).clamp(median(values / rows) / FACTOR, median(values / rows) * FACTOR)
    some, count = rows * weight * features, calls * weight
    moderate = torch.stack([count, _usual(low, slack), _usual(high, slack), some * _usual(total / values, slack), some,
                            rows * weight, count * _usual(lows / calls, slack), count * _usual(highs / calls, slack)], 1)
    # Only what is cut differs by more than rounding: other statistics keep their bytes.
    changed = ((moderate - seen).abs() > 1e-5 * seen.abs()).any(1, keepdim=True)
    return torch.where(changed, moderate.to(seen.dtype), seen)


def _usual(values: Tensor, slack: Tensor) -> Tensor:
    """Clip the devices' values x to m ± (DEVIATIONS · median |x − m| + slack), m their median.

    Less than half of the devices move neither median beyond what honest ones say.
    """
    middle = median(values)
    reach = DEVIATIONS * median((values - middle).abs()) + slack
    return values.clamp(middle - reach, middle + reach)
