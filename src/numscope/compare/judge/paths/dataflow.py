"""Where each tensor of a step came from: which call made it, and what stands between two tensors and what made them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from numscope.compare.align.slots import INPUT, OUTPUT, STATE, SlotPairs, slot_roles
from numscope.compare.load.side import Flags, Floats, Ints, Side

_REGION = 400  # a region of more unmatched calls than this is not searched further
_OTHER = 0.02  # relative: parameters that are further apart may be two


@dataclass(frozen=True)
class Flow:
    """The producer of every tensor of a side: the first inner-most call that has it as output, -1 for none."""

    producer: Ints
    same: Ints  # the tensor that stands for this one: itself, or one of the same bits whose maker is known
    side: Side
    role: Ints

    def inputs(self, call: int) -> list[int]:
        """Return the tensors given to a call."""
        here = slice(self.side.slots.start[call], self.side.slots.start[call + 1])
        rows = self.side.slots.tensor[here][self.role[here] != OUTPUT]
        return [int(self.same[row]) for row in rows if row >= 0]


@dataclass(frozen=True)
class Region:
    """Unmatched calls between a tensor and the nearest tensors that matched calls made."""

    calls: tuple[int, ...]
    frontier: tuple[int, ...]  # tensors at the region's entrance, by whom they were made is known
    sources: tuple[int, ...]  # tensors at the entrance that no recorded call made
    complete: bool


def flow(side: Side) -> Flow:
    """Return where each tensor of a side was made."""
    role = slot_roles(side, side.calls.kind == side.book.code("optimizer"))
    producer = np.full(len(side.tensors.hash), -1)
    made = np.flatnonzero((role == OUTPUT) & (side.slots.tensor >= 0))
    # The first call that has a tensor as output made it; among nested ones the inner-most, which ends first.
    inner = side.calls.children[side.slots.call[made]] == 0
    for chosen in (made[~inner], made[inner]):
        reverse = chosen[::-1]
        producer[side.slots.tensor[reverse]] = side.slots.call[reverse]
    given = np.flatnonzero((role != OUTPUT) & (side.slots.tensor >= 0))
    first_use = np.full(len(side.tensors.hash), len(side.calls))
    np.minimum.at(first_use, side.slots.tensor[given], side.slots.call[given])
    # A call that returns what it was given, unchanged, did not make it.
    returned = (producer >= 0) & (first_use <= producer) & (side.calls.children[np.maximum(producer, 0)] == 0)
    producer[returned & (first_use == producer)] = -1
    early = returned & (first_use < producer)
    producer[early] = -1
    return Flow(producer, _by_content(side, producer, first_use), side, role)


def _by_content(side: Side, producer: Ints, first_use: Ints) -> Ints:
    """Return for each tensor that nothing made the one with the same bits that was made before its first use.

    Capture cannot always tell that two tensors are one: a collective that writes to its argument leaves no trace.
    """
    tensors = side.tensors
    same = np.arange(len(producer))
    telling = tensors.measured & (tensors.zero < tensors.elements) & (tensors.elements > 0)
    orphans = np.flatnonzero((producer < 0) & telling & (first_use < len(side.calls)))
    made = np.flatnonzero((producer >= 0) & telling)
    if not len(orphans) or not len(made):
        return same
    order = made[np.argsort(producer[made], kind="stable")]
    makers: dict[tuple[int, int, int], int] = {}
    wanted = np.sort(tensors.hash[orphans])
    place = np.searchsorted(wanted, tensors.hash[order]).clip(max=len(wanted) - 1)
    for tensor in order[wanted[place] == tensors.hash[order]].tolist():
        makers.setdefault((int(tensors.hash[tensor]), int(tensors.dtype[tensor]), int(tensors.shape[tensor])), tensor)
    for tensor in orphans.tolist():
        twin = makers.get((int(tensors.hash[tensor]), int(tensors.dtype[tensor]), int(tensors.shape[tensor])))
        if twin is not None and producer[twin] < first_use[tensor]:
            producer[tensor], same[tensor] = producer[twin], twin
    return same


def other_sources(ahead: Flow, behind: Flow, slots: SlotPairs, error: Floats) -> Flags:
    """Return which slot pairs hold tensors that nothing recorded made, of other shapes and values, or two parameters of which
    the other side has one elsewhere: other weights."""
    sources = (ahead.producer[slots.a] < 0) & (behind.producer[slots.b] < 0) & (error != 0)
    unlike = ahead.side.tensors.shape[slots.a] != behind.side.tensors.shape[slots.b]
    doubtful = np.flatnonzero(sources & ~unlike & (slots.role == INPUT) & (error > _OTHER))
    if len(doubtful):
        mine, theirs = _parameters(ahead), _parameters(behind)
        every = (
            {label for labels in mine.values() for label in labels},
            {x for labels in theirs.values() for x in labels},
        )
        for row in doubtful.tolist():
            one = mine.get(_content(ahead.side, int(slots.a[row])), set[str]())
            two = theirs.get(_content(behind.side, int(slots.b[row])), set[str]())
            unlike[row] = bool(one and two) and one.isdisjoint(two) and bool(one & every[1] or two & every[0])
    return np.asarray(sources & unlike)


def _parameters(flow: Flow) -> dict[tuple[float, ...], set[str]]:
    """Return the names of a side's parameters, as modules hold them, by their content."""
    side, found = flow.side, dict[tuple[float, ...], set[str]]()
    held = (
        (flow.role == STATE) & (side.calls.kind[side.slots.call] == side.book.code("module")) & (side.slots.tensor >= 0)
    )
    for row in np.flatnonzero(held).tolist():
        path = side.book.words[side.calls.module[side.slots.call[row]]]
        label = f"{path}.{side.book.words[side.slots.slot[row]].partition('.')[2]}"
        found.setdefault(_content(side, int(side.slots.tensor[row])), set()).add(label)
    return found


def _content(side: Side, tensor: int) -> tuple[float, ...]:
    """Return what no layout of a tensor changes, and hardly another tensor has."""
    tensors = side.tensors
    return tuple(
        float(column[tensor]) for column in (tensors.elements, tensors.l2, tensors.mean, tensors.min, tensors.max)
    )


def region(flow: Flow, tensor: int, partner: Ints, ends: frozenset[int] = frozenset()) -> Region:
    """Return the unmatched calls that lead to a tensor, and the tensors at which matched calls take over, or in `ends`."""
    calls: dict[int, None] = {}
    frontier: dict[int, None] = {}
    sources: dict[int, None] = {}
    tensor = int(flow.same[tensor])
    stack, seen = [tensor], {tensor}
    while stack and len(calls) < _REGION:
        here = stack.pop()
        maker = int(flow.producer[here])
        if maker < 0:
            sources[here] = None
        elif partner[maker] >= 0 or here in ends:
            frontier[here] = None
        elif maker not in calls:
            calls[maker] = None
            for given in flow.inputs(maker):
                if given not in seen:
                    seen.add(given)
                    stack.append(given)
    return Region(tuple(sorted(calls)), tuple(frontier), tuple(sources), not stack)


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
        rows = slice(slots.start[here], slots.start[here + 1])
        made = slots.tensor[rows][flow.role[rows] == OUTPUT]
        for tensor in made[made >= 0].tolist():
            for user in users.get(int(same[tensor]), ()):
                if user > here and user not in seen:
                    seen.add(user)
                    stack.append(user)
    return False
