"""The own error that each operator, dtype and chip are granted: four times the most that healthy kernels were measured to have.

`limits.csv` is written by `python -m bench.verify`, from calls of every operator in the forms of `diagnose/accuracy`.
"""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files
from typing import NamedTuple

_SAFETY = 4.0  # a job has thousands of times the elements that were measured
_LEAST = 2.0**-6  # units: an operator that is rounded once is measured to have none
# A sum of n terms in float32, in the worst order: a walk of n steps, each a rounding error of uniform distribution, with a
# deviation of 0.41 of the unit in which sums are measured. Five of those: the order of a sum is no fault.
ANY_ORDER = 2.0
_SUMS = frozenset(
    """
    mm bmm addmm baddbmm mv addmv dot vdot convolution convolution_backward sum nansum mean cumsum nll_loss_forward
    mse_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits embedding_dense_backward
    scatter_add index_add index_put _index_put_impl linalg_vector_norm norm _foreach_norm
    native_layer_norm_backward _fused_rms_norm_backward native_batch_norm_backward
    """.split()
)
# Where nothing was measured: the most that any operator needs that computes in float32 inside.
_UNKNOWN = 16.0


class Key(NamedTuple):
    """An operator, and the dtype of what it makes."""

    operator: str
    dtype: str


@cache
def table() -> dict[Key, dict[str, float]]:
    """Return the largest own error that was measured, in units, by chip."""
    found: dict[Key, dict[str, float]] = {}
    source = files("numscope.capture.torch.verify").joinpath("limits.csv")
    if not source.is_file():
        return found
    lines = [line for line in source.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    for row in csv.DictReader(lines):
        found.setdefault(Key(row["operator"], row["dtype"]), {})[row["chip"]] = float(row["worst"])
    return found


@cache
def limit(operator: str, dtype: str, chip: str) -> float:
    """Return the own error, in units, beyond which a call computes wrongly."""
    measured = table().get(Key(operator, dtype))
    if not measured:
        others = [max(chips.values()) for key, chips in table().items() if key.operator == operator]
        return max([_UNKNOWN, *(_SAFETY * worst for worst in others)])
    worst = measured.get(chip, max(measured.values()))
    # Rounding to a narrow dtype hides what is wrong inside, but where it falls on the edge between two numbers.
    inside = limit(operator, "float32", chip) if dtype in ("bfloat16", "float16") else 0.0
    return max(_SAFETY * worst, inside, ANY_ORDER if operator in _SUMS else _LEAST)
