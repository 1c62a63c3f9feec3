"""Devices that fail again and again are left alone for some rounds, each time for longer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SPANS = (2, 4, 8, 16, 32, 64)
"""The rounds of the first, second, … quarantine in a row; the last one repeats."""


@dataclass
class Quarantine:
    """The failures of every node since its last good answer, and the rounds in which it is not asked."""

    limit: int
    """Failures in a row that lead to the first quarantine; after it, one is enough."""
    failures: dict[int, int] = field(default_factory=dict)
    until: dict[int, int] = field(default_factory=dict)
    """The first round (from 0) in which a node is asked again, by node."""

    def succeeded(self, node: int) -> None:
        """Forget a node's failures."""
        self.failures.pop(node, None)
        self.until.pop(node, None)

    def failed(self, node: int, round: int) -> int | None:
        """Count a failure in a round; return the first round in which the node is asked again, or none if it may go on."""
        self.failures[node] = self.failures.get(node, 0) + 1
        before = self.failures[node] - self.limit
        if before < 0:
            return None
        self.until[node] = round + 1 + SPANS[min(before, len(SPANS) - 1)]
        return self.until[node]

    def restore(self, log: Sequence[Mapping[str, Any]]) -> None:
        """Count the failures in a run's fleet.jsonl, so that a resume forgets none."""
        for entry in log:
            if entry["event"] == "round":
                for client, node in zip(entry["asked"], entry.get("nodes", []), strict=False):
                    if str(client) in entry["rejected"] or client in entry["missing"]:
                        self.failed(node, entry["round"] - 1)
                    else:
                        self.succeeded(node)

    def holds(self, node: int, round: int) -> bool:
        """Say whether a node is not to be asked in a round."""
        return round < self.until.get(node, 0)
