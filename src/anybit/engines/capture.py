"""GPU programs: compiled client steps, and rounds and evaluations replayed without Python."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree


class Compiled:
    """A function of tensors, compiled once per shape of its arguments.

    Traced to plain operations first, as the compiler does not see through vmap of a gradient of custom operators.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.compiled: dict[Any, Callable[..., Any]] = {}

    def __call__(self, *arguments: Any) -> Any:
        key = tuple((t.shape, t.dtype) for t in pytree.tree_leaves(arguments))
        if key not in self.compiled:
            self.compiled[key] = torch.compile(make_fx(self.function)(*arguments), fullgraph=True)
        return self.compiled[key](*arguments)


class Captured:
    """A round (state, inputs) → (state, losses) as a CUDA graph per shape of its inputs, which may lie on the host.

    The state lives in fixed buffers: the next call overwrites the state that a call returns.
    """

    def __init__(self, round: Callable[[Any, Any], tuple[Any, Tensor]]) -> None:
        self.round = round
        self.state: Any = None
        self.programs: dict[Any, tuple[torch.cuda.CUDAGraph, list[Tensor], Tensor]] = {}
        self.pool: Any = None

    def __call__(self, state: Any, inputs: Any) -> tuple[Any, Tensor]:
        if self.state is None:
            self.state = pytree.tree_map(torch.clone, state)
        elif state is not self.state:
            torch._foreach_copy_(pytree.tree_leaves(self.state), pytree.tree_leaves(state))
        leaves, spec = pytree.tree_flatten(inputs)
        key = tuple((t.shape, t.dtype) for t in leaves)
        if key not in self.programs:
            device = pytree.tree_leaves(self.state)[0].device
            self.programs[key] = self._capture([t.to(device, copy=True) for t in leaves], spec)
        graph, fixed, losses = self.programs[key]
        torch._foreach_copy_(fixed, leaves)
        graph.replay()
        return self.state, losses

    def _capture(self, fixed: list[Tensor], spec: Any) -> tuple[torch.cuda.CUDAGraph, list[Tensor], Tensor]:
        _run_aside(self.round, self.state, pytree.tree_unflatten(fixed, spec))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            state, losses = self.round(self.state, pytree.tree_unflatten(fixed, spec))
            kept, before = pytree.tree_flatten(self.state)
            new, after = pytree.tree_flatten(state)
            assert before == after, "a round returns its state in the order in which it took it"
            torch._foreach_copy_(kept, new)
        self.pool = graph.pool()
        return graph, fixed, losses


class Replayed:
    """A function of tensors as a CUDA graph per shape of its arguments; it returns copies.

    All graphs share their memory, as nothing in it is needed after a call.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.programs: dict[Any, tuple[torch.cuda.CUDAGraph, list[Tensor], Any]] = {}

    def __call__(self, *arguments: Any) -> Any:
        leaves, spec = pytree.tree_flatten(arguments)
        key = (spec, *((t.shape, t.dtype) for t in leaves))
        if key not in self.programs:
            self.programs[key] = self._capture([t.clone() for t in leaves], spec)
        graph, fixed, result = self.programs[key]
        torch._foreach_copy_(fixed, leaves)
        graph.replay()
        return pytree.tree_map(torch.clone, result)

    def _capture(self, fixed: list[Tensor], spec: Any) -> tuple[torch.cuda.CUDAGraph, list[Tensor], Any]:
        arguments = pytree.tree_unflatten(fixed, spec)
        _run_aside(self.function, *arguments)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=_keeper(fixed[0].device).pool()):
            result = self.function(*arguments)
        return graph, fixed, result


@functools.cache
def _keeper(device: torch.device) -> torch.cuda.CUDAGraph:
    """Return the graph whose memory others share: a memory pool exists only as long as a graph lives in it."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.zeros(1, device=device)
    return graph


def _run_aside(function: Callable[..., Any], *arguments: Any) -> None:
    """Run a function once before it is recorded, so that everything is compiled and allocated."""
    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        function(*arguments)
    torch.cuda.current_stream().wait_stream(aside)
