"""A plain PyTorch loop over the clients: python plain.py MODEL THREADS [channels-last]."""

from __future__ import annotations

import copy
import sys

import torch
import work


def main() -> None:
    name, threads, last = sys.argv[1], int(sys.argv[2]), "channels-last" in sys.argv
    torch.set_num_threads(threads)
    x, y = (torch.from_numpy(a) for a in work.data())
    server = work.torch_model(name)
    timer = work.Timer()
    for _ in work.rounds():
        timer.start()
        total = {n: torch.zeros_like(p) for n, p in server.named_parameters()}
        samples = 0
        for i in range(work.CLIENTS):
            client = copy.deepcopy(server)
            if last:
                client = client.to(memory_format=torch.channels_last)
            samples += work.torch_epoch(client, x[i], y[i], last)
            for n, p in client.named_parameters():
                total[n] += p.detach() / work.CLIENTS
        server.load_state_dict(total)
        timer.done(samples)


work.quiet()
main()
