"""Which tiles the kernels should have on a GPU: every candidate at the layers of ResNet-20 and LeNet-5, the fastest first.

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

from anybit.kernels import convolution, norm, tiles

IMAGES = 64
LAYERS = [(16, 16, 32, 3, 1), (32, 32, 16, 3, 1), (64, 64, 8, 3, 1), (3, 16, 32, 3, 1), (3, 20, 32, 5, 0),
          (20, 50, 14, 5, 0), (50, 20, 10, 5, 4)]
"""(channels in, out, side, kernel, padding): convolutions of ResNet-20 and LeNet-5, and a gradient of LeNet-5's."""
KERNELS = ("convolve", "weight_grad", "norm", "norm_grad")


class Candidate(NamedTuple):
    """A kernel at a layer with its tiles."""

    kernel: str
    layer: tuple[int, int, int, int, int]
    pixels: int
    together: int
    warps: int
    rows: int = 0
    stages: int = 0
    registers: int | None = None
    shortcut: bool = True


def _tile(size: int) -> int:
    return max(16, int(triton.next_power_of_2(size)))


def candidates() -> Iterator[Candidate]:
    for layer in LAYERS:
        inner, outer, _, kernel, _ = layer
        one_tap = {_tile(min(inner, 64)), 32} if inner >= convolution.MANY else {_tile(kernel * kernel * inner)}
        for (pixels, warps), together in itertools.product(((64, 4), (128, 4), (128, 8), (256, 8)), one_tap):
            yield Candidate("convolve", layer, pixels, together, warps)
        for pixels, rows, stages in itertools.product((32, 64, 128), (1, kernel), (1, 2, 3)):
            together = min(64, _tile(kernel * inner))
            if rows * together * min(64, _tile(outer)) <= 3 * 64 * 64:
                yield Candidate("weight_grad", layer, pixels, together, 4, rows, stages)
        if kernel == 3 and inner >= convolution.MANY:
            for name, warps, registers, shortcut in itertools.product(("norm", "norm_grad"), (2, 4, 8, 16), (None, 64, 128),
                                                                      (False, True)):
                yield Candidate(name, layer, 0, 0, warps, registers=registers, shortcut=shortcut)


class Bench:
    """The tensors of all layers, and launches on them."""

    def __init__(self, clients: int, dtype: torch.dtype) -> None:
        self.clients, self.dtype = clients, dtype
        self.tensors: dict[Any, dict[str, torch.Tensor]] = {}

    def of(self, layer: tuple[int, int, int, int, int]) -> dict[str, torch.Tensor]:
        if layer not in self.tensors:
            inner, outer, side, kernel, padding = layer
            after = side + 2 * padding - kernel + 1

            def draw(*shape: int, dtype: torch.dtype = self.dtype) -> torch.Tensor:
                return torch.randn(self.clients, *shape, device="cuda", dtype=dtype)
            maps = {name: draw(IMAGES, after, after, outer) for name in ("y", "dy", "dx", "dshortcut")}
            self.tensors[layer] = {
                "x": draw(IMAGES, side, side, inner), "w": draw(outer, kernel, kernel, inner), **maps,
                **{name: draw(outer, dtype=torch.float32) for name in ("gamma", "beta")},
                **{name: draw(IMAGES, 2, outer, dtype=torch.float32) for name in ("moments", "sums")}}
        return self.tensors[layer]

    def launch(self, c: Candidate) -> Callable[[], Any]:
        inner, outer, side, kernel, padding = c.layer
        after = side + 2 * padding - kernel + 1
        t, pixels, tile_o = self.of(c.layer), IMAGES * after * after, min(64, _tile(outer))
        shape = {"H": side, "W": side, "OH": after, "OW": after, "I": inner, "O": outer, "K": kernel, "STRIDE": 1,
                 "PAD": padding, "BM": c.pixels, "BJ": c.together, "BO": tile_o}
        if c.kernel == "convolve":
            grid = (triton.cdiv(pixels, c.pixels), triton.cdiv(outer, tile_o), self.clients)
            return lambda: convolution._convolve_kernel[grid](t["x"], t["w"], t["y"], pixels, MANY=convolution.MANY,
                                                              num_warps=c.warps, **shape)
        if c.kernel == "weight_grad":
            blocks = triton.cdiv(pixels, c.pixels)
            per = kernel // c.rows * triton.cdiv(kernel * inner, c.together) * triton.cdiv(outer, tile_o)
            steps = triton.cdiv(blocks, max(1, min(blocks, tiles.PROGRAMS // (per * self.clients))))
            parts = triton.cdiv(blocks, steps)
            out = torch.empty(self.clients, parts, kernel, kernel, inner, outer, device="cuda")
            split = self.dtype == torch.float32
            return lambda: (convolution._weight_grad_kernel[parts, per, self.clients](
                t["x"], t["dy"], out, pixels, SPLIT=split, STEPS=steps, ROWS=c.rows, STAGES=c.stages, num_warps=c.warps,
                **shape), out.sum(1))
        sizes = {"IMAGES": IMAGES, "P": side * side, "C": outer, "BP": side * side, "BC": _tile(outer), "GROUPS": 2,
                 "HAS_SHORTCUT": c.shortcut, "num_warps": c.warps, "maxnreg": c.registers}
        images = (self.clients * IMAGES,)
        if c.kernel == "norm":
            return lambda: norm._forward_kernel[images](t["y"], t["dy"], t["gamma"], t["beta"], t["dx"], t["moments"], 1e-5,
                                                        **sizes)
        return lambda: norm._backward_kernel[images](t["dy"], t["y"], t["y"], t["moments"], t["gamma"], t["beta"], t["dx"],
                                                     t["dshortcut"], t["sums"], **sizes)


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
    parser.add_argument("--kernels", nargs="+", choices=KERNELS, default=KERNELS)
    given = parser.parse_args()
    dtype = torch.bfloat16 if given.precision == "bf16" else torch.float32
    every, workers = [c for c in candidates() if c.kernel in given.kernels], max(1, (os.cpu_count() or 2) - 1)
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(compile_all, [(every[i::workers], given.clients, dtype) for i in range(workers)]))
    bench, found = Bench(given.clients, dtype), dict[tuple[str, Any, bool], list[tuple[float, Candidate]]]()
    for one in every:
        try:
            found.setdefault((one.kernel, one.layer, one.shortcut), []).append((microseconds(bench.launch(one)), one))
        except Exception:  # said by compile_all
            continue
    for (kernel, layer, shortcut), rows in found.items():
        print(f"{kernel} {layer}" + ("" if shortcut else " without a shortcut"))
        for us, c in sorted(rows)[:given.top]:
            print(f"  {us:7.1f} µs  pixels {c.pixels}, together {c.together}, warps {c.warps}, rows {c.rows}, "
                  f"stages {c.stages}, registers {c.registers}")


if __name__ == "__main__":
    main()
