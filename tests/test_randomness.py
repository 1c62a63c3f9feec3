from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import make_fx

from anybit.randomness import generator, key, uniform

STEP = torch.tensor(0)


def draw(k: int, step: int = 0, site: int = 0, size: int = 20_000) -> torch.Tensor:
    return uniform(torch.tensor(k), torch.tensor(step), site, (size,))


def test_keys_differ_in_every_part() -> None:
    keys = {key(s, p, r, c) for s in range(3) for p in ("order", "width") for r in range(3) for c in range(3)}
    assert len(keys) == 54
    assert all(0 <= k < 2**63 for k in keys)
    assert key(0, "cohort") == key(0, "cohort")


def test_draws_are_frozen() -> None:
    """Changing the draws would silently change every run: this test says so."""
    assert key(1, "order", 2, 3) == 6271162609829682696
    assert draw(12345, 6, 7, 3).tolist() == pytest.approx([0.0331383, 0.5613126, 0.4889807], abs=1e-6)
    assert generator(1, "cohort", 5).integers(1000, size=3).tolist() == [536, 178, 989]


@pytest.mark.parametrize(("k", "step", "site"), [(0, 0, 0), (2**63 - 1, 999, 40), (2**31, 7, 2**31), (2**32 - 1, 2**20, 3)])
def test_draws_are_the_hash_of_words_without_a_sign(k: int, step: int, site: int) -> None:
    def mixed(x: int) -> int:
        for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
            x = ((x ^ x >> shift) * factor) % 2**32
        return x ^ x >> 15

    lane = mixed(k % 2**32 ^ mixed(step ^ site * 0x9E3779B1 % 2**32))
    words = [mixed(mixed(position ^ lane) ^ k >> 32) for position in range(50)]
    assert draw(k, step, site, 50).tolist() == [(word >> 8) / 2**24 for word in words]


def test_uniform_is_uniform() -> None:
    x = draw(key(3, "noise"), size=200_000)
    assert float(x.min()) >= 0
    assert float(x.max()) < 1
    counts = np.histogram(x.numpy(), bins=50, range=(0, 1))[0]
    chi2 = ((counts - 4000) ** 2 / 4000).sum()
    assert chi2 < 85  # 49 degrees of freedom: exceeded once in a thousand
    assert abs(np.corrcoef(x[:-1].numpy(), x[1:].numpy())[0, 1]) < 0.01


@pytest.mark.parametrize("other", [(2, 0, 0), (1, 1, 0), (1, 0, 1), (1 + 2**40, 0, 0)])
def test_key_step_and_site_give_unrelated_draws(other: tuple[int, int, int]) -> None:
    a, b = draw(1), draw(*other)
    assert abs(float(torch.corrcoef(torch.stack([a, b]))[0, 1])) < 0.03
    assert not torch.equal(a, b)


def test_vmapped_clients_draw_what_each_draws_alone() -> None:
    keys = torch.tensor([key(0, "client", 1, c) for c in range(4)])
    together = torch.func.vmap(lambda k: uniform(k, STEP, 3, (5, 2)))(keys)
    for i, k in enumerate(keys):
        assert torch.equal(together[i], uniform(k, STEP, 3, (5, 2)))


def test_compilers_see_no_whole_number_that_is_converted() -> None:
    """They would convert it through float32, which has 24 bits, and the draws would be others."""
    keys, steps = torch.tensor([3, 5]), torch.tensor([0, 1])
    graph = make_fx(torch.func.vmap(lambda k, s: uniform(k, s, 7, (3, 2))))(keys, steps).graph
    calls = [node for node in graph.nodes if node.op == "call_function"]
    assert len(calls) > 30
    assert not [node for node in calls if "_to_copy" in str(node.target) and not isinstance(node.args[0], Node)]


def test_padding_rows_do_not_shift_the_draws_of_real_rows() -> None:
    k = torch.tensor(99)
    assert torch.equal(uniform(k, STEP, 0, (3, 4)), uniform(k, STEP, 0, (7, 4))[:3])
