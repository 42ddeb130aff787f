"""The losses of both runs, step by step: what a user looks at first.

A loss is the single number that a step's backward pass begins from: the result of the call whose gradient is the first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc

from numscope.core.json_value import JsonObject


@dataclass(frozen=True)
class Loss:
    """The loss of one step, in both runs."""

    step: int
    rank: int
    call: str
    target: float
    reference: float

    @property
    def apart(self) -> float:
        """How far apart the two are, of the reference's size."""
        size = abs(self.reference)
        return abs(self.target - self.reference) / size if size else abs(self.target)

    def to_dict(self) -> JsonObject:
        """Return it for the report."""
        return asdict(self)


def loss(calls: pa.Table, pairs: pa.Table) -> Loss | None:
    """Return the loss of a step of a rank, None where none is seen."""
    backward = calls.filter(pc.and_(pc.equal(calls["phase"], "backward"), pc.is_valid(calls["target_name"])))
    if not backward.num_rows:
        return None
    maker = backward["target_name"][0].as_py().replace(".backward", ".forward")
    numbers = pairs.filter(_single_results(pairs))
    for row in numbers.select(["step", "rank", "slot", "target_name", "target_mean", "reference_mean"]).to_pylist():
        call = row["target_name"].removesuffix(f".{row['slot']}")
        if call == maker:
            return Loss(row["step"], row["rank"], call, row["target_mean"], row["reference_mean"])
    return None


def of_each_step(found: Iterable[Loss]) -> list[Loss]:
    """Return the loss of each step, of the first rank that has one."""
    inorder = sorted(found, key=lambda one: (one.step, one.rank))
    return [next(of_step) for _, of_step in groupby(inorder, key=lambda one: one.step)]


def _single_results(part: pa.Table) -> pa.Array:
    """Tell which pairs are results of one number each, measured on both sides."""
    tests = [
        pc.equal(part["target_shape"], "[]"),
        pc.equal(part["reference_shape"], "[]"),
        pc.starts_with(part["slot"], "output"),
        pc.is_valid(part["target_mean"]),
        pc.is_valid(part["reference_mean"]),
    ]
    together = tests[0]
    for test in tests[1:]:
        together = pc.and_(together, test)
    return together
