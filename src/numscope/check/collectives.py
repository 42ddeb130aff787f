"""Collectives held against what the ranks gave: sketches are linear, so the sketch of a sum is the sum of the sketches.

Nothing is sent for this: each rank has the fingerprints of what it gave and got, and the whole run has all ranks.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from numscope.core.dtypes import SINGLE, unit_roundoff
from numscope.core.report import Origin, Source
from numscope.store.joins import joined_calls
from numscope.store.reader import Run
from numscope.store.schema import TableRow

_SUMS = ("SUM", "AVG")
_SAME = 4.0  # deviations of an estimate that 64 sums with random signs make of a distance


class Wrong(NamedTuple):
    """A collective whose result is not what its ranks gave."""

    step: int
    order: int
    origin: Origin


@dataclass
class _Member:
    """One rank's part in a collective."""

    call: TableRow
    rank: int
    given: list[TableRow] = field(default_factory=list)  # its inputs
    made: list[TableRow] = field(default_factory=list)


def wrong_collectives(run: Run) -> list[Wrong]:
    """Return the collectives of a run whose results are not what the ranks gave: of each the first rank that is wrong."""
    found = [wrong for members in _groups(run) if (wrong := _judge(members)) is not None]
    return sorted(found, key=lambda wrong: (wrong.step, wrong.order))


def _groups(run: Run) -> Iterator[list[_Member]]:
    """Yield the calls that are one collective: of all ranks of a group, the n-th of that name among them in a step."""
    if len(run.ranks) < 2:
        return
    for step in run.steps:
        groups: dict[tuple[Any, ...], list[_Member]] = defaultdict(list)
        for rank in run.ranks:
            if step not in run.rank_steps(rank):
                continue
            seen: dict[tuple[Any, ...], int] = defaultdict(int)
            for member in _members(run, step, rank):
                facts = _facts(member)
                ranks = tuple(facts.get("ranks") or range(int(facts.get("group_size", 0))))
                key = (member.call["name"].rsplit(".", 2)[0], ranks, member.call["phase"])
                groups[(*key, seen[key])].append(member)
                seen[key] += 1
        for (_, ranks, *_), group in groups.items():
            if len(group) == len(ranks) > 1:
                yield group


def _members(run: Run, step: int, rank: int) -> list[_Member]:
    """Return the collectives of one rank in one step, in order, with what they are given and make."""
    tables = run.step_tables(step, rank)
    calls = tables.calls.filter(pc.equal(tables.calls["kind"].cast(pa.string()), "collective"))
    if not calls.num_rows:
        return []
    found = {row["order"]: _Member(row, rank) for row in joined_calls(calls, run.stacks(rank), rank).to_pylist()}
    slots = tables.slots.filter(pc.is_in(tables.slots["call"], calls["order"].combine_chunks()))
    slots = slots.filter(pc.is_valid(slots["tensor"]))
    columns = ["tensor", "dtype", "shape", "hash", "sketch", "l2", "mean", "nan", "posinf", "neginf"]
    rows = tables.tensors.select(columns)
    rows = rows.filter(pc.is_in(rows["tensor"], slots["tensor"].combine_chunks()))
    by_number = {row["tensor"]: row for row in rows.to_pylist()}
    for call, slot, number in zip(*(slots[name].to_pylist() for name in ("call", "slot", "tensor"))):
        if number in by_number:
            row = {**by_number[number], "slot": slot}
            row["inf"] = (row["posinf"] or 0) + (row["neginf"] or 0)
            member = found[call]
            (member.made if slot.startswith("output") else member.given).append(row)
    return [found[order] for order in sorted(found)]


def _facts(member: _Member) -> Mapping[str, Any]:
    arguments = json.loads(member.call["arguments"] or "{}")
    facts: dict[str, Any] = arguments.get("kwargs", {})
    return facts


def _judge(members: Sequence[_Member]) -> Wrong | None:
    op = members[0].call["name"].split(".")[1]
    facts = _facts(members[0])
    told: tuple[_Member, str, float] | None = None
    if op in ("all_reduce", "all_reduce_coalesced") and facts.get("op") in _SUMS:
        told = _sum(members, 1 / len(members) if facts["op"] == "AVG" else 1.0)
    elif op == "reduce_scatter" and facts.get("op") in _SUMS:
        told = _scattered(members, 1 / len(members) if facts["op"] == "AVG" else 1.0)
    elif op == "reduce_scatter_tensor" and facts.get("op") in _SUMS:
        told = _total(members, 1 / len(members) if facts["op"] == "AVG" else 1.0)
    elif op == "all_to_all":
        told = _exchanged(members)
    elif op == "all_to_all_single":
        told = _conserved(members, members)
    elif op == "all_gather_into_tensor":
        told = next((wrong for one in members if (wrong := _conserved(members, [one])) is not None), None)
    elif op == "broadcast":
        told = _broadcast(members, facts)
    elif op == "all_gather":
        told = _gathered(members)
    if told is None:
        return None
    member, which, error = told
    call = member.call
    source = None
    if call["source_file"]:
        source = Source(
            call["source_file"], call["source_line"] or 0, call["source_function"] or "", call["source_code"] or ""
        )
    origin = Origin(
        call=call["name"],
        kind="collective",
        phase=call["phase"],
        step=call["step"],
        rank=member.rank,
        reason=f"{op} of {len(members)} ranks gives what they did not: {which}",
        module=call["module"] or "",
        source=source,
        mechanism="device",
        relative=error,
        details={"operator": op, "ranks": [one.rank for one in members]},
    )
    return Wrong(call["step"], call["order"], origin)


def _sketch(row: TableRow) -> NDArray[np.float64]:
    return np.asarray(row["sketch"], np.float64)


def _is_clean(rows: Sequence[TableRow]) -> bool:
    return all(row["sketch"] is not None and not (row["nan"] or row["inf"]) and row["l2"] is not None for row in rows)


def _sum(members: Sequence[_Member], share: float) -> tuple[_Member, str, float] | None:
    for place, parts in enumerate(zip(*(member.given for member in members))):
        outputs = [member.made[place] for member in members if place < len(member.made)]
        if len(outputs) < len(members) or not _is_clean((*parts, *outputs)):
            continue
        shapes = {tuple(row["shape"]) for row in (*parts, *outputs)}
        if len(shapes) > 1 or not unit_roundoff(parts[0]["dtype"]):
            continue
        sketches = [_sketch(row) for row in parts]
        total = share * sum(sketches)
        size = share * math.sqrt(sum(row["l2"] ** 2 for row in parts))
        # Each addition rounds; a sketch of float32 has lost digits, too.
        roundoff = len(members) * unit_roundoff(parts[0]["dtype"]) + 16 * SINGLE
        for member, row in zip(members, outputs):
            off = float(np.linalg.norm(_sketch(row) - total))
            if off > _SAME * roundoff * max(size, float(row["l2"])):
                return member, _culprit(members, sketches, _sketch(row) / share, off / share), off / size
    return None


def _culprit(
    members: Sequence[_Member], sketches: Sequence[NDArray[np.float64]], got: NDArray[np.float64], off: float
) -> str:
    """Say whose part is missing, or counts twice, where that explains the difference."""
    lacking = sum(sketches) - got
    for member, sketch in zip(members, sketches):
        size = float(np.linalg.norm(sketch))
        if size and float(np.linalg.norm(lacking - sketch)) < 1e-2 * size:
            return f"the part of rank {member.rank} is missing"
        if size and float(np.linalg.norm(lacking + sketch)) < 1e-2 * size:
            return f"the part of rank {member.rank} counts twice"
    return "it is not their sum"


def _broadcast(members: Sequence[_Member], facts: Mapping[str, Any]) -> tuple[_Member, str, float] | None:
    root = facts.get("root", 0)
    giver = members[root] if isinstance(root, int) and root < len(members) else members[0]
    for place, given in enumerate(giver.given):
        for member in members:
            got = member.made[place]["hash"] if place < len(member.made) else None
            if None not in (given["hash"], got) and got != given["hash"]:
                return member, f"rank {member.rank} has not what rank {giver.rank} sent", math.inf
    return None


def _scattered(members: Sequence[_Member], share: float) -> tuple[_Member, str, float] | None:
    """Hold what each rank gets against the sum of what all ranks gave for it, a tensor each."""
    if any(len(one.given) != len(members) or len(one.made) != 1 for one in members):
        return None
    for place, member in enumerate(members):
        for_it = [_Member(one.call, one.rank, [one.given[place]], member.made) for one in members]
        wrong = _sum(for_it, share)
        if wrong is not None:
            _, which, error = wrong
            return member, which, error
    return None


def _exchanged(members: Sequence[_Member]) -> tuple[_Member, str, float] | None:
    """Hold what each rank gets of each other against what that one gave for it: the same bits."""
    if any(len(one.given) != len(members) or len(one.made) != len(members) for one in members):
        return None
    for place, member in enumerate(members):
        for giver, row in zip(members, member.made):
            given = giver.given[place]
            if None not in (row["hash"], given["hash"]) and row["hash"] != given["hash"]:
                return member, f"rank {member.rank} has not what rank {giver.rank} sent", math.inf
    return None


def _total(members: Sequence[_Member], share: float) -> tuple[_Member, str, float] | None:
    """Hold the sum of all that was made against that of all that was given, where parts have no sketch of their own."""
    given, made = [one.given[0] for one in members if one.given], [one.made[0] for one in members if one.made]
    if len(given) < len(members) or len(made) < len(members) or not _is_clean((*given, *made)):
        return None
    dtype = given[0]["dtype"]
    if not unit_roundoff(dtype):
        return None
    size = share * sum(row["l2"] for row in given)
    off = sum(map(_amount, made)) - share * sum(map(_amount, given))
    explained = _SAME * (len(members) * unit_roundoff(dtype) + 16 * SINGLE) * size
    if abs(off) <= explained:
        return None
    for member in members:
        part = share * _amount(member.given[0])
        if abs(off + part) <= explained:
            return member, f"the part of rank {member.rank} is missing", abs(off) / size
        if abs(off - part) <= explained:
            return member, f"the part of rank {member.rank} counts twice", abs(off) / size
    return members[0], "it is not their sum", abs(off) / size


def _conserved(givers: Sequence[_Member], takers: Sequence[_Member]) -> tuple[_Member, str, float] | None:
    """Hold the sum and the square of what was moved about against those of what was given."""
    given, made = [row for one in givers for row in one.given], [row for one in takers for row in one.made]
    if not given or not made or not _is_clean((*given, *made)) or not unit_roundoff(given[0]["dtype"]):
        return None
    size = sum(row["l2"] for row in given)
    square = sum(row["l2"] ** 2 for row in given)
    sums = abs(sum(map(_amount, made)) - sum(map(_amount, given)))
    squares = abs(sum(row["l2"] ** 2 for row in made) - square)
    rounding = 16 * SINGLE
    if sums <= _SAME * rounding * size and squares <= _SAME * rounding * square:
        return None
    return takers[0], "it is not what was sent", max(sums / size, math.sqrt(squares / square)) if size else math.inf


def _amount(row: TableRow) -> float:
    """Return the sum of a tensor's elements."""
    return float(row["mean"]) * math.prod(row["shape"])


def _gathered(members: Sequence[_Member]) -> tuple[_Member, str, float] | None:
    for member in members:
        if len(member.made) != len(members) or any(len(one.given) != 1 for one in members):
            return None
        for giver, row in zip(members, member.made):
            given = giver.given[0]
            if None not in (row["hash"], given["hash"]) and row["hash"] != given["hash"]:
                return member, f"rank {member.rank} has not what rank {giver.rank} sent", math.inf
    return None
