"""All clients of a cohort in one computation (vmap): mixed widths and uneven sizes, padded and masked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


def map_clients(update: Callable[..., Any], w: Mapping[str, Tensor], cohort: Any) -> tuple[dict[str, Tensor], Tensor]:
    """(deltas, losses), client first; a padded step changes nothing and has loss 0."""
    batches = [cohort.stacked_batch(k) for k in range(cohort.steps)]
    result: tuple[dict[str, Tensor], Tensor] = torch.func.vmap(update, in_dims=(None, 0, 0))(
        dict(w), cohort.width_bits, batches)
    return result
