"""Activation step sizes without server data: devices send statistics of their sites, the server merges them.

Extremes of extremes and sums of sums are those of all images together, so min-max, covering and LSQ step sizes come out
as on one machine; running ones average over the devices' batches. The MSE rule needs a second question: the merged range
fixes one grid of candidates, devices send their squared errors on it, and the candidate with the least sum wins.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from anybit.fleet.checks import ANSWER, read_answer
from anybit.fleet.exchange import Reply
from anybit.fleet.wire import Layout, Refused, read_tensors
from anybit.quant.calibrate import SEEN, merge_seen
from anybit.tensors import Tensors


def check_seen(reply: Reply, round: int, sites: Sequence[str]) -> dict[str, Tensor]:
    """Read the statistics of a device's sites: counts above 0, and no lowest value above the highest."""
    content, _ = read_answer(reply, round, ANSWER)
    seen = read_tensors(content, "seen", {site: Layout(torch.float32, (SEEN,)) for site in sites})
    for site, statistics in seen.items():
        calls, low, high, total, values, rows, lows, highs = statistics.tolist()
        if min(calls, values, rows) < 1 or low > high or total < 0 or lows > highs:
            raise Refused(f"seen '{site}': a range that cannot be")
    return seen


def check_errors(reply: Reply, round: int, candidates: Tensors) -> dict[str, Tensor]:
    """Read a device's squared errors on the shared candidates."""
    content, _ = read_answer(reply, round, ANSWER)
    expected = {site: Layout(torch.float64, tuple(steps.shape)) for site, steps in candidates.items()}
    errors = read_tensors(content, "errors", expected)
    for site, values in errors.items():
        if bool((values < 0).any()):
            raise Refused(f"errors '{site}': a negative square")
    return errors


def merged_seen(parts: Sequence[Tensors]) -> dict[str, Tensor]:
    return {site: merge_seen([part[site] for part in parts]) for site in parts[0]}


def merged_errors(parts: Sequence[Tensors]) -> dict[str, Tensor]:
    return {site: torch.stack([part[site] for part in parts]).sum(0) for site in parts[0]}
