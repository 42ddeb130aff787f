"""One step of a whole job as one side of a comparison: its calls are those of all ranks joined, its tensors the wholes.

What the pieces of a tensor make is known only beside the tensor of the other run (fitting.py); until then a tensor whose
pieces differ shows the first of them, and no sketch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from numscope.compare.layouts.joined_calls import JoinedCall, joined_calls
from numscope.compare.layouts.lanes import Lane, lanes_of, micro_batches
from numscope.compare.load.side import Calls, Floats, Ints, Side, Slots, Tensors
from numscope.compare.load.sources import RANK_STACKS

_Element = TypeVar("_Element", bound=np.generic)
_HASH = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Member:
    """A call of one lane."""

    rank: int
    row: int  # in the side of its rank


@dataclass(frozen=True)
class WholeStep(Side):
    """One step of all ranks of a run; `rank` is the first of them."""

    ranks: tuple[Side, ...] = field(default=(), repr=False)
    rank_of_call: Ints = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)  # which is shown
    members: tuple[tuple[Member, ...], ...] = field(default=(), repr=False)  # of each call
    pool: Tensors | None = field(default=None, repr=False)  # the tensors of all ranks
    rank_of_piece: Ints = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)
    pieces: tuple[tuple[int, ...], ...] = field(default=(), repr=False)  # rows of the pool, of each tensor
    rank_of_tensor: Ints = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)  # that is wrong, or -1
    # The norms of what was added to make each tensor, 0 where nothing was: rounding is relative to these.
    summands: Floats = field(default_factory=lambda: np.zeros(0), repr=False)

    def blamed_rank(self, call: int, slot: str = "") -> int:
        """Return the rank on which something is wrong at a call: that of a piece unlike the others', else the call's own."""
        here = range(int(self.slots.start[call]), int(self.slots.start[call + 1]))
        words = [self.book.words[self.slots.slot[row]] for row in here]
        rows = [row for row, word in zip(here, words) if word == slot]
        rows += [row for row, word in zip(here, words) if word.startswith("output") and word != slot]
        for row in rows:
            tensor = int(self.slots.tensor[row])
            if tensor >= 0 and self.rank_of_tensor[tensor] >= 0:
                return int(self.rank_of_tensor[tensor])
        return int(self.rank_of_call[call])


def whole_steps(sides_a: Sequence[Side], sides_b: Sequence[Side]) -> tuple[WholeStep, WholeStep]:
    """Return one step of two jobs, each whole; micro-batches are joined where the two jobs have not the same number."""
    counts = [{micro_batches(side) for side in sides} for sides in (sides_a, sides_b)]
    split = counts[0] != counts[1]
    return _whole_step(lanes_of(sides_a, split), sides_a), _whole_step(lanes_of(sides_b, split), sides_b)


def _whole_step(lanes: list[Lane], sides: Sequence[Side]) -> WholeStep:
    calls = joined_calls(lanes)
    first = sides[0]
    pool, offset = _pool([side.tensors for side in sides])
    places = {side.rank: number for number, side in enumerate(sides)}
    rank_of_piece = np.concatenate([np.full(len(side.tensors.hash), side.rank) for side in sides]).astype(np.int64)
    shown = [_shown(lanes, call) for call in calls]
    slots, pieces = _Slots(lanes, offset, places).of(calls)
    return WholeStep(
        first.step,
        first.rank,
        _calls(lanes, calls, shown),
        slots,
        _first_pieces(pool, pieces),
        first.book,
        tuple(sides),
        np.array([lanes[number].rank for number in shown], np.int64),
        tuple(tuple(Member(lanes[number].rank, row) for number, row in call.members.items()) for call in calls),
        pool,
        rank_of_piece,
        tuple(pieces),
        np.full(len(pieces), -1),
        np.zeros(len(pieces)),
    )


def _shown(lanes: list[Lane], call: JoinedCall) -> int:
    """Return the lane whose call is shown for a joined call: the first, of a pipeline's the first stage's."""
    return min(call.members, key=lambda number: (lanes[number].stage, number))


def _pool(tensors: list[Tensors]) -> tuple[Tensors, list[int]]:
    """Return the tensors of all ranks in one table, and where each rank's begin."""
    begins = np.cumsum([0, *(len(part.hash) for part in tensors)])
    return taken(tensors, np.arange(begins[-1])), begins[:-1].tolist()


def taken(parts: list[Tensors], rows: Ints) -> Tensors:
    """Return some rows of several tables of tensors, as if these were one."""

    def column(columns: list[NDArray[_Element]]) -> NDArray[_Element]:
        return np.concatenate(columns)[rows]

    def words(columns: list[list[str]]) -> list[str]:
        joined = [word for column in columns for word in column]
        return [joined[row] for row in rows.tolist()]

    return Tensors(
        dtype=column([part.dtype for part in parts]),
        shape=column([part.shape for part in parts]),
        elements=column([part.elements for part in parts]),
        nan=column([part.nan for part in parts]),
        posinf=column([part.posinf for part in parts]),
        neginf=column([part.neginf for part in parts]),
        zero=column([part.zero for part in parts]),
        min=column([part.min for part in parts]),
        max=column([part.max for part in parts]),
        mean=column([part.mean for part in parts]),
        l2=column([part.l2 for part in parts]),
        hash=column([part.hash for part in parts]),
        measured=column([part.measured for part in parts]),
        sketch=column([part.sketch for part in parts]),
        sketched=column([part.sketched for part in parts]),
        kept=column([part.kept for part in parts]),
        sampled=column([part.sampled for part in parts]),
        shard=words([part.shard for part in parts]),
        key=words([part.key for part in parts]),
        scale=column([part.scale for part in parts]),
    )


def _first_pieces(pool: Tensors, pieces: list[tuple[int, ...]]) -> Tensors:
    """Return the tensors of a job before it is known what their pieces make."""
    tensors = taken([pool], np.array([rows[0] for rows in pieces], np.int64))
    hashes, unlike = tensors.hash.copy(), np.zeros(len(pieces), np.bool_)
    for number, rows in enumerate(pieces):
        if not alike(pool, rows):
            unlike[number] = True
            mixed = np.uint64(0)
            for row in rows:
                mixed = (mixed ^ pool.hash[row]) * _HASH
            hashes[number] = mixed
    return replace(
        tensors,
        hash=hashes,
        sketched=tensors.sketched & ~unlike,
        kept=tensors.kept & ~unlike,
        sampled=tensors.sampled & ~unlike,
    )


def alike(pool: Tensors, rows: Sequence[int]) -> bool:
    """Tell whether pieces are the same to the bit."""
    first, *others = rows
    return all(
        pool.hash[row] == pool.hash[first]
        and pool.dtype[row] == pool.dtype[first]
        and pool.shape[row] == pool.shape[first]
        and bool(pool.measured[row]) == bool(pool.measured[first])
        for row in others
    )


def _calls(lanes: list[Lane], calls: list[JoinedCall], shown: list[int]) -> Calls:
    rows = [call.members[number] for call, number in zip(calls, shown)]

    def column(name: str) -> Ints:
        return np.array([getattr(lanes[n].side.calls, name)[row] for n, row in zip(shown, rows)], np.int64)

    node_of = [dict[int, int]() for _ in lanes]
    for at, call in enumerate(calls):
        for number, row in call.members.items():
            node_of[number][row] = at
    forward = [
        node_of[n].get(int(lanes[n].side.calls.forward[row]), -1) if lanes[n].side.calls.forward[row] >= 0 else -1
        for n, row in zip(shown, rows)
    ]
    parent = np.array([call.parent for call in calls], np.int64)
    stacks = column("stack")
    ranks = np.array([lanes[number].rank for number in shown], np.int64)
    return Calls(
        order=np.arange(len(calls)),
        parent=parent,
        forward=np.array(forward, np.int64),
        kind=column("kind"),
        phase=column("phase"),
        module=column("module"),
        module_class=column("module_class"),
        op=column("op"),
        arguments=column("arguments"),
        stack=np.where(stacks >= 0, stacks + ranks * RANK_STACKS, stacks),
        recompute=column("recompute").astype(np.bool_),
        failed=column("failed").astype(np.bool_),
        children=np.bincount(parent[parent >= 0], minlength=len(calls)).astype(np.int64),
        names=pa.array([lanes[n].side.calls.name(row) for n, row in zip(shown, rows)], pa.string()),
    )


class _Slots:
    """Collects the pieces of each slot of the joined calls."""

    def __init__(self, lanes: list[Lane], offset: list[int], places: dict[int, int]) -> None:
        self.lanes, self.offset, self.places = lanes, offset, places
        self.rows_of: dict[tuple[int, ...], int] = {}

    def of(self, calls: list[JoinedCall]) -> tuple[Slots, list[tuple[int, ...]]]:
        """Return the slots of the joined calls, and the pieces of each of their tensors."""
        columns: list[tuple[int, int, int, int]] = []
        for at, call in enumerate(calls):
            for slot, held in self._held(call).items():
                lacking = [note for tensor, note in held if tensor < 0]
                if lacking:
                    columns.append((at, slot, -1, lacking[0]))
                else:
                    pieces = tuple(dict.fromkeys(tensor for tensor, _ in held))
                    columns.append((at, slot, self.rows_of.setdefault(pieces, len(self.rows_of)), -1))
        call_column, slot_column, tensor, note = np.array(columns, np.int64).reshape(-1, 4).T
        start = np.searchsorted(call_column, np.arange(len(calls) + 1))
        return Slots(call_column, slot_column, tensor, start, note), list(self.rows_of)

    def _held(self, call: JoinedCall) -> dict[int, list[tuple[int, int]]]:
        """Return (row of the pool or -1, note) of each lane that has a slot, by slot."""
        stages = {self.lanes[number].stage for number in call.members}
        first = self.lanes[next(iter(call.members))]
        words, calls = first.side.book.words, first.side.calls
        row = next(iter(call.members.values()))
        kind = words[calls.kind[row]]
        is_backward = words[calls.phase[row]] == "backward"
        held: dict[int, list[tuple[int, int]]] = {}
        for number in sorted(call.members):
            lane, row = self.lanes[number], call.members[number]
            slots, own = lane.side.slots, dict[int, tuple[int, int]]()
            for place in range(int(slots.start[row]), int(slots.start[row + 1])):
                word = words[slots.slot[place]]
                head = word.partition(".")[0]
                if kind == "module" and head == "parameters_grad" and lane.is_split:
                    continue  # what all micro-batches so far have added: a part of another kind than the others
                if len(stages) > 1 and kind != "optimizer" and head in ("input", "kwargs", "output"):
                    enters = kind == "data" or (head != "output") != is_backward
                    if lane.stage != (min(stages) if enters else max(stages)):
                        continue
                tensor = int(slots.tensor[place])
                at = self.offset[self.places[lane.rank]] + tensor if tensor >= 0 else -1
                own[int(slots.slot[place])] = at, int(slots.note[place])
            for slot, piece in own.items():
                held.setdefault(slot, []).append(piece)
        return held
