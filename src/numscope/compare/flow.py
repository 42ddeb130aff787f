"""Where each tensor of a step came from: which call made it, and what stands between two tensors and what made them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from numscope.compare.side import Ints, Side
from numscope.compare.slots import OUTPUT, slot_roles

_REGION = 400  # a region of more unmatched calls than this is not searched further


@dataclass(frozen=True)
class Flow:
    """The producer of every tensor of a side: the first inner-most call that has it as output, -1 for none."""

    producer: Ints
    side: Side
    role: Ints

    def inputs(self, call: int) -> list[int]:
        """Return the tensors given to a call."""
        here = slice(self.side.slots.start[call], self.side.slots.start[call + 1])
        rows = self.side.slots.tensor[here][self.role[here] != OUTPUT]
        return [int(row) for row in rows if row >= 0]


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
    return Flow(producer, side, role)


def region(flow: Flow, tensor: int, partner: Ints) -> Region:
    """Return the unmatched calls that lead to a tensor, and the tensors at which matched calls take over."""
    calls: dict[int, None] = {}
    frontier: dict[int, None] = {}
    sources: dict[int, None] = {}
    stack, seen = [tensor], {tensor}
    while stack and len(calls) < _REGION:
        here = stack.pop()
        maker = int(flow.producer[here])
        if maker < 0:
            sources[here] = None
        elif partner[maker] >= 0:
            frontier[here] = None
        elif maker not in calls:
            calls[maker] = None
            for given in flow.inputs(maker):
                if given not in seen:
                    seen.add(given)
                    stack.append(given)
    return Region(tuple(sorted(calls)), tuple(frontier), tuple(sources), not stack)
