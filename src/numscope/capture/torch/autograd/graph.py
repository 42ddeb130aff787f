"""The walk through the autograd graph after a call: the nodes that it made, and the edges by which gradients leave it."""

from __future__ import annotations

import torch

from numscope.capture.torch.autograd.backward import KEY, BackwardCall, Exit, FlatEdges, Led, Node, NodeHook, Sink
from numscope.capture.torch.inputs import LEAVES, Targets
from numscope.capture.torch.slots import Slot
from numscope.capture.torch.watch import Watch

_AccumulateGrad = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]

Edge = tuple[int, Node, int, torch.Tensor | None]  # slot, node, output number, leaf


def edges_of(slots: list[Slot]) -> list[Edge]:
    """Return the edges that the gradients of these inputs will take; called before the call, which may change them."""
    edges: list[Edge] = []
    for slot, tensor in slots:
        if tensor.requires_grad:
            node = tensor.grad_fn
            if node is None:
                edges.append((slot, None, 0, tensor))
            else:
                edges.append((slot, node, tensor.output_nr, None))
    return edges


class CallGraph:
    """The part of the autograd graph that a call has made, to watch the call's backward there."""

    __slots__ = ("call", "first", "targets", "watch")

    def __init__(self, watch: Watch, call: BackwardCall, targets: Targets, first: int) -> None:
        self.watch = watch
        self.call = call
        self.targets = targets
        self.first = first  # the sequence number from which on nodes are the call's own

    def attach(self, outputs: list[Slot]) -> None:
        """Watch the backward of the call that made the nodes of these outputs.

        The nodes are walked from the outputs to the inputs. The nodes of an inner call are not walked again: the hook of
        its output node knows the edges that leave it, except those to leaves. A call with leaves among its inputs walks
        them all.
        """
        watch = self.watch
        incoming: dict[Node, FlatEdges] = {}
        for slot, tensor in outputs:
            node: Node = tensor.grad_fn
            if node is not None and node._sequence_nr() >= self.first:
                edge = (tensor.output_nr, self.call, watch.gradient_in.get(slot) or watch.incoming_slot(slot))
                incoming[node] = incoming.get(node, ()) + edge
        if len(incoming) == 1:
            ((node, edges),) = incoming.items()
            self.attach_one(edges, node)
        elif incoming:
            for node, edges in incoming.items():
                _hook(watch, node).incoming += edges
            self.walk(None, None, list(incoming))

    def attach_one(self, incoming: FlatEdges, node: Node) -> None:
        """Do as `attach` for a call that made one output node; `incoming`: in the form of `NodeHook.incoming`."""
        watch, call, targets, first = self.watch, self.call, self.targets, self.first
        own = _hook(watch, node)
        own.incoming += incoming
        inner: list[Node] = []
        if own.exits is not None and LEAVES not in targets:
            edges = len(own.exits)
            for place, edge, following, number in own.exits:
                key: object = (following, number) if number else following
                if key in targets:
                    lead(own if place is None else _hook(watch, place), edge, call, targets, key)
                elif following._sequence_nr() >= first:
                    inner.append(following)
        else:
            next_functions = node.next_functions
            edges = len(next_functions)
            for edge, (following, number) in enumerate(next_functions, -edges):
                key = (following, number) if number else following
                if key not in targets:
                    if type(following) is not _AccumulateGrad:
                        if following is not None and following._sequence_nr() >= first:
                            inner.append(following)
                        continue
                    if LEAVES not in targets or (key := id(following.variable)) not in targets:
                        continue
                lead(own, edge, call, targets, key)
        if inner:
            # An output node with further edges is walked, too, to note those that leave it.
            self.walk(own, node, inner if len(inner) == 1 == edges else [node])

    def walk(self, own: NodeHook | None, only: Node, pending: list[Node]) -> None:
        """Lead the gradients that leave the call by the edges of its other nodes.

        `only` is the call's output node and `own` its hook, where there is one output node alone; else both are None.
        """
        watch, call, targets, first = self.watch, self.call, self.targets, self.first
        has_leaf = LEAVES in targets
        visited = {None, only, *pending}
        exits: list[Exit] = []
        while pending:
            node = pending.pop()
            hook: NodeHook | None = node.metadata.get(KEY)
            if hook is not None and hook._watch is not watch:
                hook = None
            # A hook that knew its own node would keep it alive for ever.
            owner: Node | None = None if node is only else node
            if hook is not None and hook.exits is not None and not has_leaf:
                for place, edge, following, number in hook.exits:
                    key: object = (following, number) if number else following
                    if key not in targets:
                        if following in visited:
                            continue
                        if following._sequence_nr() >= first:
                            visited.add(following)
                            pending.append(following)
                            continue
                    elif owner is not None:
                        lead(_hook(watch, place or owner), edge, call, targets, key)
                    leaves = owner if place is None else None if place is only else place
                    exits.append(Exit(leaves, edge, following, number))
                continue
            next_functions = node.next_functions
            for edge, (following, number) in enumerate(next_functions, -len(next_functions)):
                key = (following, number) if number else following
                if key in targets:
                    exits.append(Exit(owner, edge, following, number))
                elif type(following) is _AccumulateGrad:
                    if not has_leaf or (key := id(following.variable)) not in targets:
                        continue
                elif following in visited:
                    continue
                elif following._sequence_nr() >= first:
                    visited.add(following)
                    pending.append(following)
                    continue
                else:
                    exits.append(Exit(owner, edge, following, number))
                    continue
                if owner is not None:
                    lead(_hook(watch, node), edge, call, targets, key)
        if own is not None:
            own.exits = exits


def lead(hook: NodeHook, edge: int, call: BackwardCall, targets: Targets, key: object) -> None:
    """Lead the gradient of an edge to the slot of its input."""
    goal = targets[key]
    if isinstance(goal, int):
        if hook.lead(edge, call, goal):
            targets[key] = Led(hook, edge, goal)
    elif isinstance(goal, list):  # the same tensor in two arguments has an edge for each, in the order of the arguments
        slot, *others = goal
        if hook.lead(edge, call, slot):
            targets[key] = others if len(others) > 1 else others.pop() if others else Led(hook, edge, slot)
    elif isinstance(goal, Led):  # a second contribution to one gradient
        sink = Sink(call, goal.slot)
        if hook.lead(edge, call, goal.slot):
            sink.expected = 2
            targets[key] = sink
            hook.gather(edge, call, sink)
            goal.hook.gather(goal.edge, call, sink)
    elif isinstance(goal, Sink) and hook.lead(edge, call, goal.slot):
        goal.expected += 1
        hook.gather(edge, call, goal)


def _hook(watch: Watch, node: Node) -> NodeHook:
    metadata = node.metadata
    hook: NodeHook | None = metadata.get(KEY)
    if hook is None or hook._watch is not watch:
        hook = metadata[KEY] = NodeHook(watch)
        node.register_hook(hook)
    return hook
