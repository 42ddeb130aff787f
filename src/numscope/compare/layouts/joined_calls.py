"""Joins the call trees of all lanes to one: a call of the whole job has the calls of the lanes as its members.

Children of joined calls are joined in order, by their operator; calls of one lane alone stay as they are: another stage's
modules, another rank's expert. A stage's backward calls come before those of the stages before it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from numscope.compare.align.sequence import best_path
from numscope.compare.layouts.lanes import Lane, by_stage

_MOST = 4000  # children that are joined by their longest common sequence; of more, only equal beginnings and ends are
_Key = tuple[int, ...]
_LINKED = 6  # numbers in the key of a backward call whose forward call is known


@dataclass
class JoinedCall:
    """One call of the whole job."""

    key: _Key
    parent: int
    late: bool
    members: dict[int, int] = field(default_factory=dict)  # row of the call by lane
    children: list[int] = field(default_factory=list)


def joined_calls(lanes: Sequence[Lane]) -> list[JoinedCall]:
    """Return the calls of the whole job in the order in which they run; `parent` is a place in this list."""
    join = _Join(lanes)
    for backward in (False, True):
        for number in by_stage(lanes, backward=backward):
            join.add(number, backward)
    return join.in_order()


class _Join:
    """The tree that grows lane by lane."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self.lanes = lanes
        self.nodes: list[JoinedCall] = []
        self.roots: tuple[list[int], list[int]] = ([], [])  # before the first backward call, and from it on
        self.node_of: list[dict[int, int]] = [{} for _ in lanes]
        self._children: list[dict[int, list[int]]] = []
        for lane in lanes:
            below: dict[int, list[int]] = {}
            there = set(lane.rows.tolist())
            for row in lane.rows.tolist():
                parent = int(lane.side.calls.parent[row])
                below.setdefault(parent if parent in there else -1, []).append(row)
            self._children.append(below)

    def add(self, number: int, backward: bool) -> None:
        """Join the outermost calls of a lane, and all that they enclose."""
        late = self.lanes[number].late
        rows = [row for row in self._children[number].get(-1, ()) if bool(late[row]) == backward]
        self._join(number, rows, self.roots[backward], -1, backward)

    def _join(self, number: int, rows: list[int], into: list[int], parent: int, late: bool) -> None:
        keys = self._keys(number, rows)
        partner = _partners([self.nodes[node].key for node in into], keys)
        before: dict[int, list[int]] = {}  # new calls, by the place of the next one that is there already
        waiting: list[int] = []
        for place, row in enumerate(rows):
            at = partner.get(place)
            if at is None:
                waiting.append(self._new(keys[place], parent, late))
                self._enter(number, waiting[-1], row)
            else:
                self._enter(number, into[at], row)
                before.setdefault(at, []).extend(waiting)
                waiting = []
        merged = [node for at, old in enumerate(into) for node in (*before.get(at, ()), old)] + waiting
        into[:] = merged
        for row in rows:
            node = self.node_of[number][row]
            if below := self._children[number].get(row):
                self._join(number, below, self.nodes[node].children, node, late)

    def _new(self, key: _Key, parent: int, late: bool) -> int:
        self.nodes.append(JoinedCall(key, parent, late))
        return len(self.nodes) - 1

    def _enter(self, number: int, node: int, row: int) -> None:
        self.nodes[node].members[number] = row
        self.node_of[number][row] = node

    def _keys(self, number: int, rows: list[int]) -> list[_Key]:
        """Return what calls are joined by: the joined forward call of a backward call, else kind and operator.

        Of two stages only modules, which each may hold a part of, and optimizers are the same call.
        """
        lane, node_of = self.lanes[number], self.node_of[number]
        calls, book = lane.side.calls, lane.side.book
        backward = book.code("backward")
        of_all_stages = [book.code(kind) for kind in ("module", "optimizer")]
        keys: list[_Key] = []
        for row in rows:
            forward = node_of.get(int(calls.forward[row])) if calls.phase[row] == backward else None
            stage = -1 if calls.kind[row] in of_all_stages else lane.stage
            own = (int(calls.kind[row]), int(calls.phase[row]), int(calls.recompute[row]), stage)
            keys.append((*own, -1, forward) if forward is not None else (*own, int(calls.op[row])))
        return keys

    def in_order(self) -> list[JoinedCall]:
        """Return the calls so that each lane's stay in their order, and otherwise in the order of the tree."""
        place: dict[int, int] = {}
        for roots in self.roots:
            stack = roots[::-1]
            while stack:
                node = stack.pop()
                place[node] = len(place)
                stack += self.nodes[node].children[::-1]
        order = self._by_lanes(place) or sorted(place, key=place.__getitem__)
        number = {node: at for at, node in enumerate(order)}
        for call in self.nodes:
            call.parent = number.get(call.parent, -1)
            call.children = [number[child] for child in call.children]
        return [self.nodes[node] for node in order]

    def _by_lanes(self, place: dict[int, int]) -> list[int] | None:
        """Return the calls in an order that keeps that of every lane, None where two lanes contradict each other."""
        after: list[set[int]] = [set() for _ in self.nodes]
        waits = [0] * len(self.nodes)
        for lane, node_of in zip(self.lanes, self.node_of):
            nodes = [node_of[row] for row in lane.rows.tolist()]
            for one, other in pairwise(nodes):
                if other not in after[one]:
                    after[one].add(other)
                    waits[other] += 1
        ready = [(place[node], node) for node in place if not waits[node]]
        heapq.heapify(ready)
        order: list[int] = []
        while ready:
            _, node = heapq.heappop(ready)
            order.append(node)
            for other in after[node]:
                waits[other] -= 1
                if not waits[other]:
                    heapq.heappush(ready, (place[other], other))
        return order if len(order) == len(place) else None


def _partners(there: list[_Key], new: list[_Key]) -> dict[int, int]:
    """Return the place of the call that is there already for each new one that is the same call, by its place."""
    partner = {place: at for at, place in _common(there, new)}
    if len(partner) < min(len(there), len(new)):  # backward calls need not come in the same order
        taken = set(partner.values())
        free = {key: at for at, key in enumerate(there) if at not in taken and len(key) == _LINKED}
        for place, key in enumerate(new):
            if place not in partner and (at := free.pop(key, None)) is not None:
                partner[place] = at
    return partner


def _common(one: list[_Key], other: list[_Key]) -> list[tuple[int, int]]:
    """Return the places of two sequences that belong together, in order."""
    if one == other:
        return [(place, place) for place in range(len(one))]
    head = _equal(one, other, lambda place: place)
    tail = _equal(one[head:], other[head:], lambda place: -1 - place)
    rest_one, rest_other = one[head : len(one) - tail], other[head : len(other) - tail]
    pairs = [(place, place) for place in range(head)]
    if rest_one and rest_other and max(len(rest_one), len(rest_other)) <= _MOST:
        numbers: dict[_Key, int] = {}
        a, b = (np.array([numbers.setdefault(key, len(numbers)) for key in keys]) for keys in (rest_one, rest_other))
        got_a, got_b = best_path((a[:, None] == b[None, :]).astype(np.int32))
        pairs += [(head + i, head + j) for i, j in zip(got_a.tolist(), got_b.tolist())]
    return pairs + [(len(one) - tail + place, len(other) - tail + place) for place in range(tail)]


def _equal(one: list[_Key], other: list[_Key], at: Callable[[int], int]) -> int:
    count = 0
    while count < min(len(one), len(other)) and one[at(count)] == other[at(count)]:
        count += 1
    return count
