"""Which tiles the kernels should have on a GPU: every candidate at the layers of ResNet-20, the fastest first.

    python benchmarks/gpu_tiles.py --precision tf32 --clients 50

The tiles in use were chosen by this on an H200. Candidates are compiled in processes side by side first; then one process
times them one after another.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import torch
import triton

from anybit.kernels import convolution, norm

IMAGES = 64
LAYERS = [(16, 16, 32), (32, 32, 16), (64, 64, 8), (3, 16, 32)]
"""(channels in, out, side); 3×3, stride 1."""


class Candidate(NamedTuple):
    """A kernel at a layer with its tiles."""

    kernel: str
    layer: tuple[int, int, int]
    pixels: int
    together: int
    warps: int
    programs: int


def _tile(size: int) -> int:
    return max(16, int(triton.next_power_of_2(size)))


def candidates() -> Iterator[Candidate]:
    for layer in LAYERS:
        inner = layer[0]
        for pixels, together, warps in itertools.product((32, 64, 128, 256), (16, 32, 64, 128), (2, 4, 8)):
            if together <= _tile(9 * inner) and pixels >= 64:
                yield Candidate("convolve", layer, pixels, together, warps, 0)
            if 64 <= together <= max(64, _tile(3 * inner)) and pixels <= 128 and warps >= 4:
                for programs in (528, 1056):
                    yield Candidate("weight_grad", layer, pixels, together, warps, programs)
        if inner >= 16:
            for kernel, warps in itertools.product(("norm", "norm_grad"), (2, 4, 8, 16)):
                yield Candidate(kernel, layer, 0, 0, warps, 0)


class Bench:
    """The tensors of all layers, and launches on them."""

    def __init__(self, clients: int, dtype: torch.dtype) -> None:
        self.clients, self.dtype = clients, dtype
        self.tensors: dict[Any, dict[str, torch.Tensor]] = {}

    def of(self, layer: tuple[int, int, int]) -> dict[str, torch.Tensor]:
        if layer not in self.tensors:
            inner, outer, side = layer

            def draw(*shape: int, dtype: torch.dtype = self.dtype) -> torch.Tensor:
                return torch.randn(self.clients, *shape, device="cuda", dtype=dtype)
            maps = {name: draw(IMAGES, side, side, outer) for name in ("y", "dy", "dx", "dshortcut")}
            self.tensors[layer] = {
                "x": draw(IMAGES, side, side, inner), "w": draw(3, 3, inner, outer), **maps,
                **{name: draw(outer, dtype=torch.float32) for name in ("gamma", "beta")},
                **{name: draw(IMAGES, 2, outer, dtype=torch.float32) for name in ("moments", "sums")}}
        return self.tensors[layer]

    def launch(self, c: Candidate) -> Callable[[], Any]:
        inner, outer, side = c.layer
        t, pixels, tile_o = self.of(c.layer), IMAGES * side * side, min(64, _tile(outer))
        sides = (side,) * 4
        shape = {"I": inner, "O": outer, "K": 3, "STRIDE": 1, "PAD": 1, "BM": c.pixels, "BJ": c.together, "BO": tile_o}
        if c.kernel == "convolve":
            grid = (triton.cdiv(pixels, c.pixels), triton.cdiv(outer, tile_o), self.clients)
            return lambda: convolution._convolve_kernel[grid](t["x"], t["w"], t["y"], pixels, *sides, num_warps=c.warps,
                                                              **shape)
        if c.kernel == "weight_grad":
            blocks, per = triton.cdiv(pixels, c.pixels), 3 * triton.cdiv(3 * inner, c.together) * triton.cdiv(outer, tile_o)
            steps = triton.cdiv(blocks, max(1, min(blocks, c.programs // (per * self.clients))))
            parts = triton.cdiv(blocks, steps)
            out = torch.empty(self.clients, parts, 3, 3, inner, outer, device="cuda")
            split = self.dtype == torch.float32
            return lambda: (convolution._weight_grad_kernel[parts, per, self.clients](
                t["x"], t["dy"], out, pixels, *sides, STEPS=steps, SPLIT=split, num_warps=c.warps, **shape), out.sum(1))
        sizes = {"IMAGES": IMAGES, "C": outer, "BP": side * side, "BC": _tile(outer), "GROUPS": 2, "HAS_SHORTCUT": True}
        images = (self.clients * IMAGES,)
        if c.kernel == "norm":
            return lambda: norm._forward_kernel[images](t["y"], t["dy"], t["gamma"], t["beta"], t["dx"], t["moments"],
                                                        side * side, 1e-5, num_warps=c.warps, **sizes)
        return lambda: norm._backward_kernel[images](t["dy"], t["y"], t["y"], t["moments"], t["gamma"], t["dx"],
                                                     t["dshortcut"], t["sums"], side * side, num_warps=c.warps, **sizes)


def microseconds(launch: Callable[[], Any]) -> float:
    """The best of a few, after two to warm up."""
    for _ in range(2):
        launch()
    times: list[float] = []
    for _ in range(5):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        before.record()
        for _ in range(4):
            launch()
        after.record()
        after.synchronize()
        times.append(before.elapsed_time(after) * 250)
    return min(times)


def compile_all(given: tuple[list[Candidate], int, torch.dtype]) -> None:
    every, clients, dtype = given
    bench = Bench(clients, dtype)
    for one in every:
        try:
            bench.launch(one)()
            torch.cuda.synchronize()
        except Exception as error:  # tiles that do not fit are no candidates
            print(f"{one}: {str(error)[:100]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--precision", choices=("tf32", "bf16"), default="bf16")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--top", type=int, default=4)
    given = parser.parse_args()
    dtype = torch.bfloat16 if given.precision == "bf16" else torch.float32
    every, workers = list(candidates()), max(1, (os.cpu_count() or 2) - 1)
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(compile_all, [(every[i::workers], given.clients, dtype) for i in range(workers)]))
    bench, found = Bench(given.clients, dtype), dict[tuple[str, Any], list[tuple[float, Candidate]]]()
    for one in every:
        try:
            found.setdefault((one.kernel, one.layer), []).append((microseconds(bench.launch(one)), one))
        except Exception:  # said by compile_all
            continue
    for (kernel, layer), rows in found.items():
        print(f"{kernel} {layer}")
        for us, c in sorted(rows)[:given.top]:
            print(f"  {us:7.1f} µs  pixels {c.pixels}, together {c.together}, warps {c.warps}, programs {c.programs}")


if __name__ == "__main__":
    main()
