"""Lockstep: each call of the target is fed the reference's own inputs, and judged by what it alone does.

Deep in a bfloat16 model the error that came in hides a wrong eps, GELU or scale: no threshold on the recorded results
tells it from rounding. Made again from the same inputs, in float64, both sides' calls must agree: what differs there is
the program. And made again from its own inputs each recorded result must be within its own rounding: what differs there
is the device. Nothing that came in counts, in any precision and at any depth.

    float64, the reference's inputs     gelu by tanh 2e-4    silu written out 1e-16    mean square for variance 2e-3

Where the two sides do the same by other calls, whole subgraphs are made again, from tensors that both have. Data is read
in windows, so that memory stays bounded however long the step is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from numscope.compare.align.arguments import MASKS_FROM, differences
from numscope.compare.comparison import Comparison
from numscope.core.dtypes import is_discrete
from numscope.core.errors import NotKeptError
from numscope.core.operators import IDLE, operator
from numscope.core.report import Origin, Report, Source
from numscope.core.words import OriginKind
from numscope.diagnose.explain.calls import explain_tensor
from numscope.diagnose.explain.explanation import Explanation
from numscope.diagnose.recorded.differing_tensors import DifferingTensor
from numscope.diagnose.recorded.invocation import CannotReplay
from numscope.diagnose.recorded.paired_step import CallPair, PairedStep
from numscope.diagnose.recorded.step_graph import RecordedCall, StepGraph
from numscope.diagnose.recorded.subgraph import MOST_CALLS, Subgraph, matched_calls, unmatched_calls, upstream
from numscope.diagnose.replay.measures import relative_error, unit_roundoff
from numscope.diagnose.replay.noise_floor import noise_floor
from numscope.diagnose.replay.own_error import own_error

WINDOW = 1 << 30  # bytes of both runs' tensors that are held at once
_EXACT = 1e-11  # relative, in float64: no order of sums makes more
_FLOORS = 25.0  # times the measured effect of an ulp
_REPRODUCED = 64.0  # units of roundoff: a replay from a side's own inputs gives what that side recorded
_OFF = 8.0  # times the other side's own error: then it is looked at element by element

CASTS = frozenset({"to", "type", "type_as", "_to_copy", "float", "double", "half", "bfloat16"})
Pairing = Callable[[int, int], PairedStep]


@dataclass
class Lockstep:
    """The figures of a lockstep."""

    same: int = 0  # results that both sides make by the same call with the same arguments
    computed: int = 0  # results that were made again on both sides, in float64, from the reference's inputs
    largest: float = 0.0  # difference between those that agree
    not_made: Counter[str] = field(default_factory=Counter)  # results that could not be made again, by reason
    cleared: set[RecordedCall] = field(default_factory=set)  # calls that led to a result that agrees

    def sentence(self) -> str:
        """Return in words what was judged."""
        text = f"fed the reference's inputs, {self.same + self.computed} results are those of the reference's program"
        if self.computed:
            text += f", {self.computed} by other calls or arguments, within {max(self.largest, 1e-16):.1g} in float64"
        if self.not_made:
            (reason, _), *_ = self.not_made.most_common(1)
            text += f"; {sum(self.not_made.values())} could not be made again ({reason})"
        return text

    def to_dict(self) -> dict[str, object]:
        """Return the figures for the report."""
        return {
            "same": self.same,
            "computed": self.computed,
            "largest": self.largest,
            "not_made": dict(self.not_made),
            "sentence": self.sentence(),
        }


@dataclass(frozen=True)
class Result:
    """A result that both runs have: a tensor of each, and the calls that lead to it from tensors that both have."""

    pairs: PairedStep
    partners: Mapping[int, int]  # the target's tensors that the reference has, none of them a cast of another
    target: Subgraph
    reference: Subgraph

    @cached_property
    def is_same_call(self) -> bool:
        """Whether one call with the same arguments makes it from the same tensors on both sides."""
        if len(self.target.calls) != 1 or len(self.reference.calls) != 1:
            return False
        (mine,), (theirs,) = self.target.calls, self.reference.calls
        if mine.operator != theirs.operator or differences(mine.arguments, theirs.arguments, mine.operator):
            return False
        ours, others = self._given(self.pairs.target, mine), self._given(self.pairs.reference, theirs)
        return ours.keys() == others.keys() and all(
            self.partner(number) == others[slot] or self.pairs.same(number, others[slot])
            for slot, number in ours.items()
        )

    def _given(self, graph: StepGraph, call: RecordedCall) -> dict[str, int]:
        slots = graph.slots(call.order, "input", "kwargs")
        return {slot: number for slot, number in slots.items() if number is not None}

    def partner(self, number: int) -> int | None:
        """Return the reference's counterpart of one of the target's tensors."""
        return self.partners.get(number)

    def values(self) -> dict[int, torch.Tensor]:
        """Return the reference's tensors in the place of the target's inputs, or raise CannotReplay."""
        found = {}
        for number in self.target.inputs:
            partner = self.partner(number)
            if partner is None:
                raise CannotReplay("it is given a tensor that the reference lacks")
            found[number] = self.pairs.reference.data(partner)
        return found

    def is_reproduced(self, side: Subgraph) -> bool:
        """Whether a side's calls, made again from its own inputs, give what it recorded."""
        recorded = side.graph.data(side.output)
        made = {side.graph.tensors[n].dtype for call in side.calls for n in side.graph.outputs(call.order).values()}
        coarsest = unit_roundoff(*(getattr(torch, name) for name in made if not is_discrete(name)))
        return relative_error(side.run({}, torch.float64), recorded) <= _REPRODUCED * coarsest

    def needs(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the tensors of the target, and of the reference, from which it is judged."""
        partners = [self.partner(number) for number in self.target.inputs]
        theirs = dict.fromkeys((*self.reference.inputs, self.reference.output, *(n for n in partners if n is not None)))
        return (*self.target.inputs, self.target.output), tuple(theirs)

    def tensor(self) -> DifferingTensor:
        """Return it as the explainers take it."""
        t, r = self.target.output, self.reference.output
        makers = self.pairs.target.producer.get(t), self.pairs.reference.producer.get(r)
        return DifferingTensor("output", t, r, *makers)


@dataclass(frozen=True)
class _Fault:
    """A result that is not the reference's though it is made from the reference's inputs."""

    result: Result
    error: float
    explained: float
    is_device: bool = False


def lockstep(comparison: Comparison, paired: Pairing) -> Report:
    """Return the report of two runs that agree within rounding, or one that names the first call that does not.

    `paired` gives the paired step of a step and rank. Runs that kept no tensors are returned as they are.
    """
    seen = Lockstep()
    for step, rank in _places(comparison):
        pairs = paired(step, rank)
        for result in results(pairs, seen):
            fault = _judged(result, seen)
            if fault is not None:
                return _diverged(comparison.report, fault, seen)
    if not seen.same + seen.computed:
        return comparison.report
    report = comparison.report
    told = report.resolution or {}
    sentence = seen.sentence() if not seen.not_made else f"{told.get('sentence', '')}; {seen.sentence()}".lstrip("; ")
    resolution = {**told, "sentence": sentence}
    return replace(report, resolution=resolution, details={**report.details, "lockstep": seen.to_dict()})


def _places(comparison: Comparison) -> Iterator[tuple[int, int]]:
    """Yield the steps and ranks of which both runs kept tensors."""
    table = comparison.calls.select(["step", "rank"]).group_by(["step", "rank"]).aggregate([])
    for row in table.sort_by([("step", "ascending"), ("rank", "ascending")]).to_pylist():
        step, rank = row["step"], row["rank"]
        if all(keeps_tensors(run.step_tables(step, rank)) for run in (comparison.target, comparison.reference)):
            yield step, rank


def keeps_tensors(tables: object) -> bool:
    """Tell whether a step of a run has the data of tensors."""
    shards = tables.tensors["shard"]  # type: ignore[attr-defined]
    return bool(len(shards) > shards.null_count)


def results(pairs: PairedStep, seen: Lockstep) -> Iterator[Result]:
    """Yield the results that both runs have and that are not the same to the bit, in the order of the target."""
    target, reference = pairs.target, pairs.reference
    makers = target.producer
    # A cast is no result of its own: in float64 it does nothing, and what was recorded behind it is rounded.
    there = {n: _uncast(reference, r) for n, r in pairs.target_to_reference.items() if _uncast(target, n) == n}
    others = set(there.values())
    wanted = sorted((n for n in there if n in makers and there[n] in reference.producer), key=lambda n: (makers[n], n))
    for number in wanted:
        other = there[number]
        if pairs.bitwise(number, other):
            continue
        if target.calls[makers[number]].is_gradient or is_discrete(target.tensors[number].dtype):
            continue  # a gradient is that of its forward call; a choice is judged by the values it chose
        sides = (
            upstream(target, number, there, True),
            upstream(reference, other, others, True),
        )
        stuck = next((why for side in sides for why in side.not_replayable.values()), None)
        if stuck is not None or any(len(side.calls) >= MOST_CALLS for side in sides):
            seen.not_made[_short(stuck) if stuck else "too many calls lead to it"] += 1
            continue
        yield _met(Result(pairs, there, *sides))
        if target.held() + reference.held() > WINDOW:
            target.forget()
            reference.forget()


def _uncast(graph: StepGraph, number: int) -> int:
    """Return the tensor of which another is a cast to another dtype, and itself where it is none."""
    while (maker := graph.producer.get(number)) is not None and graph.calls[maker].op in CASTS:
        given = [n for n in graph.inputs(maker) if graph.tensors[n].shape == graph.tensors[number].shape]
        if len(given) != 1 or is_discrete(graph.tensors[given[0]].dtype):
            break
        (number,) = given
    return number


def _met(result: Result) -> Result:
    """Return a result without the calls of a side that has it before the other's last call: a cast that does nothing."""
    target, reference = result.target, result.reference
    if reference.output in {result.partner(number) for number in target.inputs}:
        return replace(result, reference=Subgraph(reference.graph, (), (reference.output,), reference.output))
    if result.partner(target.output) in reference.inputs:
        return replace(result, target=Subgraph(target.graph, (), (target.output,), target.output))
    return result


def _short(why: str) -> str:
    return why.partition(": ")[2] or why


def _judged(result: Result, seen: Lockstep) -> _Fault | None:
    """Return how a result differs from the reference's where rounding does not explain it."""
    try:
        if result.is_same_call:
            seen.same += 1
            return _off_device(result)
        values = result.values()
        made = result.target.run(values, torch.float64)
        meant = result.reference.run({}, torch.float64)
        error = relative_error(*_unmasked(made, meant))
        explained = _explained(result) if error > _EXACT else _EXACT
        if error <= explained:
            seen.computed += 1
            seen.largest = max(seen.largest, error)
            seen.cleared.update(result.target.calls, result.reference.calls)
            return _off_device(result)
        if not (result.is_reproduced(result.target) and result.is_reproduced(result.reference)):
            seen.not_made["made again, it is not what was recorded"] += 1
            return None
        return _Fault(result, error, explained)
    except NotKeptError:
        seen.not_made["its data was not kept"] += 1
    except CannotReplay as why:
        seen.not_made[_short(str(why))] += 1
    return None


def _unmasked(made: torch.Tensor, meant: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two results without what masks: the lowest numbers of two dtypes do the same."""
    if made.shape != meant.shape or not (made.is_floating_point() and meant.is_floating_point()):
        return made, meant
    masks = (made.abs() > MASKS_FROM) & (meant.abs() > MASKS_FROM) & (made.sign() == meant.sign())
    return made.masked_fill(masks, 0.0), meant.masked_fill(masks, 0.0)


def _explained(result: Result) -> float:
    """Return the difference that may come of constants that one side has rounded, by the effect of an ulp.

    The same call with another argument has no such excuse: there an ulp of float64 counts.
    """
    side = result.reference
    one_call = len(result.target.calls) == len(side.calls) == 1
    same = one_call and result.target.calls[0].operator == side.calls[0].operator
    wide = torch.float64 if same else torch.float32
    inputs = {number: side.graph.data(number) for number in side.inputs}
    inputs = {n: x.to(wide) if x.is_floating_point() else x for n, x in inputs.items()}
    floor = noise_floor(lambda moved: side.run(moved, torch.float64), inputs)
    return max(_EXACT, _FLOORS * max(floor, unit_roundoff(wide) / 2))


def _off_device(result: Result) -> _Fault | None:
    """Return a fault where the target's last call has recorded what its own inputs do not give.

    That call alone, from what was recorded right before it: a cast on the way rounds, and is no fault.
    """
    if not (result.target.calls and result.reference.calls):
        return None
    sides = [_last_call(side) for side in (result.target, result.reference)]
    if any(operator(call.operator).rounding in IDLE for side in sides for call in side.calls):
        return None
    errors = []
    for side in sides:
        recorded = side.graph.data(side.output)
        errors.append(relative_error(recorded, side.run({}, torch.float64)) / unit_roundoff(recorded.dtype))
    mine, theirs = errors
    if not mine > _OFF * max(theirs, 1.0):
        return None
    own, other = (own_error(side, 0.0) for side in sides)
    if own is None or not own.is_off(other) or (other is not None and other.is_off(own)):
        return None
    return _Fault(result, own.relative, own.relative / max(own.overall, 1e-300), is_device=True)


def _last_call(side: Subgraph) -> Subgraph:
    return upstream(side.graph, side.output, side.graph.tensors, True)


# The report -------------------------------------------------------------------------------------------------------------


def _diverged(report: Report, fault: _Fault, seen: Lockstep) -> Report:
    origin = _origin(fault, seen.cleared)
    found = _explanation(fault)
    origin = replace(origin, mechanism="device" if fault.is_device else "semantic")
    if found is not None and found.mechanism == origin.mechanism:
        origin = replace(origin, repair=found.repair, details={**origin.details, "diagnosis": dict(found.details)})
    details = {**report.details, "lockstep": seen.to_dict()}
    return replace(report, verdict="diverged", origin=origin, suspects=(origin,), reason=origin.reason, details=details)


def _explanation(fault: _Fault) -> Explanation | None:
    try:
        return explain_tensor(fault.result.pairs, fault.result.tensor())
    except (CannotReplay, NotKeptError):
        return None


def _origin(fault: _Fault, cleared: Set[RecordedCall]) -> Origin:
    """Return the call of a faulty result that is named."""
    result = fault.result
    call, row = _named(result, cleared)
    name = call.name
    kind: OriginKind = "aten" if call.kind == "aten" else "api"
    if row is not None and row.matched is None:
        kind = "extra" if row.target_order is not None else "missing"
    if fault.is_device:
        what = f"its recorded result is {fault.error:.2g} off what its own inputs give in float64"
    else:
        what = f"fed the reference's inputs, the two sides differ by {fault.error:.2g} in float64"
    what += f", where rounding explains {fault.explained:.1g}"
    if row is not None and row.arguments_differ:
        what += f"; {row.arguments_differ}"
    elif kind == "extra":
        what = f"only the target has this call; {what}"
    elif kind == "missing":
        what = f"only the reference has this call; {what}"
    where = f" in {call.module}" if call.module else ""
    shown = result.pairs.target.name_of(result.target.output)
    if kind in ("extra", "missing"):
        what += f" at {shown}"
    source = Source(row.source_file, row.source_line or 0) if row is not None and row.source_file else None
    return Origin(
        call=name,
        kind=kind,
        phase="forward" if call.phase == "forward" else "optimizer" if call.phase == "optimizer" else "backward",
        step=result.pairs.target.step,
        rank=result.pairs.target.rank,
        reason=f"{call.op}{where}: {what}",
        module=call.module,
        source=source,
        relative=fault.error,
        expected=fault.explained,
        details={"lockstep": True, "shows_in": shown},
    )


def _named(result: Result, cleared: Set[RecordedCall]) -> tuple[RecordedCall, CallPair | None]:
    """Return the call that makes the difference: one whose arguments differ, one that a side alone has, or the last.

    A call that led to a result that agrees, as a mask that all layers share, is named only where no other is left.
    """
    target, reference = result.target, result.reference
    by_target = {row.target_order: row for row in result.pairs.calls if row.target_order is not None}
    by_reference = {row.reference_order: row for row in result.pairs.calls if row.reference_order is not None}
    if not result.is_same_call:
        for mine, theirs in matched_calls(target, reference):
            if any(one.telling for one in differences(mine.arguments, theirs.arguments, mine.operator)):
                return mine, by_target.get(mine.order)
        lone = unmatched_calls(target, reference)
        working = [
            (call, rows.get(call.order))
            for calls, rows in ((lone.extra, by_target), (lone.missing, by_reference))
            for call in calls
            if operator(call.operator).rounding not in IDLE
        ]
        if working:
            first, *_ = [one for one in working if one[0] not in cleared] or working
            return first
    last, rows = (target.calls[-1], by_target) if target.calls else (reference.calls[-1], by_reference)
    return last, rows.get(last.order)
