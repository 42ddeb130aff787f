"""The walk through the autograd graph after a call: the nodes that it made, and the edges by which gradients leave it."""

from __future__ import annotations

import torch

from numscope.capture.torch.autograd.backward import KEY, BackwardCall, Exit, FlatEdges, Node, NodeHook, Sink
from numscope.capture.torch.inputs import LEAVES, Targets
from numscope.capture.torch.watch import Watch

_AccumulateGrad = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]

Edge = tuple[int, Node, int, torch.Tensor | None]  # slot, node, output number, leaf


def edges_of(slots: list[tuple[int, torch.Tensor]]) -> list[Edge]:
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


def attach(
    watch: Watch, call: BackwardCall, outputs: list[tuple[int, torch.Tensor]], targets: Targets, first: int
) -> None:
    """Watch the backward of a call that made the nodes of its outputs from sequence number `first` on.

    The nodes are walked from the outputs to the inputs. The nodes of an inner call are not walked again: the hook of its
    output node knows the edges that leave it, except those to leaves. A call with leaves among its inputs walks them all.
    """
    only: Node = None
    others: list[Node] = []
    for slot, tensor in outputs:
        node: Node = tensor.grad_fn
        if node is None or node._sequence_nr() < first:
            continue
        incoming = (tensor.output_nr, call, watch.gradient_in.get(slot) or watch.incoming_slot(slot))
        if only is None:
            only = node
            incoming_of_only: FlatEdges = incoming
        elif node is only:
            incoming_of_only += incoming
        else:
            _hook(watch, node).incoming += incoming
            if node not in others:
                others.append(node)
    if others:
        _hook(watch, only).incoming += incoming_of_only
        walk(watch, None, None, call, [only, *others], targets, first)
    elif only is not None:
        attach_one(watch, call, incoming_of_only, only, targets, first)


def attach_one(watch: Watch, call: BackwardCall, incoming: FlatEdges, node: Node, targets: Targets, first: int) -> None:
    """Do as `attach` for a call that made one output node; `incoming`: in the form of `NodeHook.incoming`."""
    metadata = node.metadata
    own: NodeHook | None = metadata.get(KEY)
    if own is None or own._watch is not watch:
        own = metadata[KEY] = NodeHook(watch, incoming)
        node.register_hook(own)
    else:
        own.incoming += incoming
    inner: list[Node] = []
    edges = own.exits
    if edges is not None and LEAVES not in targets:
        for place, edge, following, number in edges:
            key: object = (following, number) if number else following
            if key in targets:
                lead(own if place is None else _hook(watch, place), edge, call, targets, key)
            elif following._sequence_nr() >= first:
                inner.append(following)
    else:
        edges = node.next_functions
        edge = -1 - len(edges)
        for following, number in edges:
            edge += 1
            key = (following, number) if number else following
            if key not in targets:
                if type(following) is not _AccumulateGrad:
                    if following is not None and following._sequence_nr() >= first:
                        inner.append(following)
                    continue
                if LEAVES not in targets or (key := id(following.variable)) not in targets:
                    continue
            if own.outgoing or type(goal := targets[key]) is not int:
                lead(own, edge, call, targets, key)
            else:  # as `lead` does with the first edge that leaves a node, which is the only one of most nodes
                own.outgoing = (edge, call, goal)
                if edge != -1 or inner:
                    targets[key] = (own, edge, goal)
    if inner:
        # An output node with further edges is walked, too, to note those that leave it.
        walk(watch, own, node, call, inner if len(inner) == 1 == len(edges) else [node], targets, first)


def walk(
    watch: Watch,
    own: NodeHook | None,
    only: Node,
    call: BackwardCall,
    pending: list[Node],
    targets: Targets,
    first: int,
) -> None:
    """Lead the gradients that leave a call by the edges of its other nodes.

    `only` is the call's output node and `own` its hook, where there is one output node alone; else both are None.
    """
    has_leaf = LEAVES in targets
    visited = {None, only, *pending}
    exits: list[Exit] = []
    while pending:
        node = pending.pop()
        metadata = node.metadata
        hook: NodeHook | None = metadata.get(KEY)
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
                exits.append((owner if place is None else None if place is only else place, edge, following, number))
            continue
        edges = node.next_functions
        edge = -1 - len(edges)
        for following, number in edges:
            edge += 1
            key = (following, number) if number else following
            if key in targets:
                exits.append((owner, edge, following, number))
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
                exits.append((owner, edge, following, number))
                continue
            if owner is None:
                continue
            if hook is None:
                hook = metadata[KEY] = NodeHook(watch)
                node.register_hook(hook)
            if hook.outgoing or type(goal := targets[key]) is not int:
                lead(hook, edge, call, targets, key)
            else:  # as `lead` does with the first edge that leaves a node
                hook.outgoing = (edge, call, goal)
                targets[key] = (hook, edge, goal)
    if own is not None:
        own.exits = exits


def lead(hook: NodeHook, edge: int, call: BackwardCall, targets: Targets, key: object) -> None:
    """Lead the gradient of an edge to the slot of its input."""
    goal = targets[key]
    if type(goal) is int:
        outgoing = hook.outgoing
        if not outgoing:
            hook.outgoing = (edge, call, goal)
        elif (
            outgoing[-3] == edge and type(other := outgoing[-2]) is not Sink and other is not call
        ) or edge not in outgoing[::3]:
            hook.outgoing = (*outgoing, edge, call, goal)
        elif not hook.lead(edge, call, goal):
            return
        targets[key] = (hook, edge, goal)
    elif type(goal) is list:  # the same tensor in two arguments has an edge for each, in the order of the arguments
        if hook.lead(edge, call, goal[0]):
            slot = goal.pop(0)
            targets[key] = goal if len(goal) > 1 else goal[0] if goal else (hook, edge, slot)
    elif type(goal) is tuple:  # a second contribution to one gradient
        other_hook, other_edge, slot = goal
        sink = Sink(call, slot)
        if hook.lead(edge, call, slot):
            sink.expected = 2
            targets[key] = sink
            hook.gather(edge, call, sink)
            other_hook.gather(other_edge, call, sink)
    elif hook.lead(edge, call, goal.slot):
        goal.expected += 1
        hook.gather(edge, call, goal)


def _hook(watch: Watch, node: Node) -> NodeHook:
    metadata = node.metadata
    hook: NodeHook | None = metadata.get(KEY)
    if hook is None or hook._watch is not watch:
        hook = metadata[KEY] = NodeHook(watch)
        node.register_hook(hook)
    return hook
