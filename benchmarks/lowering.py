"""What it costs that a compiler before torch 2.13 spells out, for a message not shown, what led to an operator of ours.

    python benchmarks/lowering.py results/performance/lowering.json

Compiles a client step of ResNet-20 with the GPU's operators, for a CPU and with empty caches, three times: as this torch
does it; with messages spelled out at once, as torch 2.11 and 2.12 do (pytorch/pytorch#185937); and so, but after the
operators were announced. Triton must be installed; its interpreter stands in for the GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

import torch

from anybit.environment import environment
from anybit.kernels import use_kernels
from anybit.models import resnet20
from anybit.quant.sites import prepare

CASES = {"as torch does": "lazy", "spelled out at once": "eager", "spelled out at once, announced": "eager announced"}


def compile_once(how: str) -> dict[str, float]:
    """Compile the step in this process and return the seconds of the compiler's lowering and of everything."""
    from torch._inductor import graph

    from anybit.engines.capture import Compiled
    from anybit.kernels import convolution, norm, operators  # noqa: F401 (which register the operators)

    if "eager" in how:
        graph.LazyString = lambda function, *arguments: function(*arguments)  # type: ignore[assignment,attr-defined]
    if "announced" in how:
        torch.__version__ = type(torch.__version__)("2.11.0")
        operators.announce()
    lowering, run = [], graph.GraphLowering.run

    def timed(self: graph.GraphLowering, *arguments: object) -> object:
        start = time.perf_counter()
        out = run(self, *arguments)
        lowering.append(time.perf_counter() - start)
        return out

    graph.GraphLowering.run = timed  # type: ignore[method-assign]
    torch.manual_seed(0)
    network = prepare(resnet20())
    use_kernels(network)
    w = {name: p.detach().expand(2, *p.shape).clone() for name, p in network.named_parameters()}

    def loss(w: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.func.functional_call(network, w, (x,))
        return out.square().sum()

    start = time.perf_counter()
    Compiled(torch.func.vmap(torch.func.grad(loss)))(w, torch.randn(2, 2, 3, 8, 8))
    return {"lowering_s": round(sum(lowering), 1), "all_s": round(time.perf_counter() - start, 1)}


def main() -> None:
    if sys.argv[1] == "--once":
        print(json.dumps(compile_once(sys.argv[2])))
        return
    found = {}
    for name, how in CASES.items():
        with tempfile.TemporaryDirectory() as caches:
            ran = subprocess.run([sys.executable, __file__, "--once", how], check=True, stdout=subprocess.PIPE, text=True,
                                 env={**os.environ, "TRITON_INTERPRET": "1", "TORCHINDUCTOR_CACHE_DIR": caches})
        found[name] = json.loads(ran.stdout.splitlines()[-1])
        print(name, found[name], flush=True)
    result = {"date": date.today().isoformat(), "environment": environment(), "compiled": found}
    Path(sys.argv[1]).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
