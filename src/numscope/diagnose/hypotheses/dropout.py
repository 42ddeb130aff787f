"""Dropout that is on in one run and off in the other."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from numscope.diagnose.hypotheses.case import Case, Repair, hypothesis


@hypothesis("dropout on")
def dropout_on(case: Case) -> Iterator[Repair]:
    """Turn dropout off, where the target is the reference with some elements zero and the others scaled by 1/(1-p)."""
    given, wanted = case.target_output, case.reference_output
    if given.shape != wanted.shape or given.numel() < 16:
        return
    dropped = (given == 0) & (wanted != 0)
    share = float(dropped.double().mean())
    if not 0.005 < share < 0.95:
        return
    kept = ~dropped & (wanted != 0)
    ratio = float((given[kept] / wanted[kept]).median())
    p = 1 - 1 / ratio
    if 0 < p < 1 and abs(p - share) < 0.15:
        yield Repair(
            f"dropout off, training=False (now on with p={p:.3g})",
            lambda: torch.where(dropped, wanted, given / ratio),
        )
