"""Masks and windows that are off by one."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from numscope.diagnose.hypotheses.case import Case, Repair, hypothesis


@hypothesis("band of a mask")
def band(case: Case) -> Iterator[Repair]:
    """Take the reference's band, where both masks are bands along the diagonal."""
    now, then = allowed_band(case.target_output), allowed_band(case.reference_output)
    if now is None or then is None or now == then:
        return
    yield Repair(
        f"the mask's window {_spoken(then)} (now {_spoken(now)}), i the query and j the key",
        lambda: case.reference_output,
    )


def allowed_band(mask: torch.Tensor) -> tuple[int, int] | None:
    """Return the first and last diagonal (i - j) that a mask lets through; None where the mask is no band."""
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
    rows = torch.arange(grid.shape[0]).unsqueeze(1)
    distance = (rows - torch.arange(grid.shape[1])).masked_fill(~passed, 10**6)
    low, high = int(distance.min()), int(distance.masked_fill(~passed, -(10**6)).max())
    inside = (rows - torch.arange(grid.shape[1]) >= low) & (rows - torch.arange(grid.shape[1]) <= high)
    return (low, high) if torch.equal(inside, passed) else None


def _spoken(limits: tuple[int, int]) -> str:
    return f"{limits[0]} <= i-j <= {limits[1]}"
