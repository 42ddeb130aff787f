"""One step of one rank of both runs: pairs of calls, and the tensors that both runs have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from numscope.compare.comparison import Comparison
from numscope.core.words import Kind, Phase
from numscope.diagnose.recorded.step_graph import StepGraph

_AGREE = ("identical", "equivalent")
_ROUNDED = 2.0**-7  # the largest error of a weight that was rounded to another dtype


class MatchedOrders(NamedTuple):
    """The orders of a call that both runs have."""

    target: int
    reference: int


class PairSlot(NamedTuple):
    """A slot of a pair of calls."""

    pair: int
    slot: str


@dataclass(frozen=True)
class CallPair:
    """A row of the comparison's calls: a call of the target with its counterpart; None on the side that lacks it."""

    pair: int
    step: int
    rank: int
    target_order: int | None
    reference_order: int | None
    target_name: str | None
    reference_name: str | None
    kind: Kind
    module: str | None
    phase: Phase
    arguments_differ: str | None
    verdict: str | None
    error_out: float | None
    expected: float | None  # the part of error_out that rounding explains
    source_file: str | None
    source_line: int | None

    @property
    def matched(self) -> MatchedOrders | None:
        """The orders of both calls; None where one run alone has the call."""
        if self.target_order is None or self.reference_order is None:
            return None
        return MatchedOrders(self.target_order, self.reference_order)


@dataclass
class PairedStep:
    """One step of one rank of both runs, with the calls that were paired and the tensors they have in common."""

    target: StepGraph
    reference: StepGraph
    calls: list[CallPair]  # in order
    target_to_reference: Mapping[int, int]  # the target's tensors that the reference has
    reference_to_target: Mapping[int, int]  # the reference's tensors that the target has
    errors: Mapping[PairSlot, float | None]  # relative

    def call(self, name: str, kind: str = "") -> CallPair | None:
        """Return the pair of a call by its name in the target or the reference; a missing call has a name in the latter."""
        in_target = (pair for pair in self.calls if pair.target_name == name and kind != "missing")
        in_reference = (
            pair
            for pair in self.calls
            if pair.reference_name == name and (kind != "missing" or pair.target_order is None)
        )
        return next(in_target, None) or next(in_reference, None)

    def error_of(self, pair: CallPair, slot: str) -> float | None:
        """Return the relative error of a slot of a pair, None where it is unknown."""
        return self.errors.get(PairSlot(pair.pair, slot))

    def bitwise(self, target: int, reference: int) -> bool:
        """Tell whether two tensors are equal to the bit."""
        ours, theirs = self.target.tensors[target], self.reference.tensors[reference]
        return ours.hash is not None and ours.content == theirs.content

    def same(self, target: int, reference: int) -> bool:
        """Tell whether two tensors are equal to the bit, or within rounding."""
        return self.bitwise(target, reference) or self.target_to_reference.get(target) == reference


def call_pairs(rows: pa.Table) -> list[CallPair]:
    """Return rows of a comparison's calls as records."""
    return [CallPair(**row) for row in rows.select([field.name for field in fields(CallPair)]).to_pylist()]


def pair_step(comparison: Comparison, step: int, rank: int) -> PairedStep:
    """Return one step of one rank of both runs, with its pairs of calls and tensors."""
    target, reference = StepGraph(comparison.target, step, rank), StepGraph(comparison.reference, step, rank)
    table = comparison.calls
    chosen = table.filter(pc.and_(pc.equal(table["step"], step), pc.equal(table["rank"], rank)))
    calls = sorted(call_pairs(chosen), key=lambda pair: pair.pair)
    here: dict[int, int] = {}
    there: dict[int, int] = {}
    for content, number in target.by_content.items():
        partner = reference.by_content.get(content)
        if partner is not None and _identifies(target, number):
            here[number], there[partner] = partner, number
    _add_equal_tensors(target, reference, here)
    _add_equal_tensors(reference, target, there)
    agreeing, errors = _agreeing(comparison, step, rank, calls)
    for pair in calls:
        if (orders := pair.matched) is None:
            continue
        ours, theirs = target.slots(orders.target), reference.slots(orders.reference)
        for slot, mine in ours.items():
            other = theirs.get(slot)
            if mine is None or other is None or (pair.pair, slot) not in agreeing:
                continue
            if target.tensors[mine].shape == reference.tensors[other].shape:
                here.setdefault(mine, other)
                there.setdefault(other, mine)
    return PairedStep(target, reference, calls, here, there, errors)


def _add_equal_tensors(mine: StepGraph, other: StepGraph, partners: dict[int, int]) -> None:
    """Give all tensors of equal content the same partner."""
    for number, tensor in mine.tensors.items():
        if tensor.hash is not None and number not in partners and _identifies(mine, number):
            partner = other.by_content.get(tensor.content)
            if partner is not None:
                partners[number] = partner


def _identifies(graph: StepGraph, number: int) -> bool:
    """Tell whether equal content identifies a tensor: single numbers may be equal by chance."""
    return math.prod(graph.tensors[number].shape) > 1


def _agreeing(
    comparison: Comparison, step: int, rank: int, calls: list[CallPair]
) -> tuple[set[PairSlot], dict[PairSlot, float | None]]:
    """Return the slots whose tensors agree within rounding, and the errors of all slots.

    The error that is expected of a slot includes the error of the call's inputs, so the call must agree too; and it must
    have been held against that limit, not be judged by where it leads: x ** -y here and x ** y there agree in nothing.
    """
    agree = {pair.pair for pair in calls if pair.verdict in _AGREE}
    pairs = comparison.pairs
    chosen = pairs.filter(pc.and_(pc.equal(pairs["step"], step), pc.equal(pairs["rank"], rank)))
    judged = set(chosen.filter(pc.is_valid(chosen["resolution"]))["pair"].to_pylist())
    agree &= judged | {pair.pair for pair in calls if pair.kind == "module"}  # judged by the calls inside
    columns = chosen.select(["pair", "slot", "bitwise_equal", "relative_l2", "expected", "verdict"]).to_pydict()
    found = set()
    errors = {}
    for pair, slot, same, error, expected, verdict in zip(*columns.values()):
        key = PairSlot(pair, slot)
        errors[key] = error
        is_state = slot.startswith(("parameters.", "buffers."))
        near = error is not None and expected is not None and error <= expected
        if same or (near and verdict in _AGREE and (pair in agree or (is_state and error <= _ROUNDED))):
            found.add(key)
    return found, errors
