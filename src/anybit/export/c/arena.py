"""The static arena: which tensors are alive together, and where each lies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from anybit.export.c.program import INPUT, Step, Value

FLOAT_BYTES = 4
OUTPUT = "output"


class Lifetime(NamedTuple):
    """Floats that are needed from one step to another, both included."""

    first: int
    last: int
    size: int


@dataclass(frozen=True)
class Arena:
    """Where every buffer lies: a place in the arena, in floats, or `input` and `output` of the caller."""

    size: int
    places: Mapping[str, int]
    scratch: Mapping[int, int]
    """{number of a step: the place of its scratch}."""
    roots: Mapping[str, str]
    """{buffer: the one whose memory it has}."""
    alive: Sequence[int]
    """Floats that each step needs: its own and those that wait for later ones."""

    def pointer(self, value: Value) -> str:
        """Write the address of a tensor in C."""
        name = value.buffer if value.constant else self.roots[value.buffer]
        return name if value.constant or name in (INPUT, OUTPUT) else f"arena + {self.places[name]}"


def plan(steps: Sequence[Step], output: Value) -> Arena:
    """Find out who may share memory: steps in place first, then every buffer at the lowest free place, large ones first."""
    roots = _roots(steps, output)
    lifetimes: dict[str, Lifetime] = {}
    for i, step in enumerate(steps):
        for value in (*step.reads, step.writes):
            name = "" if value.constant else roots[value.buffer]
            if name and name not in (INPUT, OUTPUT):
                known = lifetimes.get(name, Lifetime(i, i, value.size))
                lifetimes[name] = known._replace(last=i, size=max(known.size, value.size))
    alone = {f"scratch {i}": Lifetime(i, i, -(-step.scratch // FLOAT_BYTES)) for i, step in enumerate(steps) if step.scratch}
    places = _placed({**lifetimes, **alone})
    size = max((places[name] + life.size for name, life in {**lifetimes, **alone}.items()), default=0)
    alive = [sum(life.size for life in (*lifetimes.values(), *alone.values()) if life.first <= i <= life.last)
             for i in range(len(steps))]
    return Arena(size, places, {i: places[f"scratch {i}"] for i, step in enumerate(steps) if step.scratch}, roots, alive)


def _roots(steps: Sequence[Step], output: Value) -> dict[str, str]:
    """Return {buffer: the one whose memory it takes over, because a step in place is its last reader, or itself}."""
    last = {value.buffer: i for i, step in enumerate(steps) for value in step.reads}
    last[output.buffer] = len(steps)
    roots = {INPUT: INPUT}
    for i, step in enumerate(steps):
        dying = [v.buffer for v in step.reads if not v.constant and v.buffer != INPUT and last[v.buffer] == i
                 and v.size == step.writes.size]
        if step.writes.buffer not in roots:
            roots[step.writes.buffer] = roots[dying[0]] if step.in_place and dying else step.writes.buffer
    final = roots[output.buffer]
    return {name: OUTPUT if root == final else root for name, root in roots.items()}


def _placed(lifetimes: Mapping[str, Lifetime]) -> dict[str, int]:
    places: dict[str, int] = {}
    for name, life in sorted(lifetimes.items(), key=lambda item: (-item[1].size, item[1].first, item[0])):
        beside = ((places[other], places[other] + lifetimes[other].size) for other in places
                  if lifetimes[other].first <= life.last and life.first <= lifetimes[other].last)
        places[name] = _lowest(life.size, beside)
    return places


def _lowest(size: int, taken: Iterable[tuple[int, int]]) -> int:
    """Return the lowest place of `size` that overlaps nothing taken.

    >>> _lowest(2, [(0, 1), (2, 4)]), _lowest(1, [(0, 1), (2, 4)])
    (4, 1)
    """
    place = 0
    for start, end in sorted(taken):
        if place + size <= start:
            break
        place = max(place, end)
    return place
