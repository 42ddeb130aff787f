"""Compiled autograd: a backward that it compiles runs as it would without us, and is recorded at its boundary.

Compiled autograd takes each hook that it finds in the graph into its own: other guards, other kernels. That a backward is
to be compiled is known only when it begins. So our hooks are taken out of the graph then, and our modes are off until the
backward has ended. What they would have seen at the ends of the graph is recorded from outside: the gradients that go in,
and those that are left in parameters.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import autograd

from numscope.capture.torch.autograd.backward import EDGE_ENTRIES, KEY, BackwardCall, Node, NodeHook
from numscope.capture.torch.own_code import OwnCode
from numscope.capture.torch.patching import replace
from numscope.capture.torch.thread import Undo
from numscope.capture.torch.watch import Watch

_MODULE = "torch._dynamo.compiled_autograd"
_RUN = "_engine_run_backward"  # what all of torch's functions that run a backward call
_AccumulateGrad = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]


class _End(NamedTuple):
    """A slot of a call, and what will be there."""

    call: BackwardCall
    slot: int
    tensor: torch.Tensor  # a gradient, or the leaf that will have it


Hooks = MutableMapping[int, Any]


class _LeafHooks(NamedTuple):
    """Hooks of ours that were taken off a leaf."""

    leaf: torch.Tensor
    hooks: Hooks  # the leaf's own
    before: dict[int, Any]  # what they were
    ours: tuple[Callable[[torch.Tensor], None], ...]

    def put_back(self) -> None:
        """Have the leaf's hooks as they were, and those that were added since after them."""
        now = dict(self.hooks)
        self.hooks.clear()
        self.hooks.update({key: one for key, one in self.before.items() if key in now or one in self.ours})
        self.hooks.update(now)


class _Boundary:
    """The tensors that our hooks would have seen at the ends of a graph."""

    def __init__(self) -> None:
        self.going_in: list[_End] = []
        self.going_out: list[_End] = []
        self.leaves: list[_LeafHooks] = []

    def put_back(self) -> None:
        """Put back the hooks of leaves; those of nodes are gone, as their graph will be."""
        for one in self.leaves:
            one.put_back()

    def record(self) -> None:
        """Record the gradients that went in, and those that were left in leaves."""
        for end in self.going_in:
            end.call.record(end.slot, end.tensor)
        for end in self.going_out:
            if end.tensor.grad is not None:
                end.call.record(end.slot, end.tensor.grad)


class CompiledAutograd:
    """Takes everything of ours out of the way of backwards that are compiled."""

    def __init__(self, watch: Watch, leave: Callable[[], None], enter: Callable[[], None]) -> None:
        self._watch = watch
        self._leave = leave
        self._enter = enter

    def install(self) -> list[Undo]:
        """Watch where backwards begin; return what ends that."""
        original = getattr(autograd.graph, _RUN, None)
        if original is None:
            return []
        run = self._running(original)
        return [replace(owner, _RUN, run) for owner in (autograd.graph, autograd) if vars(owner).get(_RUN) is original]

    def _running(self, original: Callable[..., Any]) -> Callable[..., Any]:
        watch = self._watch

        def _engine_run_backward(outputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
            here = watch.thread.here
            if here.busy or not _is_enabled():
                return original(outputs, *args, **kwargs)
            boundary = _Boundary()
            with OwnCode(watch, "a compiled backward"):
                given = args[0] if args and isinstance(args[0], tuple) else ()
                self._take_hooks(outputs, given, boundary)
            was_on = here.entered or here.verifying
            self._leave()
            try:
                result = original(outputs, *args, **kwargs)
            finally:
                if was_on and watch.on:
                    self._enter()
                boundary.put_back()
            if watch.on:
                with OwnCode(watch, "a compiled backward"):
                    boundary.record()
                if kwargs.get("accumulate_grad"):
                    for leaf in boundary.leaves:
                        for hook in leaf.ours:
                            hook(leaf.leaf)
                with OwnCode(watch, "a compiled backward"):
                    watch.flush_if_full()
            return result

        return _engine_run_backward

    def _take_hooks(self, outputs: Sequence[Any], given: Sequence[torch.Tensor | None], boundary: _Boundary) -> None:
        """Take our hooks out of the graph of these outputs."""
        tops = {node: output for output in outputs if (node := _node(output)) is not None}
        gradients = {id(output): gradient for output, gradient in zip(outputs, given)}
        edges: dict[Node, list[tuple[NodeHook | None, int]]] = {}  # that lead to each leaf
        for node in _nodes(tops):
            hook = _without_hooks(node)
            if hook is not None and hook._watch is not self._watch:
                hook = None
            gradient = gradients.get(id(tops.get(node)))
            if hook is not None and gradient is not None:
                number = getattr(tops[node], "output_nr", 0)
                entries = _entries(hook.incoming)
                boundary.going_in += [_End(call, slot, gradient) for at, call, slot in entries if at == number]
            following = node.next_functions
            for edge, (leaf, _) in enumerate(following, -len(following)):
                if type(leaf) is _AccumulateGrad:
                    edges.setdefault(leaf, []).append((hook, edge))
        for leaf, [(hook, edge), *others] in edges.items():
            variable = leaf.variable
            _take_leaf_hooks(variable, boundary)
            # What is left in a leaf is what came by its edge where that is the only one, and nothing was there before.
            if hook is not None and not others and variable.grad is None and not _has_hooks(variable):
                ends = [one for one in _entries(hook.outgoing) if one[0] == edge]
                boundary.going_out += [_End(call, slot, variable) for _, call, slot in ends if slot >= 0]


def _is_enabled() -> bool:
    return bool(getattr(sys.modules.get(_MODULE), "compiled_autograd_enabled", False))


def _node(output: Any) -> Node | None:
    """Return the node of a tensor, or of an edge of the graph."""
    return output.grad_fn if isinstance(output, torch.Tensor) else getattr(output, "node", None)


def _nodes(tops: dict[Node, Any]) -> Iterator[Node]:
    """Yield the nodes of a graph but the leaves."""
    pending, visited = list(tops), set(tops)
    while pending:
        node = pending.pop()
        if type(node) is _AccumulateGrad:
            continue
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in visited:
                visited.add(following)
                pending.append(following)


def _without_hooks(node: Node) -> NodeHook | None:
    """Take our hooks off a node; return capture's own. A node tells of its hooks where it is given one more."""
    handle = node.register_hook(_nothing)
    hooks = handle.hooks_dict_ref() or {}
    handle.remove()
    found = None
    for key, hook in list(hooks.items()):
        if _is_ours(hook):
            del hooks[key]
            if type(hook) is NodeHook:
                found = hook
    if found is not None:
        node.metadata.pop(KEY, None)
    return found


def _take_leaf_hooks(leaf: torch.Tensor, boundary: _Boundary) -> None:
    hooks: Hooks | None = getattr(leaf, "_post_accumulate_grad_hooks", None)
    if not hooks:
        return
    before = dict(hooks)
    ours = tuple(hook for hook in before.values() if _is_ours(hook))
    if ours:
        boundary.leaves.append(_LeafHooks(leaf, hooks, before, ours))
        for key, hook in before.items():
            if hook in ours:
                del hooks[key]


def _is_ours(hook: object) -> bool:
    return type(hook).__module__.startswith("numscope.")


def _nothing(*_: object) -> None:
    """Stand for a hook."""


def _entries(flat: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Yield the entries of a hook one by one, see `NodeHook`."""
    for place in range(0, len(flat), EDGE_ENTRIES):
        yield flat[place : place + EDGE_ENTRIES]


def _has_hooks(leaf: torch.Tensor) -> bool:
    """Tell whether what reaches a leaf may be changed before it is left there."""
    return bool(leaf._backward_hooks or getattr(leaf, "_post_accumulate_grad_hooks", None))
