"""Where each tensor of a step came from: which call produced it, and which calls stand between it and others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from numscope.compare.align.slots import INPUT, OUTPUT, STATE, SlotPairs, slot_roles
from numscope.compare.load.side import Flags, Floats, Ints, Side
from numscope.core.names import label_of

_MOST_CALLS = 400  # a region of more calls than this is not searched further
_OTHER_PARAMETER = 0.02  # relative: parameters that are further apart may be two
_Content = tuple[float, ...]


@dataclass(frozen=True)
class Flow:
    """The producer of every tensor of a side: the first innermost call that has it as output, -1 for none."""

    producer: Ints
    same: Ints  # the tensor that stands for this one: itself, or one of the same bits whose producer is known
    side: Side
    role: Ints  # of each slot

    def inputs(self, call: int) -> list[int]:
        """Return the tensors given to a call."""
        here = slice(self.side.slots.start[call], self.side.slots.start[call + 1])
        rows = self.side.slots.tensor[here][self.role[here] != OUTPUT]
        return [int(self.same[row]) for row in rows if row >= 0]

    def outputs(self, call: int) -> list[int]:
        """Return the tensors that a call has as outputs."""
        here = slice(self.side.slots.start[call], self.side.slots.start[call + 1])
        rows = self.side.slots.tensor[here][self.role[here] == OUTPUT]
        return [int(self.same[row]) for row in rows if row >= 0]


@dataclass(frozen=True)
class Region:
    """The calls without partner between a tensor and the nearest tensors that corresponding calls made."""

    calls: tuple[int, ...]
    frontier: tuple[int, ...]  # tensors at the region's entrance that corresponding calls made
    sources: tuple[int, ...]  # tensors at the entrance that no recorded call made

    @property
    def entrance(self) -> tuple[int, ...]:
        return (*self.frontier, *self.sources)


class RegionPair(NamedTuple):
    """The regions before the two tensors of a slot, one on each side."""

    target: Region
    reference: Region


def flow(side: Side) -> Flow:
    """Return where each tensor of a side was made."""
    role = slot_roles(side, side.calls.kind == side.book.code("optimizer"))
    producer = np.full(len(side.tensors.hash), -1)
    is_data = (side.calls.kind == side.book.code("data"))[side.slots.call]
    made = np.flatnonzero((role == OUTPUT) & (side.slots.tensor >= 0) & ~is_data)
    # The first call that has a tensor as output made it; among nested ones the inner-most, which ends first.
    inner = side.calls.children[side.slots.call[made]] == 0
    for chosen in (made[~inner], made[inner]):
        reverse = chosen[::-1]
        producer[side.slots.tensor[reverse]] = side.slots.call[reverse]
    given = np.flatnonzero(((role != OUTPUT) | is_data) & (side.slots.tensor >= 0))
    first_use = np.full(len(side.tensors.hash), len(side.calls))
    np.minimum.at(first_use, side.slots.tensor[given], side.slots.call[given])
    # A call that returns what it was given, unchanged, did not make it.
    returned = (producer >= 0) & (first_use <= producer) & (side.calls.children[np.maximum(producer, 0)] == 0)
    producer[returned] = -1
    same = _by_content(side, producer, first_use)
    # What enters a model is data only where nothing made the same bits before: a stage is given what a collective brings.
    entering = np.flatnonzero(is_data & (side.slots.tensor >= 0))[::-1]
    entering = entering[producer[side.slots.tensor[entering]] < 0]
    producer[side.slots.tensor[entering]] = side.slots.call[entering]
    return Flow(producer, same, side, role)


def _by_content(side: Side, producer: Ints, first_use: Ints) -> Ints:
    """Return for each tensor, where nothing made it, the one with the same bits that was made before its first use.

    Capture cannot always tell that two tensors are one: a collective that writes to its argument leaves no trace.
    """
    tensors = side.tensors
    same = np.arange(len(producer))
    telling = tensors.measured & (tensors.zero < tensors.elements) & (tensors.elements > 0)  # not all zero
    without = np.flatnonzero((producer < 0) & telling & (first_use < len(side.calls)))
    made = np.flatnonzero((producer >= 0) & telling)
    if not len(without) or not len(made):
        return same
    order = made[np.argsort(producer[made], kind="stable")]
    by_content: dict[tuple[int, int, int], int] = {}
    wanted = np.sort(tensors.hash[without])
    place = np.searchsorted(wanted, tensors.hash[order]).clip(max=len(wanted) - 1)
    for tensor in order[wanted[place] == tensors.hash[order]].tolist():
        by_content.setdefault(
            (int(tensors.hash[tensor]), int(tensors.dtype[tensor]), int(tensors.shape[tensor])), tensor
        )
    for tensor in without.tolist():
        same_bits = by_content.get((int(tensors.hash[tensor]), int(tensors.dtype[tensor]), int(tensors.shape[tensor])))
        if same_bits is not None and producer[same_bits] < first_use[tensor]:
            producer[tensor], same[tensor] = producer[same_bits], same_bits
    return same


def unrelated_sources(target: Flow, reference: Flow, slots: SlotPairs, error: Floats) -> Flags:
    """Return which slot pairs hold two tensors that nothing recorded made and that are not one tensor in two runs.

    They differ in shape and values, or are two parameters, of which the other side has one elsewhere: other weights.
    """
    sources = (target.producer[slots.a] < 0) & (reference.producer[slots.b] < 0) & (error != 0)
    unrelated = target.side.tensors.shape[slots.a] != reference.side.tensors.shape[slots.b]
    doubtful = np.flatnonzero(sources & ~unrelated & (slots.role == INPUT) & (error > _OTHER_PARAMETER))
    if len(doubtful):
        names_a, names_b = _parameter_names(target), _parameter_names(reference)
        every_a, every_b = (frozenset[str]().union(*names.values()) for names in (names_a, names_b))
        for row in doubtful.tolist():
            own = names_a.get(_content(target.side, int(slots.a[row])), set[str]())
            others = names_b.get(_content(reference.side, int(slots.b[row])), set[str]())
            elsewhere = bool(own & every_b or others & every_a)
            unrelated[row] = bool(own and others) and own.isdisjoint(others) and elsewhere
    return np.asarray(sources & unrelated)


def _parameter_names(flow: Flow) -> dict[_Content, set[str]]:
    """Return the names of a side's parameters, as modules hold them, by their content."""
    side, slots = flow.side, flow.side.slots
    names: dict[_Content, set[str]] = {}
    by_module = side.calls.kind[slots.call] == side.book.code("module")
    for row in np.flatnonzero((flow.role == STATE) & by_module & (slots.tensor >= 0)).tolist():
        path = side.book.words[side.calls.module[slots.call[row]]]
        name = f"{path}.{label_of(side.book.words[slots.slot[row]])}"
        names.setdefault(_content(side, int(slots.tensor[row])), set()).add(name)
    return names


def _content(side: Side, tensor: int) -> _Content:
    """Return statistics that no layout of a tensor changes, and that hardly another tensor shares."""
    tensors = side.tensors
    return tuple(
        float(column[tensor]) for column in (tensors.elements, tensors.l2, tensors.mean, tensors.min, tensors.max)
    )


def region(flow: Flow, tensor: int, partner: Ints, ends: frozenset[int] = frozenset()) -> Region:
    """Return the calls without partner that lead to a tensor, back to tensors in `ends` or that corresponding calls made."""
    calls: dict[int, None] = {}
    frontier: dict[int, None] = {}
    sources: dict[int, None] = {}
    tensor = int(flow.same[tensor])
    stack, seen = [tensor], {tensor}
    while stack and len(calls) < _MOST_CALLS:
        here = stack.pop()
        producer = int(flow.producer[here])
        if producer < 0:
            sources[here] = None
        elif partner[producer] >= 0 or here in ends:
            frontier[here] = None
        elif producer not in calls:
            calls[producer] = None
            for given in flow.inputs(producer):
                if given not in seen:
                    seen.add(given)
                    stack.append(given)
    return Region(tuple(sorted(calls)), tuple(frontier), tuple(sources))


def leads_to(flow: Flow, call: int, ends: frozenset[int]) -> bool:
    """Return whether what a call made reaches one of the calls `ends`, or it is one of them."""
    slots, same = flow.side.slots, flow.same
    users: dict[int, list[int]] = {}
    given = np.flatnonzero((flow.role != OUTPUT) & (slots.tensor >= 0))
    for tensor, user in zip(same[slots.tensor[given]].tolist(), slots.call[given].tolist()):
        users.setdefault(tensor, []).append(user)
    stack, seen = [call], {call}
    while stack:
        here = stack.pop()
        if here in ends:
            return True
        for tensor in flow.outputs(here):
            for user in users.get(tensor, ()):
                if user > here and user not in seen:
                    seen.add(user)
                    stack.append(user)
    return False
