"""Activation steps without server data: devices send what their sites saw, the server merges.

Extremes of extremes and sums of sums are those of all images together, so min-max, covering and LSQ steps come out as
on one machine; running ones average over the devices' batches. The MSE rule needs a second question: the merged range
fixes one grid of candidate steps, devices send their squared errors on it, and the candidate with the least sum wins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from anybit.fleet.checks import ANSWER, check_origin
from anybit.fleet.exchange import Reply
from anybit.fleet.wire import Layout, Refused, read_tensors, read_values
from anybit.quant.calibrate import SEEN, merge_seen
from anybit.tensors import Tensors


def check_seen(reply: Reply, round: int, sites: Sequence[str]) -> dict[str, Tensor]:
    """What a device's sites saw: calls, values and rows above 0, and a lowest value not above the highest."""
    seen = _checked(reply, round, "seen", {site: Layout(torch.float32, (SEEN,)) for site in sites})
    for site, (calls, low, high, total, values, rows, lows, highs) in ((n, s.tolist()) for n, s in seen.items()):
        if min(calls, values, rows) < 1 or low > high or total < 0 or lows > highs:
            raise Refused(f"seen '{site}': a range that cannot be")
    return seen


def check_errors(reply: Reply, round: int, candidates: Tensors) -> dict[str, Tensor]:
    """A device's squared errors on the shared candidates."""
    expected = {site: Layout(torch.float64, tuple(each.shape)) for site, each in candidates.items()}
    errors = _checked(reply, round, "errors", expected)
    for site, values in errors.items():
        if bool((values < 0).any()):
            raise Refused(f"errors '{site}': a negative square")
    return errors


def _checked(reply: Reply, round: int, record: str, expected: Mapping[str, Layout]) -> dict[str, Tensor]:
    if reply.content is None:
        raise Refused(reply.error)
    check_origin(read_values(reply.content, "answer", ANSWER), reply.client, round)
    return read_tensors(reply.content, record, expected)


def merged_seen(parts: Sequence[Tensors]) -> dict[str, Tensor]:
    return {site: merge_seen([part[site] for part in parts]) for site in parts[0]}


def merged_errors(parts: Sequence[Tensors]) -> dict[str, Tensor]:
    return {site: torch.stack([part[site] for part in parts]).sum(0) for site in parts[0]}
