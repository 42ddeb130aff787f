"""Masks with a different window, often off by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from numscope.diagnose.hypotheses.case import Case, Repair, hypothesis


@hypothesis("band of a mask")
def band(case: Case) -> Iterator[Repair]:
    """Take the reference's band, where both masks are bands along the diagonal."""
    now, then = allowed_band(case.target_output), allowed_band(case.reference_output)
    if now is None or then is None or now == then:
        return
    yield Repair(
        f"the mask's window {then} (now {now}), i the query and j the key",
        lambda: case.reference_output,
    )


class Band(NamedTuple):
    """The diagonals i - j that a mask lets through, for query i and key j; both ends are included."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first} <= i-j <= {self.last}"


def allowed_band(mask: torch.Tensor) -> Band | None:
    """Return the diagonals that a mask lets through; None where the mask is no band."""
    if mask.dim() < 2:
        return None
    plain = mask.reshape(-1, *mask.shape[-2:])
    if plain.shape[0] > 1 and not bool((plain == plain[:1]).all()):
        return None
    grid = plain[0]
    values = grid.unique()
    if values.numel() != 2:
        return None
    passed = grid.bool() if grid.dtype == torch.bool else grid == values.max()
    queries, keys = grid.shape
    diagonal = torch.arange(queries).unsqueeze(1) - torch.arange(keys)
    low, high = int(diagonal[passed].min()), int(diagonal[passed].max())
    inside = (diagonal >= low) & (diagonal <= high)
    return Band(low, high) if torch.equal(inside, passed) else None
