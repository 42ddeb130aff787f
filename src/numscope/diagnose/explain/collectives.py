"""Suspects between ranks: a collective that one run alone has, or that gives something else."""

from __future__ import annotations

from functools import lru_cache

import torch

from numscope.core.report import Origin
from numscope.diagnose.explain.explanation import Explanation, relation
from numscope.diagnose.hypotheses.collectives import Ranks, fitting
from numscope.diagnose.recorded.evidence import Place, places_of
from numscope.diagnose.recorded.pairing import Pairing
from numscope.diagnose.recorded.step_graph import Call, NotKept, Record
from numscope.diagnose.replay.measures import relative, unit_roundoff, wide
from numscope.store.reader import Run

_STEPS = 8  # calls between a collective and the tensor that shows it
_HOW = ("group_rank", "group_size", "async_op")  # where a rank stands is no fault of the call


def explain(pairs: Pairing, origin: Origin) -> Explanation | None:
    """Explain a suspect that is a collective."""
    row = pairs.row(origin.call, origin.kind)
    if row is None:
        return None
    here, there = row["target_order"], row["reference_order"]
    if here is None:
        return _missing(pairs, pairs.reference.calls[there])
    ours = pairs.target.calls[here]
    if there is None:
        return _extra(pairs, ours, origin)
    return _both(pairs, ours, pairs.reference.calls[there])


def across_ranks(pairs: Pairing, place: Place, of_itself: bool = False) -> Explanation | None:
    """Explain a tensor that differs by what all ranks of the target hold; None where that can't be.

    That is what the ranks gave to the nearest collective before it; with `of_itself` what they hold in its own place:
    so a reduction that no capture sees (in a compiled extension, in a wrapper) is still found out.
    """
    if len(pairs.target.run.ranks) < 2:
        return None
    try:
        if of_itself:
            parts, what = _same_place(pairs.target, place.target), "all_reduce"
        else:
            call = _nearest(pairs.target, place.target)
            if call is None:
                return None
            parts, what = _given(pairs.target, call), _word(call)
        case = _case(pairs, parts, place.target, place.reference, what)
    except (NotKept, KeyError, StopIteration):
        return None
    maker = pairs.target.producer.get(place.target)
    name = pairs.target.calls[maker].name if maker is not None else pairs.target.name_of(place.target)
    return _explanation(case, name) if case is not None else None


def _nearest(record: Record, number: int) -> Call | None:
    """Return the nearest collective from which a tensor was made, a few calls away at most."""
    waiting, seen = [number], {number}
    for _ in range(_STEPS):
        following: list[int] = []
        for tensor in waiting:
            maker = record.producer.get(tensor)
            if maker is None:
                continue
            if record.calls[maker].kind == "collective":
                return record.calls[maker]
            following += [n for n in record.inputs(maker) if n not in seen]
            seen.update(following)
        waiting = following
    return None


def _both(pairs: Pairing, ours: Call, theirs: Call) -> Explanation:
    if changes := _changes(ours, theirs):
        return Explanation("semantic", f"equal to the reference with {', '.join(changes)} in {ours.name}")
    outputs = pairs.reference.outputs(theirs.order)
    for slot, number in pairs.target.outputs(ours.order).items():
        if slot not in outputs or pairs.same(number, outputs[slot]):
            continue
        found = _fitted(pairs, ours, number, outputs[slot])
        if found is not None:
            return found
        repair = relation(pairs.target, number, pairs.reference, outputs[slot])
        return Explanation("semantic" if repair else "unknown", repair)
    could_not = "a collective can't be replayed: its result needs the other ranks"
    return Explanation("unknown", details={"could_not": could_not})


def _missing(pairs: Pairing, call: Call) -> Explanation:
    """Explain a collective that only the reference has, with the proof where the target's ranks give it."""
    proof = ""
    try:
        given = next(n for n in pairs.reference.slots(call.order, "input").values() if n is not None)
        own = pairs.there.partner[given]
        parts = _same_place(pairs.target, own)
        made = list(pairs.reference.outputs(call.order).values())
        cases = [_case(pairs, parts, own, number, _word(call)) for number in made]
        if len(made) == len(parts) and all(c and relative(p, c.wanted) <= c.limit for p, c in zip(parts, cases)):
            proof = f": the parts of {len(parts)} ranks (now each rank has its own alone)"
        elif (found := next((f for c in cases if c and (f := fitting(c))), None)) is not None:
            proof = f": {found[1].change}"
    except (NotKept, StopIteration, KeyError):
        proof = ""
    return Explanation("semantic", f"equal to the reference with the {_word(call)} that is missing, {call.name}{proof}")


def _extra(pairs: Pairing, call: Call, origin: Origin) -> Explanation:
    """Explain a collective that only the target has: done twice, where its inputs were reduced already."""
    repair = f"equal to the reference without the {_word(call)} {call.name}"
    for slot, number in pairs.target.outputs(call.order).items():
        for place in places_of(pairs, origin)[0]:
            if slot.startswith("output") and place.target == number:
                found = _fitted(pairs, call, number, place.reference)
                if found is not None and found.repair:
                    tail = found.repair.removeprefix("equal to the reference with ").removesuffix(f" in {call.name}")
                    return Explanation("semantic", f"{repair}: {tail}", details=found.details)
    return Explanation("semantic", repair)


def _fitted(pairs: Pairing, call: Call, made: int, wanted: int) -> Explanation | None:
    """Explain what a collective of the target gives by what its ranks gave to it."""
    try:
        case = _case(pairs, _given(pairs.target, call), made, wanted, _word(call))
    except (NotKept, KeyError, StopIteration):
        return None
    return _explanation(case, call.name) if case is not None else None


def _given(record: Record, call: Call) -> list[torch.Tensor]:
    """Return what each rank gave to a collective; shards that it gave apart are put together."""
    found = []
    for other in _all_ranks(record):
        numbers = [n for n in other.slots(other.by_name[call.name].order, "input").values() if n is not None]
        tensors = [other.data(number) for number in numbers]
        found.append(torch.cat(tensors) if len(tensors) > 1 and tensors[0].dim() else tensors[0])
    return found


def _explanation(case: Ranks, name: str) -> Explanation | None:
    found = fitting(case)
    if found is None:
        return None
    hypothesis, repair = found
    return Explanation("semantic", f"{repair} in {name}", details={"hypothesis": hypothesis})


def _case(pairs: Pairing, parts: list[torch.Tensor], made: int, wanted: int, what: str = "all_reduce") -> Ranks | None:
    ranks = pairs.target.run.ranks
    if len(parts) != len(ranks) or len(parts) < 2:
        return None
    given, theirs = pairs.target.data(made), pairs.reference.data(wanted)
    if not given.is_floating_point() or not theirs.is_floating_point():
        return None
    limit = 16 * unit_roundoff(given.dtype, theirs.dtype)
    return Ranks(tuple(map(wide, parts)), wide(given), wide(theirs), ranks.index(pairs.target.rank), limit, what)


def _same_place(record: Record, number: int) -> list[torch.Tensor]:
    """Return what all ranks hold where this one holds a tensor: the same slot of the same call."""
    for order, call in record.calls.items():
        for slot, found in record.slots(order).items():
            if found == number:
                numbers = [(other, other.slots(other.by_name[call.name].order)[slot]) for other in _all_ranks(record)]
                return [other.data(n) for other, n in numbers if n is not None]
    raise KeyError(number)


def _all_ranks(record: Record) -> list[Record]:
    return [record if r == record.rank else _record(record.run, record.step, r) for r in record.run.ranks]


@lru_cache(maxsize=16)
def _record(run: Run, step: int, rank: int) -> Record:
    return Record(run, step, rank)


def _changes(ours: Call, theirs: Call) -> list[str]:
    """Return the arguments that differ, in words."""
    now, then = ours.given()["kwargs"], theirs.given()["kwargs"]
    return [
        f"{name}={then.get(name)} (now {now.get(name)})"
        for name in dict.fromkeys([*now, *then])
        if name not in _HOW and now.get(name) != then.get(name)
    ]


def _word(call: Call) -> str:
    return call.op.removesuffix("_tensor").removesuffix("_coalesced")
