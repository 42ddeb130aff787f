"""Gradients of calls: the autograd nodes that a call has made are watched, and what leaves each is looked at."""

from __future__ import annotations

from typing import Any

import torch

from numscope.capture.torch.guard.calls import Entry, Seen, bytes_of
from numscope.capture.torch.guard.flags import is_finite
from numscope.capture.torch.own_code import OwnCode

Tensor = torch.Tensor
_LEAF = 2**64 - 1  # the sequence number of AccumulateGrad
_KEY = "numscope.guard"
# Nodes between an operator and a parameter whose gradient is finite exactly where theirs is.
_TURNS = frozenset(["TBackward0", "TransposeBackward0", "PermuteBackward0", "ViewBackward0", "ToCopyBackward0"])


def hook(guard: Any, seen: Seen, outputs: Any, edges: list[Any], first: int) -> None:
    """Watch the nodes that a call made: those numbered from `first` on that no inner call has."""
    pending = []
    for tensor in outputs:
        node = tensor.grad_fn
        if node is not None and first <= node._sequence_nr() < _LEAF:
            pending.append(node)
    while pending:
        node = pending.pop()
        metadata = node.metadata
        if metadata.get(_KEY) is guard:
            continue
        metadata[_KEY] = guard
        slots: list[int] = []
        leaves: dict[int, Any] = {}
        for following, number in node.next_functions:
            slot = -1
            if following is not None:
                sequence = following._sequence_nr()
                variable = _leaf_behind(following, sequence)
                if variable is not None and guard.is_late(variable):
                    slot = next((index for index, _, _, leaf in edges if leaf is variable), -1)
                    leaves[len(slots)] = variable
                elif sequence == _LEAF:
                    slot = next((index for index, _, _, leaf in edges if leaf is following.variable), -1)
                else:
                    for index, source, output, _ in edges:
                        if source is following and output == number:
                            slot = index
                            break
                    else:
                        if sequence >= first:
                            pending.append(following)
            slots.append(slot)
        node.register_hook(NodeHook(guard, seen, slots, leaves))


def _leaf_behind(node: Any, sequence: int) -> Tensor | None:
    """Return the parameter that a node gives its gradient to, as it is or through one that only turns it round."""
    if sequence != _LEAF:
        if type(node).__name__ not in _TURNS:
            return None
        following = node.next_functions
        node = following[0][0] if len(following) == 1 else None
        if node is None or node._sequence_nr() != _LEAF:
            return None
    return node.variable  # type: ignore[no-any-return]


class NodeHook:
    """Looks at the gradients that leave one node."""

    __slots__ = ("_guard", "_leaves", "_seen", "_slots")

    def __init__(self, guard: Any, seen: Seen, slots: list[int], leaves: dict[int, Any]) -> None:
        self._leaves = leaves
        self._guard = guard
        self._seen = seen
        self._slots = slots

    def __call__(self, outgoing: tuple[Any, ...], incoming: tuple[Any, ...]) -> None:
        guard = self._guard
        if not guard.watch.on or guard.watch.thread.here.busy:
            return
        with OwnCode(guard.watch, "backward"):  # this runs in the user's thread, with our mode on
            self._look(incoming, outgoing)

    def _look(self, incoming: tuple[Any, ...], outgoing: tuple[Any, ...]) -> None:
        guard = self._guard
        if self._leaves or guard.waits or any(g is not None and not g.is_cpu for g in outgoing):
            self._look_later(incoming, outgoing)
            return
        bad = False
        size = 0
        made = []
        # The ring has gradients of its own over the same memory: the engine still sees that nobody else uses its tensors,
        # so that a parameter takes the one it is given as it takes it without us.
        for slot, gradient in zip(self._slots, outgoing):
            if gradient is not None:
                bad = bad or not is_finite(gradient)
                made.append((slot, gradient.detach(), gradient._version))
                size += bytes_of(gradient)
        if bad:
            names = [(self._name(i), g) for i, g in enumerate(outgoing[: len(self._slots)]) if g is not None]
            guard.now.gradients(self._seen, [(f"input.{i}", g) for i, g in enumerate(incoming) if g is not None], names)
        taken = [(i, g.detach(), g._version) for i, g in enumerate(incoming) if g is not None]
        guard.ring.add(Entry(self._seen, "backward", taken, made, size))

    def _look_later(self, incoming: tuple[Any, ...], outgoing: tuple[Any, ...]) -> None:
        leaves = self._leaves
        slots = self._slots
        made = [
            (slots[i] if slots[i] >= 0 else self._name(i), gradient)
            for i, gradient in enumerate(outgoing[: len(slots)])
            if gradient is not None and i not in leaves
        ]
        guard = self._guard
        taken = [(i, g) for i, g in enumerate(incoming) if g is not None]
        sent = [(f"output.{max(slots[i], 0)}", outgoing[i], v) for i, v in leaves.items() if outgoing[i] is not None]
        if guard.judge.world > 1:  # when the pass is over, other ranks' gradients are in the parameter's
            guard.later.gradients(self._seen, taken, made, [(slot, gradient) for slot, gradient, _ in sent])
            return
        given = guard.later.gradients(self._seen, taken, made)
        for slot, gradient, variable in sent:
            guard.late.before_write(gradient)  # what is added to the parameter's gradient later is added in place
            guard.leaf(self._seen, slot, given, variable)

    def _name(self, index: int) -> str:
        """Return the slot of what leaves through an edge; edges inside the call have no argument's number."""
        return f"output.{self._slots[index]}" if self._slots[index] >= 0 else f"output.inner{index}"
