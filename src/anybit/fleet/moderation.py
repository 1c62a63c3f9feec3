"""No device dominates a round: long deltas are shortened to what is usual, and so are claims of many examples.

With the plain mean, a device's part in Δ_t is in proportion to the norm of its delta and, where examples weigh, to their
number, and both are what it says. What is usual is said by the median, which a minority does not move far.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from anybit.config import Config
from anybit.fleet.checks import Update, delta_norm, shortened

FACTOR = 2.0
"""The adaptive bound, in medians of recent norms."""
ROUNDS = 5
"""The rounds whose norms are recent, this one included."""


def lower_median(values: Sequence[float]) -> float:
    """Return the middle of sorted values, of an even number the lower one: of two, a huge one decides nothing."""
    return sorted(values)[(len(values) - 1) // 2]


@dataclass
class Moderation:
    """The bounds of a run's rounds."""

    config: Config
    norms: dict[int, list[float]] = field(default_factory=dict)
    """The norms that counted, at most as long as their bound, by round."""

    def restore(self, log: Sequence[Mapping[str, Any]], done: int) -> None:
        """Read the norms of the first `done` rounds from a run's fleet.jsonl; of a round that was repeated, the last."""
        for entry in log:
            if entry["event"] == "round" and done - ROUNDS < entry["round"] <= done:
                self.norms[entry["round"] - 1] = [device["norm"] for device in entry["devices"] if "norm" in device]

    def __call__(self, round: int, updates: Sequence[Update]) -> tuple[list[Update], dict[int, str]]:
        """Return the updates that count, moderated, and {client: reason} of those that do not."""
        good, rejected = self._by_norm(round, updates)
        if self.config.weighting == "examples" and good:
            most = max(1, int(self.config.fleet.examples_bound * lower_median([update.examples for update in good])))
            good = [replace(update, examples=min(update.examples, most)) for update in good]
        return good, rejected

    def _by_norm(self, round: int, updates: Sequence[Update]) -> tuple[list[Update], dict[int, str]]:
        """Clip or reject what is longer than FACTOR · the median of the last rounds' norms and this round's.

        A delta of zeros says nothing of what is usual: where half of a cohort sends one, the others go on.
        """
        options = self.config.fleet
        # A bound that follows the cohort would tell of one device in what is taken from another.
        if options.norm_bound not in (None, "adaptive") or self.config.privacy.private or not updates:
            return list(updates), {}
        norms = {update.client: delta_norm(update.delta) for update in updates}
        recent = [norm for past in range(round - ROUNDS + 1, round) for norm in self.norms.get(past, [])]
        said = [norm for norm in (*recent, *norms.values()) if norm > 0]
        bound = FACTOR * lower_median(said) if said else 0.0
        over = {client for client, norm in norms.items() if norm > bound}
        self.norms = {past: kept for past, kept in self.norms.items() if past > round - ROUNDS}
        if options.norm_rule == "reject":
            self.norms[round] = [norm for client, norm in norms.items() if client not in over]
            return ([update for update in updates if update.client not in over],
                    {client: f"the delta's norm is {norms[client]:.4g}, above {bound:.4g}" for client in sorted(over)})
        self.norms[round] = [min(norm, bound) for norm in norms.values()]
        return [shortened(u, norms[u.client], bound) if u.client in over else u for u in updates], {}


def bucket(count: int) -> int:
    """Return the power of two at or above a count: what the log keeps of it."""
    return 1 << max(0, count - 1).bit_length()
