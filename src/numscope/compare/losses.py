"""The losses of both runs, step by step: what a user looks at first.

A loss is the single number that a step's backward pass begins from: the result of the call whose gradient is the first.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc

from numscope.compare.spool import Rows
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


def losses(calls: Rows, pairs: Rows) -> list[Loss]:
    """Return the loss of each step, of the first rank that has one."""
    columns = ["step", "rank", "pair", "target_name", "phase"]
    makers: dict[
        str, tuple[int, int]
    ] = {}  # the first backward call of a place, as the forward call that it belongs to
    seen: set[tuple[int, int]] = set()
    for part in calls.batches(columns):
        backward = part.filter(pc.and_(pc.equal(part["phase"], "backward"), pc.is_valid(part["target_name"])))
        for row in backward.group_by(["step", "rank"], use_threads=False).aggregate([("pair", "min")]).to_pylist():
            place = (row["step"], row["rank"])
            if place not in seen:
                seen.add(place)
                first = backward.filter(pc.equal(backward["pair"], row["pair_min"]))["target_name"][0].as_py()
                makers[f"{place} {first.replace('.backward', '.forward')}"] = place
    found: list[Loss] = []
    columns = [
        "step",
        "rank",
        "slot",
        "target_name",
        "target_shape",
        "reference_shape",
        "target_mean",
        "reference_mean",
    ]
    for part in pairs.batches(columns):
        numbers = part.filter(_single_results(part))
        for row in numbers.to_pylist():
            call = row["target_name"].removesuffix(f".{row['slot']}")
            if f"{(row['step'], row['rank'])} {call}" in makers:
                found.append(Loss(row["step"], row["rank"], call, row["target_mean"], row["reference_mean"]))
    found.sort(key=lambda one: (one.step, one.rank))
    return [next(of_step) for _, of_step in groupby(found, key=lambda one: one.step)]


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
