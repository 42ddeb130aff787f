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

Node = Any
Edge = tuple[int, Node, int, torch.Tensor | None]  # slot, node, output number, leaf


class BackwardCall:
    """The backward part of one call; it is recorded when its first gradient arrives."""

    __slots__ = (
        "_epoch",
        "_order",
        "_seen",
        "_watch",
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
        self._seen: set[int] = set()
        self.name = name
        self.kind = kind
        self.module = module
        self.module_class = module_class
        self.forward = forward
        self.site = site
        self.parent = parent
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
            self._seen.clear()
            recorder.call(
                self._order, self.name, self.kind, self.module, self.module_class, self._watch.phases["backward"],
                parent, self.forward if same_step else -1, -1, self.site, False, -1, self._watch.thread_number(),
            )  # fmt: skip
        return self._order

    def record(self, slot: int, gradient: torch.Tensor) -> None:
        """Record one gradient."""
        order = self.begin()
        if slot in self._seen:  # the graph was kept and runs again: a call of its own
            self._epoch = -2
            order = self.begin()
        self._seen.add(slot)
        self._watch.show(order, slot, gradient, self.name)


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
    """What is to be seen when one node has run."""

    __slots__ = ("_watch", "incoming", "outgoing")

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.incoming: list[tuple[BackwardCall, int, int]] = []  # call, output number, slot
        self.outgoing: dict[int, list[Sink]] = {}  # edge number → sinks

    def __call__(self, grad_inputs: tuple[Any, ...], grad_outputs: tuple[Any, ...]) -> None:
        watch = self._watch
        if not watch.on or watch.thread.busy:
            return
        with OwnWork(watch, "backward"):
            self._record_incoming(grad_outputs)
            for edge, sinks in self.outgoing.items():
                gradient = grad_inputs[edge] if edge < len(grad_inputs) else None
                for sink in sinks:
                    sink.add(gradient)
            watch.flush_if_full()

    def _record_incoming(self, gradients: tuple[Any, ...]) -> None:
        for call, number, slot in self.incoming:
            if number < len(gradients) and gradients[number] is not None:
                call.record(slot, gradients[number])


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
    """Watch the backward of a call that made the nodes from number `first` on; outputs have their gradients' slots."""
    targets: dict[tuple[int, int], list[Sink]] = {}
    for slot, node, number, leaf in inputs:
        key = (id(leaf), -1) if leaf is not None else (id(node), number)
        targets.setdefault(key, []).append(Sink(call, watch.gradient_slot(slot)))
    pending: list[Node] = []
    visited: set[Node] = set()
    for slot, tensor in outputs:
        node = tensor.grad_fn
        if node is None or _number(node) < first:
            continue
        _hook(watch, node).incoming.append((call, tensor.output_nr, slot))
        if node not in visited:
            visited.add(node)
            pending.append(node)
    while pending:
        node = pending.pop()
        for index, (following, number) in enumerate(node.next_functions):
            if following is None:
                continue
            sinks = targets.get((id(following), number))
            if sinks is None and following.__class__.__name__ == "AccumulateGrad":
                sinks = targets.get((id(following.variable), -1))
                if sinks is None:
                    continue
            if sinks is not None:
                # The same tensor in two arguments has an edge for each, in the order of the arguments.
                sink = sinks.pop(0) if len(sinks) > 1 else sinks[0]
                sink.expected += 1
                _hook(watch, node).outgoing.setdefault(index, []).append(sink)
            elif following not in visited and _number(following) >= first:
                visited.add(following)
                pending.append(following)


def running(watch: Watch) -> Open | None:
    """Return the call whose backward runs in this thread, as the parent of calls made there, or None."""
    node: Any = torch._C._current_autograd_node()
    hook = node.metadata.get(_KEY) if node is not None else None
    calls = [item[0] for item in hook.incoming] if hook is not None else []
    if not calls:
        return None
    call = calls[0]
    return Open(call.begin(), call.module, call.module_class, "", call.site, "", None)


def _number(node: Node) -> int:
    return int(node._sequence_nr())


def _hook(watch: Watch, node: Node) -> NodeHook:
    metadata = node.metadata
    found = metadata.get(_KEY)
    if found is None or found._watch is not watch:
        found = metadata[_KEY] = NodeHook(watch)
        node.register_hook(found)
    return found  # type: ignore[no-any-return]
