"""Backward of modules, where calls inside them are not watched: the gradients on the edges into and out of each.

As capture sees them (backward.py), but each contribution to an input's gradient is looked at by itself: nothing is added
up for the guard.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from numscope.capture.torch.guard.calls import Entry, Item, Seen, bytes_of
from numscope.capture.torch.guard.flags import is_finite
from numscope.capture.torch.own_code import OwnCode
from numscope.nonfinite.rule import Counts

Tensor = torch.Tensor
_LEAF = 2**64 - 1  # the sequence number of AccumulateGrad
_KEY = "numscope.guard.module"


class ModuleBackward:
    """The backward part of a module call, at module level: gradients in, gradients out, as capture sees them."""

    __slots__ = ("_entry", "_guard", "_lone", "_looks", "_seen", "_wrong", "module", "module_class", "site")

    def __init__(self, guard: Any, seen: Seen, lone: bool) -> None:
        self._guard = guard
        self._seen = seen
        self._lone = lone  # nothing goes out of it but to parameters: what comes in is judged by itself
        self._entry: Entry | None = None  # of this pass, in the ring, which says how long its gradients are held
        self._wrong: list[Item] = []  # what came in that is not finite; the call itself knows it, too
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
            self._take(name, gradient)
        else:
            self._give(name, gradient)

    def _take(self, name: str, gradient: Tensor) -> None:
        guard = self._guard
        entry = self._entry
        held = (name, gradient.detach(), gradient._version)
        if entry is None or not entry.inputs or entry.inputs[0][0] == name:  # else the graph was kept and runs again
            entry = self._entry = Entry(self._seen, "backward", [held], [], bytes_of(gradient))
            self._seen.came = self._wrong = []
            guard.ring.add(entry)
        elif guard.ring.grow(entry, bytes_of(gradient)):
            entry.inputs.append(held)
        if guard.sound is not None and guard.sound() is gradient:
            return  # as it went out of the call before
        if not is_finite(gradient):
            self._wrong.append(guard.now.item(name, gradient))
            if self._lone:
                guard.submit(guard.judge.backward, self._seen, list(self._wrong), [], late=False)

    def _give(self, name: str, gradient: Tensor) -> None:
        guard = self._guard
        entry = self._entry
        if is_finite(gradient):
            guard.sound = weakref.ref(gradient)
        else:
            given = list(self._wrong) or [Item(slot, 0, Counts(), tensor=tensor) for slot, tensor, _ in self._inputs()]
            guard.submit(guard.judge.backward, self._seen, given, [guard.now.item(name, gradient)], late=False)
        if entry is not None and guard.ring.grow(entry, bytes_of(gradient)):
            entry.outputs.append((name, gradient.detach(), gradient._version))

    def _inputs(self) -> list[Any]:
        return list(self._entry.inputs) if self._entry is not None else []

    def _record_later(self, name: str, gradient: Tensor) -> None:
        late = self._guard.late
        before = late.held
        look = late.gradient(gradient)
        if not name.startswith("input"):
            self._guard.later.backward(self._seen, list(self._looks), [(name, look)], before)
            return
        if not self._looks or self._looks[0][0] == name:
            self._seen.came = self._looks = []
        self._looks.append((name, look))
        if self._lone:
            self._guard.later.backward(self._seen, [(name, look)], [], before)


class EdgeHook:
    """What is to be seen when one node has run."""

    __slots__ = ("_guard", "incoming", "outgoing")

    def __init__(self, guard: Any) -> None:
        self._guard = guard
        self.incoming: list[tuple[ModuleBackward, int, int]] = []  # call, output number, slot
        self.outgoing: list[tuple[ModuleBackward, int, int]] = []  # call, edge number, slot

    def __call__(self, outgoing: tuple[Any, ...], incoming: tuple[Any, ...]) -> None:
        guard = self._guard
        if not guard.watch.on or guard.watch.thread.here.busy:
            return
        with OwnCode(guard.watch, "backward"):  # the user's thread, with our mode on
            for call, number, slot in reversed(self.incoming):  # the outermost module first: it was built last
                if number < len(incoming) and incoming[number] is not None:
                    call.record(slot, incoming[number])
            for call, edge, slot in self.outgoing:
                if edge < len(outgoing) and outgoing[edge] is not None:
                    call.record(slot, outgoing[edge])


def attach(guard: Any, call: ModuleBackward, outputs: list[Any], inputs: list[Any], first: int) -> None:
    """Watch the edges of a module that made the nodes from number `first` on; outputs have their gradients' slots.

    Of a module inside it the edges that leave it are known already: its nodes are not walked through again.
    """
    targets = {}
    known: dict[Any, list[Any]] = guard.exits
    for slot, node, number, leaf in inputs:
        targets[(id(leaf), -1) if leaf is not None else (id(node), number)] = guard.watch.gradient_slot(slot)
        if isinstance(leaf, torch.nn.Parameter):
            known = {}  # edges to parameters are not kept
    own = []
    for slot, tensor in outputs:
        node = tensor.grad_fn
        if node is not None and first <= node._sequence_nr() < _LEAF:
            _hook(guard, node).incoming.append((call, tensor.output_nr, slot))
            own.append(node)
    if not targets:
        return
    exits: list[Any] = []  # node, edge, where it leads
    pending = list(own)
    visited = set(own)
    taken: list[Any] = []
    while pending:
        node = pending.pop()
        edges = known.get(node)
        if edges is None:
            edges = [(node, edge, *following) for edge, following in enumerate(node.next_functions)]
        elif any(edges is other for other in taken):
            continue  # another output of the same module
        else:
            taken.append(edges)
        for item in edges:
            at, edge, following, number = item
            if following is None:
                continue
            sequence = following._sequence_nr()
            variable = following.variable if sequence == _LEAF else None
            slot = targets.get((id(following), number) if variable is None else (id(variable), -1))
            if slot is not None:
                _hook(guard, at).outgoing.append((call, edge, slot))
                exits.append(item)
            elif variable is not None:
                if type(variable) is not torch.nn.Parameter:
                    exits.append(item)
            elif sequence < first:
                exits.append(item)
            elif following not in visited:
                visited.add(following)
                pending.append(following)
    for node in own:
        guard.exits[node] = exits


def _hook(guard: Any, node: Any) -> EdgeHook:
    found = node.metadata.get(_KEY)
    if found is None or found._guard is not guard:
        found = node.metadata[_KEY] = EdgeHook(guard)
        node.register_hook(found)
    return found  # type: ignore[no-any-return]
