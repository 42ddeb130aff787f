"""The walk through the autograd graph after a call: which nodes it made, and by which edges gradients leave it."""

from __future__ import annotations

from typing import Any

import torch

from numscope.capture.torch.backward import KEY, BackwardCall, Exit, Node, NodeHook, Sink
from numscope.capture.torch.watch import Watch

_AccumulateGrad = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]

Edge = tuple[int, Node, int, torch.Tensor | None]  # slot, node, output number, leaf


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
        key: Any = tensor.grad_fn
        if key is None:
            if not tensor.requires_grad:
                continue
            has_leaf = True
            key = id(tensor)
        elif number := tensor.output_nr:
            key = key, number
        out = watch.gradient_out.get(slot) or watch.gradient_slot(slot)
        if found is None:
            found = {key: out}
        elif key in found:
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
    only: Node = None
    others: list[Node] = []
    for slot, tensor in outputs:
        node: Node = tensor.grad_fn
        if node is None or node._sequence_nr() < first:
            continue
        metadata = node.metadata
        own: NodeHook | None = metadata.get(KEY)
        if own is None or own._watch is not watch:
            own = metadata[KEY] = NodeHook(watch)
            node.register_hook(own)
        own.incoming += (tensor.output_nr, call, watch.gradient_in.get(slot) or watch.incoming_slot(slot))
        if only is None:
            only = node
        elif node is not only and node not in others:
            others.append(node)
    if others:
        _walk(watch, None, None, call, [only, *others], targets, first)
    elif only is not None and own is not None and (inner := _leave(watch, own, only, call, targets, first)):
        _walk(watch, own, only, call, inner, targets, first)


def _leave(watch: Watch, own: NodeHook, node: Node, call: BackwardCall, targets: Targets, first: int) -> list[Node]:
    """Lead what leaves a call by the edges of its only output node; return from where to walk on to its other nodes."""
    slots, has_leaf = targets
    inner: list[Node] = []
    if own.exits is not None and not has_leaf:
        for place, edge, following, number in own.exits:
            key: Any = (following, number) if number else following
            if key in slots:
                _lead(own if place is None else _hook(watch, place), edge, call, slots, key)
            elif following._sequence_nr() >= first:
                inner.append(following)
        return inner if len(inner) == 1 == len(own.exits) else [node] if inner else inner
    edges = node.next_functions
    edge = -1 - len(edges)
    for following, number in edges:
        edge += 1
        key = (following, number) if number else following
        if key in slots:
            _lead(own, edge, call, slots, key)
        elif type(following) is _AccumulateGrad:
            if has_leaf and (key := id(following.variable)) in slots:
                _lead(own, edge, call, slots, key)
        elif following is not None and following._sequence_nr() >= first:
            inner.append(following)
    # Of an output node that has other edges, too, the walk notes those that leave.
    return inner if len(inner) == 1 == len(edges) else [node] if inner else inner


def _walk(
    watch: Watch, own: NodeHook | None, only: Node, call: BackwardCall, pending: list[Node], targets: Targets, first: int
) -> None:  # fmt: skip
    """Lead what leaves a call by the edges of its other nodes; `own`: the hook of its only output node, if that is one."""
    slots, has_leaf = targets
    visited = {only, *pending}
    exits: list[Exit] = []
    while pending:
        node = pending.pop()
        # A hook that knew its own node would keep it alive for ever.
        owner: Node | None = None if node is only else node
        if not has_leaf:
            found = own if node is only else _known_hook(watch, node)
            if found is not None and found.exits is not None:
                for place, edge, following, number in found.exits:
                    key: Any = (following, number) if number else following
                    if key not in slots:
                        if following in visited:
                            continue
                        if following._sequence_nr() >= first:
                            visited.add(following)
                            pending.append(following)
                            continue
                    elif owner is not None:
                        _lead(_hook(watch, place or owner), edge, call, slots, key)
                    exits.append(
                        (owner if place is None else None if place is only else place, edge, following, number)
                    )
                continue
        hook = None
        edges = node.next_functions
        edge = -1 - len(edges)
        for following, number in edges:
            edge += 1
            key = (following, number) if number else following
            if key in slots:
                exits.append((owner, edge, following, number))
            elif type(following) is _AccumulateGrad:
                if not has_leaf or (key := id(following.variable)) not in slots:
                    continue
            elif following is None or following in visited:
                continue
            elif following._sequence_nr() >= first:
                visited.add(following)
                pending.append(following)
                continue
            else:
                exits.append((owner, edge, following, number))
                continue
            if owner is not None:
                if hook is None:
                    hook = _hook(watch, node)
                _lead(hook, edge, call, slots, key)
    if own is not None:
        own.exits = exits


def _lead(hook: NodeHook, edge: int, call: BackwardCall, slots: dict[Any, Any], key: Any) -> None:
    """Lead what leaves by an edge to the input that it is the gradient of."""
    goal = slots[key]
    if type(goal) is int:
        outgoing = hook.outgoing
        if not outgoing:
            hook.outgoing = (edge, call, goal)
        elif (
            outgoing[-3] == edge and type(other := outgoing[-2]) is BackwardCall and other is not call
        ) or edge not in outgoing[::3]:
            hook.outgoing = (*outgoing, edge, call, goal)
        elif not hook.lead(edge, call, goal):
            return
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


def _hook(watch: Watch, node: Node) -> NodeHook:
    metadata = node.metadata
    found: NodeHook | None = metadata.get(KEY)
    if found is None or found._watch is not watch:
        found = metadata[KEY] = NodeHook(watch)
        node.register_hook(found)
    return found


def _known_hook(watch: Watch, node: Node) -> NodeHook | None:
    found: NodeHook | None = node.metadata.get(KEY)
    return found if found is not None and found._watch is watch else None
