"""Parts of a training that may be functions of the user's own: named 'module:function', or passed as Python objects."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from anybit.errors import ConfigError, did_you_mean, printable
from anybit.tensors import Tensors

OBJECT = "<python object>"
"""Name of whatever was passed as an object."""

Sampler = Callable[[int, int, int, int], Sequence[int]]
"""(seed, round, number of clients, size of the cohort) → the numbers of that many different clients.

`round` counts the rounds before. Draws keyed by seed and round make a resumed run equal an uninterrupted one."""

Course = Callable[[int, int], float]
"""(rounds before, rounds in all) → the factor of the server's learning rate in a round."""


def check_name(setting: str, name: str | None, known: Collection[str]) -> None:
    """Raise unless `name` is one of anybit's, 'module:function', an object's, or left open."""
    if name is not None and name not in (*known, OBJECT) and ":" not in name:
        raise ConfigError(f"{setting} = '{name}': must be one of {', '.join(known)}, or 'module:function' "
                          f"({did_you_mean(name, known)})")


def not_at_hand(setting: str, name: str) -> ConfigError:
    """Return the error of a training that lacks a part which was passed as an object."""
    return ConfigError(f"{setting} = '{name}': is not at hand here; pass it as it was passed before")


def sampled(sampler: Sampler, seed: int, round: int, clients: int, size: int) -> tuple[int, ...]:
    """Draw S_t by a sampler of the user's own, and check it."""
    given = sampler(seed, round, clients, size)
    try:
        drawn = tuple(operator.index(client) for client in given)
    except TypeError:
        drawn = ()
    if len({*drawn}) != size or len(drawn) != size or not all(0 <= client < clients for client in drawn):
        shown = list(drawn) or printable(repr(given))[:80]
        raise ConfigError(f"the sampler gave the clients {shown} in round {round + 1}: it must give {size} different whole "
                          f"numbers from 0 to {clients - 1}")
    return drawn


def factor(course: Course, round: int, rounds: int) -> float:
    """Return the factor by a schedule of the user's own, and check it."""
    given = course(round, rounds)
    value = float(given) if hasattr(given, "__float__") else math.nan
    if not 0 <= value < math.inf:
        raise ConfigError(f"the schedule gave {given!r} in round {round + 1} of {rounds}: it must give a number, 0 or above")
    return value


def check_optimizer(server: Any, w: Tensors) -> None:
    """Raise unless a server optimizer of the user's own keeps the form of its state and of w; try it with Δ = 0."""
    state = server.init(w)
    if bad := [leaf for leaf in pytree.tree_leaves(state) if not isinstance(leaf, torch.Tensor)]:
        raise ConfigError(f"the server optimizer's state holds {bad[0]!r}: a state is made of tensors, in dicts and tuples; "
                          "use torch.tensor(…)")
    delta = {name: torch.zeros_like(p) for name, p in w.items()}
    result = server.step(state, w, delta, torch.zeros((), dtype=torch.float64, device=next(iter(w.values())).device))
    if not isinstance(result, tuple) or len(result) != 2:
        raise ConfigError("the server optimizer's step must return (state, w)")
    for what, before, after in zip(("state", "w"), (state, dict(w)), result, strict=True):
        if _form(before) != _form(after):
            raise ConfigError(f"the server optimizer's step returns a {what} of another form than it was given: names, "
                              "order, shapes and types must stay")


def _form(tree: Any) -> Any:
    leaves, form = pytree.tree_flatten(tree)
    return form, [(leaf.shape, leaf.dtype) if isinstance(leaf, torch.Tensor) else type(leaf) for leaf in leaves]
