"""Backward of every call, seen on the autograd nodes and edges that are there anyway.

A call's incoming gradients are what its output nodes receive; its outgoing gradients are what the edges that leave the
nodes it created carry to its inputs. No node is added, so nothing is reordered, forbidden or changed. What a hook needs
hangs on the node itself and goes when the graph goes.
"""

from __future__ import annotations

from typing import Any

import torch

from numscope.capture.torch.thread import Open
from numscope.capture.torch.watch import Watch

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
        recorder = self._watch.recorder
        if self._epoch == recorder.epoch and self.wanted:
            return self._order
        parent = self.parent.begin() if self.parent is not None else -1
        if not self.wanted:
            return parent
        forward = self.forward if self._epoch < 0 else -1  # of the same step
        self._epoch = recorder.epoch
        self._order = recorder.order()
        self._seen = ()
        self._watch.call_row((
            self._order, self.name, self.kind, self.module, self.module_class, self._watch.backward_phase, parent, forward,
            -1, self.site, False, -1, self._watch.thread_number(),
        ))  # fmt: skip
        return self._order

    def record(self, slot: int, gradient: torch.Tensor) -> None:
        """Record one gradient."""
        watch = self._watch
        order = self._order if self._epoch == watch.recorder.epoch else self.begin()
        seen = self._seen
        if slot in seen:  # the graph was kept and runs again: a call of its own
            self._epoch = -2
            order = self.begin()
            seen = ()
        self._seen = seen + (slot,)  # noqa: RUF005 - half the time of (*seen, slot)
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
        """Take one of several contributions."""
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

    The tuples are flat, and there are few of them: what lives as long as the graph is what Python's collector walks.
    """

    __slots__ = ("_watch", "exits", "incoming", "outgoing")

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.incoming: tuple[Any, ...] = ()  # call, output number, slot; and so on
        self.outgoing: tuple[Any, ...] = ()  # edge number, call, slot, or edge number, sink, -1; and so on
        self.exits: list[Exit] | None = None  # the edges that leave the last call whose only output node this is

    def __call__(self, grad_inputs: tuple[Any, ...], grad_outputs: tuple[Any, ...]) -> None:
        watch = self._watch
        state = watch.thread.__dict__
        if not watch.on or state["busy"]:
            return
        state["busy"] = True
        guard = state["guard"]
        guard.__enter__()
        try:
            parts = iter(self.incoming)
            for call, number, slot in zip(parts, parts, parts):
                if number < len(grad_outputs) and (gradient := grad_outputs[number]) is not None:
                    call.record(slot, gradient)
            parts = iter(self.outgoing)
            for edge, call, slot in zip(parts, parts, parts):
                gradient = grad_inputs[edge] if edge < len(grad_inputs) else None
                if slot < 0:
                    call.add(gradient)
                elif gradient is not None:
                    call.record(slot, gradient)
            watch.flush_if_full()
        except Exception as error:
            watch.fault("backward", error)
        finally:
            guard.__exit__(None, None, None)
            state["busy"] = False

    def lead(self, edge: int, call: BackwardCall, slot: int) -> bool:
        """Lead what leaves by an edge to a slot of a call; false if it goes to one of the same call already."""
        outgoing = self.outgoing
        for place in range(len(outgoing) - 3, -1, -3):
            if outgoing[place] == edge:
                last = outgoing[place + 1]
                if last is call or (type(last) is Sink and last.call is call):
                    return False
                self.outgoing = (*outgoing[: place + 3], edge, call, slot, *outgoing[place + 3 :])
                return True
        self.outgoing = (*outgoing, edge, call, slot)
        return True

    def gather(self, edge: int, call: BackwardCall, sink: Sink) -> None:
        """Lead what leaves by an edge to a sink instead of the call itself."""
        outgoing = self.outgoing
        for place in range(0, len(outgoing), 3):
            if outgoing[place] == edge and outgoing[place + 1] is call:
                self.outgoing = (*outgoing[: place + 1], sink, -1, *outgoing[place + 3 :])
                return


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


# Where the gradients of a call's inputs will go, and whether some of them go to leaves. The slot of a gradient is found by the
# node of its edge, with the output number if it is not 0, or by the address of a leaf; it is a list of slots where a tensor
# is there twice, and later what `_lead` makes of it.
Targets = tuple[dict[Any, Any], bool]


def targets_of(watch: Watch, slots: list[tuple[int, torch.Tensor]]) -> Targets | None:
    """Return where the gradients of a call's inputs will go; to be asked before the call, which may change its inputs."""
    found: dict[Any, Any] | None = None
    has_leaf = False
    for slot, tensor in slots:
        if tensor.requires_grad:
            if found is None:
                found = {}
            key: Any = tensor.grad_fn
            if key is None:
                has_leaf = True
                key = id(tensor)
            elif number := tensor.output_nr:
                key = key, number
            out = watch.gradient_out.get(slot) or watch.gradient_slot(slot)
            if key in found:
                known = found[key]
                found[key] = [*known, out] if type(known) is list else [known, out]
            else:
                found[key] = out
    return None if found is None else (found, has_leaf)


def attach(
    watch: Watch, call: BackwardCall, outputs: list[tuple[int, torch.Tensor]], targets: Targets, first: int
) -> None:
    """Watch the backward of a call that made the nodes from number `first` on, as seen in its outputs.

    The nodes are walked from the outputs to the inputs. What an inner call has walked is not walked again: the hook of
    its output node knows the edges that leave it, but for those to leaves. A call that is given leaves walks by itself.
    """
    pending: list[Node] = []
    for slot, tensor in outputs:
        node: Node = tensor.grad_fn
        if node is None or node._sequence_nr() < first:
            continue
        own = _hook(watch, node)
        own.incoming += (call, tensor.output_nr, watch.gradient_in.get(slot) or watch.incoming_slot(slot))
        if node not in pending:
            pending.append(node)
    if not pending:
        return
    slots, has_leaf = targets
    only = None
    if len(pending) == 1:
        only = pending[0]
        if own.exits is None and _leave_at_once(own, only, call, targets, first):
            return
    visited = set(pending)
    exits: list[Exit] = []
    while pending:
        node = pending.pop()
        known = None
        if not has_leaf:
            hook = own if node is only else _known_hook(watch, node)
            known = hook.exits if hook is not None else None
        owner: Node | None = (
            None if node is only else node
        )  # a hook that knew its own node would keep it alive for ever
        index = -1
        for following, number in node.next_functions if known is None else ():
            index += 1
            if following is None:
                continue
            key: Any = (following, number) if number else following
            if key not in slots:
                if type(following) is _AccumulateGrad:
                    if has_leaf and (key := id(following.variable)) in slots:
                        _lead(own if owner is None else _hook(watch, node), index, call, slots, key)
                    continue
                if following in visited:
                    continue
                if following._sequence_nr() >= first:
                    visited.add(following)
                    pending.append(following)
                    continue
            else:
                _lead(own if owner is None else _hook(watch, node), index, call, slots, key)
            exits.append((owner, index, following, number))
        for place, index, following, number in known or ():
            key = (following, number) if number else following
            if key not in slots:
                if following in visited:
                    continue
                if following._sequence_nr() >= first:
                    visited.add(following)
                    pending.append(following)
                    continue
            place = owner if place is None else None if place is only else place
            exits.append((place, index, following, number))
            if key in slots:
                _lead(own if place is None else _hook(watch, place), index, call, slots, key)
    if only is not None:
        own.exits = exits


def _leave_at_once(own: NodeHook, node: Node, call: BackwardCall, targets: Targets, first: int) -> bool:
    """Watch a call that made one node, whose edges all leave the call; tell whether it is one.

    Such a node's edges need not be noted: they are known from itself.
    """
    slots, has_leaf = targets
    found: list[Any] = []
    index = -1
    for following, number in node.next_functions:
        index += 1
        if following is None:
            continue
        key: Any = (following, number) if number else following
        if key not in slots:
            if type(following) is not _AccumulateGrad:
                if following._sequence_nr() >= first:
                    return False
                continue
            if not has_leaf:
                continue
            key = id(following.variable)
            if key not in slots:
                continue
        found += (index, key)
    places = iter(found)
    for edge in places:
        _lead(own, edge, call, slots, next(places))
    return True


def _lead(hook: NodeHook, edge: int, call: BackwardCall, slots: dict[Any, Any], key: Any) -> None:
    """Lead what leaves by an edge to the input that it is the gradient of."""
    goal = slots[key]
    if type(goal) is int:
        if not hook.outgoing:
            hook.outgoing = (edge, call, goal)
            slots[key] = (hook, edge, goal)
        elif hook.lead(edge, call, goal):
            slots[key] = (hook, edge, goal)
    elif type(goal) is list:  # the same tensor in two arguments has an edge for each, in the order of the arguments
        if hook.lead(edge, call, goal[0]):
            slot = goal.pop(0)
            slots[key] = goal if len(goal) > 1 else goal[0] if goal else (hook, edge, slot)
    elif type(goal) is tuple:  # a second contribution to one gradient
        sink = Sink(call, goal[2])
        if hook.lead(edge, call, goal[2]):
            sink.expected = 2
            slots[key] = sink
            hook.gather(edge, call, sink)
            goal[0].gather(goal[1], call, sink)
    elif hook.lead(edge, call, goal.slot):
        goal.expected += 1
        hook.gather(edge, call, goal)


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
    found: NodeHook | None = metadata.get(_KEY)
    if found is None or found._watch is not watch:
        found = metadata[_KEY] = NodeHook(watch)
        node.register_hook(found)
    return found


def _known_hook(watch: Watch, node: Node) -> NodeHook | None:
    found: NodeHook | None = node.metadata.get(_KEY)
    return found if found is not None and found._watch is watch else None
