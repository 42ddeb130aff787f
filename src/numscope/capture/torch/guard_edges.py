"""Backward of modules, where calls inside them are not watched: the gradients on the edges into and out of each.

As capture sees them (backward.py), but each contribution to an input's gradient is looked at by itself: nothing is added
up for the guard.
"""

from __future__ import annotations

from typing import Any

import torch

from numscope.capture.torch.flags import is_finite
from numscope.capture.torch.guard_calls import Item, Seen

Tensor = torch.Tensor
_LEAF = 2**64 - 1  # the sequence number of AccumulateGrad
_KEY = "numscope.guard.module"


class ModuleBackward:
    """The backward part of a module call, at module level: gradients in, gradients out, as capture sees them."""

    __slots__ = ("_guard", "_incoming", "_looks", "_seen", "module", "module_class", "site")

    def __init__(self, guard: Any, seen: Seen) -> None:
        self._guard = guard
        self._seen = seen
        self._incoming: list[Item] = []
        self._looks: list[tuple[str, Any]] = []
        self.module = self.module_class = self.site = -1

    def begin(self) -> int:
        """There is no row to begin."""
        return -1

    def record(self, slot: int, gradient: Tensor) -> None:
        """Take one gradient; what goes out is judged with what came in."""
        guard = self._guard
        name = guard.watch.recorder.strings[slot]
        if guard.is_late(gradient):
            self._record_later(name, gradient)
        elif name.startswith("input"):
            if self._incoming and self._incoming[0].slot == name:
                self._incoming.clear()  # the graph was kept and runs again
            self._incoming.append(guard.now.item(name, gradient)._replace(tensor=None))
        elif not is_finite(gradient):
            made = [guard.now.item(name, gradient)]
            guard.submit(guard.judge.backward, self._seen, list(self._incoming), made, late=False)

    def _record_later(self, name: str, gradient: Tensor) -> None:
        late = self._guard.late
        before = late.held
        look = late.gradient(gradient)
        if not name.startswith("input"):
            self._guard.later.backward(self._seen, list(self._looks), [(name, look)], before)
            return
        if self._looks and self._looks[0][0] == name:
            self._looks = []
        self._looks.append((name, look))


class EdgeHook:
    """What is to be seen when one node has run."""

    __slots__ = ("_guard", "incoming", "outgoing")

    def __init__(self, guard: Any) -> None:
        self._guard = guard
        self.incoming: list[tuple[ModuleBackward, int, int]] = []  # call, output number, slot
        self.outgoing: list[tuple[ModuleBackward, int, int]] = []  # call, edge number, slot

    def __call__(self, outgoing: tuple[Any, ...], incoming: tuple[Any, ...]) -> None:
        guard = self._guard
        if not guard.watch.on or guard.watch.thread.busy:
            return
        with guard.unseen(), torch.no_grad():
            for call, number, slot in self.incoming:
                if number < len(incoming) and incoming[number] is not None:
                    call.record(slot, incoming[number])
            for call, edge, slot in self.outgoing:
                if edge < len(outgoing) and outgoing[edge] is not None:
                    call.record(slot, outgoing[edge])


def attach(guard: Any, call: ModuleBackward, outputs: list[Any], inputs: list[Any], first: int) -> None:
    """Watch the edges of a module that made the nodes from number `first` on; outputs have their gradients' slots."""
    targets = {}
    for slot, node, number, leaf in inputs:
        targets[(id(leaf), -1) if leaf is not None else (id(node), number)] = guard.watch.gradient_slot(slot)
    pending = []
    visited = set()
    for slot, tensor in outputs:
        node = tensor.grad_fn
        if node is not None and first <= node._sequence_nr() < _LEAF:
            _hook(guard, node).incoming.append((call, tensor.output_nr, slot))
            pending.append(node)
            visited.add(node)
    while pending:
        node = pending.pop()
        for edge, (following, number) in enumerate(node.next_functions):
            if following is None:
                continue
            sequence = following._sequence_nr()
            place = (id(following.variable), -1) if sequence == _LEAF else (id(following), number)
            slot = targets.get(place)
            if slot is not None:
                _hook(guard, node).outgoing.append((call, edge, slot))
            elif first <= sequence < _LEAF and following not in visited:
                visited.add(following)
                pending.append(following)


def _hook(guard: Any, node: Any) -> EdgeHook:
    found = node.metadata.get(_KEY)
    if found is None or found._guard is not guard:
        found = node.metadata[_KEY] = EdgeHook(guard)
        node.register_hook(found)
    return found  # type: ignore[no-any-return]
