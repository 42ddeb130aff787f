"""Backward of every call, seen on the autograd nodes and edges that are there anyway.

A call's incoming gradients are what its output nodes receive; its outgoing gradients are what the edges that leave the
nodes it created carry to its inputs. No node is added, so nothing is reordered, forbidden or changed. What a hook needs
hangs on the node itself and goes when the graph goes.
"""

from __future__ import annotations

from typing import Any

import torch

from numscope.capture.torch.watch import Open, OwnWork, Watch

_KEY = "numscope"
_AccumulateGrad = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]

Node = Any
Edge = tuple[int, Node, int, torch.Tensor | None]  # slot, node, output number, leaf
Exit = tuple[Node | None, int, Node, int]  # node (None: the hook's own), edge number, where to: node, output number


class BackwardCall:
    """The backward part of one call; it is recorded when its first gradient arrives."""

    __slots__ = (
        "_epoch",
        "_order",
        "_seen",
        "_watch",
        "attached",
        "forward",
        "kind",
        "module",
        "module_class",
        "name",
        "parent",
        "site",
        "wanted",
    )

    def __init__(
        self, watch: Watch, name: int, kind: int, module: int, module_class: int, forward: int, site: int,
        parent: BackwardCall | None,
    ) -> None:  # fmt: skip
        self._watch = watch
        self._order = -1
        self._epoch = -1
        self._seen: tuple[int, ...] = ()
        self.name = name
        self.kind = kind
        self.module = module
        self.module_class = module_class
        self.forward = forward
        self.site = site
        self.parent = parent
        self.attached = False  # the graph of its forward call will tell it of gradients
        self.wanted = True  # false: not in scope; what is inside belongs to what is outside

    def begin(self) -> int:
        """Return this call's order, recording the call when it is first asked for in a step."""
        if not self.wanted:
            return self.parent.begin() if self.parent is not None else -1
        recorder = self._watch.recorder
        if self._epoch != recorder.epoch:
            parent = self.parent.begin() if self.parent is not None else -1
            same_step = self._epoch < 0
            self._epoch = recorder.epoch
            self._order = recorder.order()
            self._seen = ()
            recorder.call(
                self._order, self.name, self.kind, self.module, self.module_class, self._watch.phases["backward"],
                parent, self.forward if same_step else -1, -1, self.site, False, -1, self._watch.thread_number(),
            )  # fmt: skip
        return self._order

    def record(self, slot: int, gradient: torch.Tensor) -> None:
        """Record one gradient."""
        watch = self._watch
        order = self._order if self._epoch == watch.recorder.epoch else self.begin()
        if slot in self._seen:  # the graph was kept and runs again: a call of its own
            self._epoch = -2
            order = self.begin()
        self._seen += (slot,)
        watch.show(order, slot, gradient, self.name)


class Sink:
    """Where the gradients for one input of one call are gathered: recorded when the last contribution has come."""

    __slots__ = ("_received", "_total", "call", "expected", "slot")

    def __init__(self, call: BackwardCall, slot: int) -> None:
        self.call = call
        self.slot = slot
        self.expected = 0
        self._received = 0
        self._total: torch.Tensor | None = None

    def add(self, gradient: torch.Tensor | None) -> None:
        """Take one contribution."""
        self._received += 1
        if gradient is not None and self._total is not None:
            with torch.no_grad():
                self._total = self._total + gradient
        elif gradient is not None:
            self._total = gradient
        if self._received >= self.expected:
            total, self._total, self._received = self._total, None, 0
            if total is not None:
                self.call.record(self.slot, total)


class NodeHook:
    """What is to be seen when one node has run.

    The lists are flat and made when first needed: what lives as long as the graph is what Python's collector walks.
    """

    __slots__ = ("_watch", "exits", "incoming", "outgoing")

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.incoming: list[Any] = []  # call, output number, slot; and so on
        self.outgoing: dict[int, Sink | list[Sink]] = {}  # edge number → sinks
        self.exits: list[Exit] | None = None  # the edges that leave the last call whose only output node this is

    def __call__(self, grad_inputs: tuple[Any, ...], grad_outputs: tuple[Any, ...]) -> None:
        watch = self._watch
        if not watch.on or watch.thread.busy:
            return
        with OwnWork(watch, "backward"):
            incoming = self.incoming
            for place in range(0, len(incoming), 3):
                number = incoming[place + 1]
                if number < len(grad_outputs) and (gradient := grad_outputs[number]) is not None:
                    incoming[place].record(incoming[place + 2], gradient)
            for edge, sinks in self.outgoing.items():
                gradient = grad_inputs[edge] if edge < len(grad_inputs) else None
                if type(sinks) is Sink:
                    sinks.add(gradient)
                else:
                    for sink in sinks:  # type: ignore[union-attr]
                        sink.add(gradient)
            if watch.recorder.is_full():
                watch.recorder.flush()

    def lead(self, edge: int, sink: Sink) -> bool:
        """Lead what leaves by an edge to a sink; false if it goes to one of the same call already."""
        found = self.outgoing.get(edge)
        if found is None:
            self.outgoing[edge] = sink
            return True
        last = found[-1] if isinstance(found, list) else found
        if last.call is sink.call:
            return False
        if isinstance(found, list):
            found.append(sink)
        else:
            self.outgoing[edge] = [found, sink]
        return True


def edges_of(slots: list[tuple[int, torch.Tensor]]) -> list[Edge]:
    """Return where the gradients of these inputs will go; to be asked before the call, which may change them."""
    edges: list[Edge] = []
    for slot, tensor in slots:
        if tensor.requires_grad:
            node = tensor.grad_fn
            if node is None:
                edges.append((slot, None, 0, tensor))
            else:
                edges.append((slot, node, tensor.output_nr, None))
    return edges


def sequence() -> int:
    """Return the number that the next autograd node of this thread will have, or more."""
    return int(torch._C._autograd._get_sequence_nr())


def attach(
    watch: Watch, call: BackwardCall, outputs: list[tuple[int, torch.Tensor]], inputs: list[Edge], first: int
) -> None:
    """Watch the backward of a call that made the nodes from number `first` on; outputs have their gradients' slots.

    The nodes are walked from the outputs to the inputs. What an inner call has walked is not walked again: the hook of
    its output node knows the edges that leave it.
    """
    targets: dict[Any, Sink | list[Sink]] = {}
    has_leaf = False
    for slot, node, number, leaf in inputs:
        if leaf is not None:
            key: Any = id(leaf)
            has_leaf = True
        else:
            key = (id(node), number) if number else id(node)
        sink = Sink(call, watch.gradient_slot(slot))
        known = targets.get(key)
        if known is None:
            targets[key] = sink
        elif isinstance(known, list):
            known.append(sink)
        else:
            targets[key] = [known, sink]
    pending: list[Node] = []
    visited: set[Node] = set()
    for slot, tensor in outputs:
        node = tensor.grad_fn
        if node is None or node._sequence_nr() < first:
            continue
        hook = _hook(watch, node)
        hook.incoming += (call, tensor.output_nr, slot)
        if node not in visited:
            visited.add(node)
            pending.append(node)
    if not pending:
        return
    only = pending[0] if len(pending) == 1 else None
    own = hook
    exits: list[Exit] = []
    while pending:
        node = pending.pop()
        found = own if node is only else node.metadata.get(_KEY)
        edges = found.exits if found is not None and found._watch is watch else None
        if edges is None:
            edges = [(None, index, *edge) for index, edge in enumerate(node.next_functions) if edge[0] is not None]
        for edge in edges:
            owner, index, following, number = edge
            sinks = targets.get((id(following), number) if number else id(following))
            if sinks is None:
                if type(following) is _AccumulateGrad:
                    sinks = targets.get(id(following.variable)) if has_leaf else None
                elif following in visited:
                    continue
                elif following._sequence_nr() >= first:
                    visited.add(following)
                    pending.append(following)
                    continue
            if owner is None and node is not only:
                owner = node
                edge = (node, index, following, number)
            elif owner is only and owner is not None:  # a hook that knew its own node would keep it alive for ever
                edge = (None, index, following, number)
            exits.append(edge)
            if sinks is not None:
                # The same tensor in two arguments has an edge for each, in the order of the arguments.
                sink = sinks[0] if isinstance(sinks, list) else sinks
                hook = own if owner is None else _hook(watch, owner)
                if hook.lead(index, sink):
                    sink.expected += 1
                    if isinstance(sinks, list) and len(sinks) > 1:
                        sinks.pop(0)
    if only is not None:
        own.exits = exits


def running(watch: Watch) -> Open | None:
    """Return the call whose backward runs in this thread, as the parent of calls made there, or None."""
    node: Any = torch._C._current_autograd_node()
    hook = node.metadata.get(_KEY) if node is not None else None
    if hook is None or not hook.incoming:
        return None
    call = hook.incoming[0]
    return Open(call.begin(), call.module, call.module_class, "", call.site, "", None)


def _hook(watch: Watch, node: Node) -> NodeHook:
    metadata = node.metadata
    found = metadata.get(_KEY)
    if found is None or found._watch is not watch:
        found = metadata[_KEY] = NodeHook(watch)
        node.register_hook(found)
    return found  # type: ignore[no-any-return]
