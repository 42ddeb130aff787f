"""Which tensors of the two runs are the same, to the bit or within rounding, in one step of one rank."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc

from numscope.compare.comparison import Comparison
from numscope.diagnose.recorded.group import Common
from numscope.diagnose.recorded.step_graph import Record

_AGREE = ("identical", "equivalent")
_ROUNDED = 2.0**-7  # a weight in another dtype is no farther off than this


@dataclass
class Pairing:
    """One step of one rank of both runs, with the calls that were paired and the tensors they have in common."""

    target: Record
    reference: Record
    rows: list[dict[str, Any]]  # of the comparison's calls, in order
    here: Common  # the target's tensors that the reference has
    there: Common  # the reference's tensors that the target has
    errors: dict[tuple[int, str], float | None]  # relative error by row and slot

    def row(self, name: str, kind: str = "") -> dict[str, Any] | None:
        """Return the row of a call by its name in either run; one that is missing has its name in the reference."""
        sides = ("reference_name", "target_name") if kind == "missing" else ("target_name", "reference_name")
        for side in sides:
            for row in self.rows:
                if row[side] == name and (kind != "missing" or row["target_order"] is None):
                    return row
        return None

    def bitwise(self, target: int, reference: int) -> bool:
        """Tell whether two tensors are equal to the bit."""
        ours, theirs = self.target.tensors[target], self.reference.tensors[reference]
        return ours.hash is not None and ours.content == theirs.content

    def same(self, target: int, reference: int) -> bool:
        """Tell whether two tensors are one for both runs."""
        return self.bitwise(target, reference) or self.here.partner.get(target) == reference


def pairing(comparison: Comparison, step: int, rank: int) -> Pairing:
    """Return what the two runs have in common in one step of one rank."""
    target, reference = Record(comparison.target, step, rank), Record(comparison.reference, step, rank)
    calls = comparison.calls
    chosen = calls.filter(pc.and_(pc.equal(calls["step"], step), pc.equal(calls["rank"], rank)))
    rows = sorted(chosen.to_pylist(), key=lambda row: int(row["pair"]))
    here: dict[int, int] = {}
    there: dict[int, int] = {}
    for content, number in target.by_content.items():
        partner = reference.by_content.get(content)
        if partner is not None and _telling(target, number):
            here[number], there[partner] = partner, number
    _all_of_a_content(target, reference, here)
    _all_of_a_content(reference, target, there)
    agreeing, errors = _agreeing(comparison, step, rank, rows)
    for row in rows:
        if row["target_order"] is None or row["reference_order"] is None:
            continue
        ours, theirs = target.slots(row["target_order"]), reference.slots(row["reference_order"])
        for slot, mine in ours.items():
            other = theirs.get(slot)
            if mine is None or other is None or (row["pair"], slot) not in agreeing:
                continue
            if target.tensors[mine].shape == reference.tensors[other].shape:
                here.setdefault(mine, other)
                there.setdefault(other, mine)
    return Pairing(target, reference, rows, Common(here), Common(there), errors)


def _all_of_a_content(mine: Record, other: Record, found: dict[int, int]) -> None:
    """Tensors of one content have one partner."""
    for number, tensor in mine.tensors.items():
        if tensor.hash is not None and number not in found and _telling(mine, number):
            partner = other.by_content.get(tensor.content)
            if partner is not None:
                found[number] = partner


def _telling(record: Record, number: int) -> bool:
    """Tell whether equal content means the same tensor: one number may be equal by chance."""
    return math.prod(record.tensors[number].shape) > 1


def _agreeing(
    comparison: Comparison, step: int, rank: int, rows: list[dict[str, Any]]
) -> tuple[set[tuple[int, str]], dict[tuple[int, str], float | None]]:
    """Return (pair, slot) of the tensors that are no farther apart than rounding explains, and how far apart all are.

    What is expected of a call whose inputs differ includes what came in: so its call must agree too.
    """
    agree = {row["pair"] for row in rows if row["verdict"] in _AGREE}
    pairs = comparison.pairs
    chosen = pairs.filter(pc.and_(pc.equal(pairs["step"], step), pc.equal(pairs["rank"], rank)))
    columns = chosen.select(["pair", "slot", "bitwise_equal", "relative_l2", "expected", "verdict"]).to_pydict()
    found = set()
    errors = {}
    for pair, slot, same, error, expected, verdict in zip(*columns.values()):
        errors[pair, slot] = error
        is_state = slot.startswith(("parameters.", "buffers."))
        near = error is not None and expected is not None and error <= expected
        if same or (near and verdict in _AGREE and (pair in agree or (is_state and error <= _ROUNDED))):
            found.add((pair, slot))
    return found, errors
