"""Backward of every call, seen on the autograd nodes and edges that are there anyway.

A call's incoming gradients are what its output nodes receive; its outgoing gradients are what the edges that leave the
nodes it created carry to its inputs (`graph.py` finds them). No node is added, so nothing is reordered, forbidden or
changed. What a hook needs hangs on the node itself and goes when the graph goes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import torch

from numscope.capture.recording.rows import CallRow
from numscope.capture.torch.own_code import OwnCode, OwnComputation
from numscope.capture.torch.thread import Backward, Open, State
from numscope.capture.torch.watch import Watch

KEY = "numscope"  # of a node's hook in the node's metadata

Node: TypeAlias = Any  # of the autograd graph: torch's stubs lack `_sequence_nr` and the `variable` of a leaf's node
Gradients = tuple[torch.Tensor | None, ...]
FlatEdges: TypeAlias = tuple[Any, ...]  # EDGE_ENTRIES for each edge, in one tuple: see NodeHook
EDGE_ENTRIES = 3


class Exit(NamedTuple):
    """An edge of the graph that leaves a call."""

    node: Node | None  # that it starts from; None: the hook's own
    edge: int
    following: Node  # that it leads to
    number: int  # the output of that node whose gradient it carries


class BackwardCall:
    """The backward part of one call; it is recorded when its first gradient arrives."""

    # One class for calls of all kinds: Python is quick at the attributes of objects that are of one class.
    __slots__ = ("_epoch", "_order", "_seen", "_watch", "attached", "forward", "name", "parent", "row", "wanted")

    _order: int  # both are there as soon as the call has begun
    _seen: tuple[int, ...]

    def __init__(self, watch: Watch, name: int, row: CallRow, forward: int, parent: Backward | None) -> None:
        self._watch = watch
        self._epoch = -1
        self.name = name
        self.row = row  # of the forward call
        self.forward = forward  # its order, where it is recorded
        self.parent = parent
        self.attached = False  # the graph of its forward call will tell it of gradients: asked of modules
        self.wanted = True  # false: not in scope; what is inside belongs to what is outside

    def begin(self, state: State | None = None) -> int:
        """Return this call's order, recording the call when it is first asked for in a step; `state`: of this thread."""
        watch = self._watch
        recorder = watch.recorder
        epoch = recorder.epoch
        if self._epoch == epoch:
            return self._order
        outer = self.parent
        parent = -1 if outer is None else outer.begin(state)
        if not self.wanted:
            return parent
        forward = self.forward if self._epoch < 0 else -1  # of the same step
        self._epoch = epoch
        self._order = order = next(recorder.orders)
        self._seen = ()
        row = self.row
        recorder.call(
            watch.call_row(
                order,
                self.name,
                row.kind,
                row.module,
                row.module_class,
                watch.backward_phase,
                parent=parent,
                forward=forward,
                stack=row.stack,
            )
        )
        return order

    def show(self, slot: int) -> int:
        """Return this call's order for one more gradient, in a slot of it."""
        order = self.begin()
        if slot in self._seen:  # the graph was kept and runs again: a call of its own
            self._epoch = -2
            order = self.begin()
        self._seen += (slot,)
        return order

    def record(self, slot: int, gradient: torch.Tensor) -> None:
        """Record one gradient."""
        self._watch.show(self.show(slot), slot, gradient, self.name)


class Sink:
    """Gathers the contributions to the gradient of one input of a call; the gradient is recorded with the last one."""

    __slots__ = ("_received", "_total", "call", "expected", "slot")

    def __init__(self, call: BackwardCall, slot: int) -> None:
        self.call = call
        self.slot = slot
        self.expected = 0
        self._received = 0
        self._total: torch.Tensor | None = None

    def add(self, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """Take one of several contributions; return their sum when it is the last one."""
        self._received += 1
        if gradient is not None and self._total is not None:
            with OwnComputation():
                self._total = self._total + gradient
        elif gradient is not None:
            self._total = gradient
        if self._received < self.expected:
            return None
        total, self._total, self._received = self._total, None, 0
        return total


class NodeHook:
    """A hook on one autograd node: records the gradients that pass when the node has run.

    The tuples are flat, and few: Python's garbage collector walks every object that lives as long as the graph.
    """

    __slots__ = ("_watch", "exits", "incoming", "outgoing")

    def __init__(self, watch: Watch, incoming: FlatEdges = ()) -> None:
        self._watch = watch
        self.incoming = incoming  # output number, call, slot; and so on
        self.outgoing: FlatEdges = ()  # edge, call, slot, or edge, sink, -1; and so on; edge -1 is the last one
        self.exits: list[Exit] | None = None  # the edges that leave the last call whose only output node this is

    def __call__(self, grad_inputs: Gradients, grad_outputs: Gradients) -> None:
        watch = self._watch
        if not watch.on or watch.thread.here.busy:
            return
        with OwnCode(watch, "backward"):
            gradients = grad_outputs + grad_inputs
            parts = iter(self.incoming + self.outgoing)
            for place, call, slot in zip(parts, parts, parts):
                gradient = gradients[place]
                if slot < 0:
                    gradient = call.add(gradient)
                    slot, call = call.slot, call.call
                if gradient is not None:
                    call.record(slot, gradient)
            watch.flush_if_full()

    def lead(self, edge: int, call: BackwardCall, slot: int) -> bool:
        """Lead the gradient of an edge to a slot of a call; return false where the edge leads to that call already."""
        after = -1  # the place after the last entries of this edge
        last: Any = None
        for place, known, goal in self._outgoing():
            if known == edge:
                after, last = place + EDGE_ENTRIES, goal
        if after < 0:
            self.outgoing += (edge, call, slot)
            return True
        if last is call or (type(last) is Sink and last.call is call):
            return False
        self.outgoing = (*self.outgoing[:after], edge, call, slot, *self.outgoing[after:])
        return True

    def gather(self, edge: int, call: BackwardCall, sink: Sink) -> None:
        """Lead the gradient of an edge to a sink instead of the call itself."""
        for place, known, goal in self._outgoing():
            if known == edge and goal is call:
                after = place + EDGE_ENTRIES
                self.outgoing = (*self.outgoing[:place], edge, sink, -1, *self.outgoing[after:])
                return

    def _outgoing(self) -> Iterator[tuple[int, int, object]]:
        """Return the place of each outgoing edge's entries, the edge, and the call or sink that it leads to."""
        for place in range(0, len(self.outgoing), EDGE_ENTRIES):
            edge, goal, _ = self.outgoing[place : place + EDGE_ENTRIES]
            yield place, edge, goal


class Led(NamedTuple):
    """The edge by which the gradient of an input leaves a call."""

    hook: NodeHook  # on the node of the edge
    edge: int
    slot: int  # of the gradient


def running(watch: Watch) -> Open:
    """Return the call whose backward runs in this thread, as the parent of calls made there."""
    node: Any = torch._C._current_autograd_node()
    hook = node.metadata.get(KEY) if node is not None else None
    if hook is None or not hook.incoming:
        return watch.outside
    _, call, *_ = hook.incoming
    row: CallRow = call.row
    return Open(call.begin(), row.module, row.module_class, "", row.stack, "", None)
