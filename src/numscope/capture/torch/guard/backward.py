"""Gradients under the guard: what leaves the autograd nodes of each call, or each module, and what a pass starts from."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, cast

import torch

from numscope.capture.torch.autograd.graph import Edge
from numscope.capture.torch.guard import on_cpu, on_device
from numscope.capture.torch.guard.calls import LiveCall, bytes_of
from numscope.capture.torch.guard.flags import is_finite
from numscope.capture.torch.guard.guarded_job import GuardedJob
from numscope.capture.torch.guard.record import HeldSlot, LookSlot, RingEntry, SlotName
from numscope.capture.torch.guard.tracking import LiveTensor
from numscope.capture.torch.levels.optimizer import outside_torch
from numscope.capture.torch.own_code import OwnCode, OwnComputation
from numscope.capture.torch.patching import replace
from numscope.capture.torch.slots import Slot
from numscope.capture.torch.thread import Undo
from numscope.nonfinite.rule import Counts

Tensor = torch.Tensor
Gradients = tuple[Tensor | None, ...]  # as the engine hands them to a hook
_LEAF = 2**64 - 1  # the sequence number of AccumulateGrad
# Nodes between an operator and a parameter whose gradient is finite exactly where theirs is.
_TURNS = frozenset(["TBackward0", "TransposeBackward0", "PermuteBackward0", "ViewBackward0", "ToCopyBackward0"])
_CALL = "numscope.guard"  # keys of a node's metadata
_MODULE = "numscope.guard.module"


class Node(Protocol):
    """A node of the autograd graph, as torch shows it to Python."""

    @property
    def metadata(self) -> dict[str, object]:
        """The values that anybody has attached to it."""

    @property
    def next_functions(self) -> tuple[tuple[Node | None, int], ...]:
        """Where its gradients go: nodes, each with the number of its output."""

    @property
    def variable(self) -> Tensor:
        """The leaf, if it is an AccumulateGrad."""

    def _sequence_nr(self) -> int: ...

    def register_hook(self, hook: Callable[[Gradients, Gradients], None]) -> object:
        """Have a hook called when the node has run, with what left it and what came in."""


CallEdge = tuple[int, Node | None, int, Tensor]  # position of an input, its node, the node's output, and the input


def node_of(tensor: Tensor) -> Node | None:
    """Return the node that made a tensor, or None of a leaf."""
    return cast("Node | None", tensor.grad_fn)


def call_edges(args: Sequence[object]) -> list[CallEdge]:
    """Return where the gradients of a call's inputs will go; to be asked before the call, which may change them."""
    return [
        (index, node_of(item), item.output_nr, item)
        for index, item in enumerate(args)
        if isinstance(item, Tensor) and item.requires_grad
    ]


# Calls ----------------------------------------------------------------------------------------------------------------


def hook_call(job: GuardedJob, call: LiveCall, outputs: Sequence[Tensor], edges: list[CallEdge], first: int) -> None:
    """Watch the nodes that a call made: those numbered from `first` on that no inner call has."""
    pending: list[Node] = []
    for tensor in outputs:
        node = node_of(tensor)
        if node is not None and first <= node._sequence_nr() < _LEAF:
            pending.append(node)
    while pending:
        node = pending.pop()
        metadata = node.metadata
        if metadata.get(_CALL) is job:
            continue
        metadata[_CALL] = job
        slots: list[int] = []
        leaves: dict[int, Tensor] = {}
        for following, number in node.next_functions:
            slot = -1
            if following is not None:
                sequence = following._sequence_nr()
                variable = _leaf_behind(following, sequence)
                if variable is not None and job.is_late(variable):
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
        node.register_hook(NodeHook(job, call, slots, leaves))


def _leaf_behind(node: Node, sequence: int) -> Tensor | None:
    """Return the parameter that a node gives its gradient to, as it is or through one that only turns it round."""
    if sequence == _LEAF:
        return node.variable
    if type(node).__name__ not in _TURNS or len(node.next_functions) != 1:
        return None
    ((following, _),) = node.next_functions
    return following.variable if following is not None and following._sequence_nr() == _LEAF else None


class NodeHook:
    """Looks at the gradients that leave one node of a call."""

    __slots__ = ("_call", "_job", "_leaves", "_slots")

    def __init__(self, job: GuardedJob, call: LiveCall, slots: list[int], leaves: dict[int, Tensor]) -> None:
        self._leaves = leaves  # by edge, where the gradients are looked at when the pass is over
        self._job = job
        self._call = call
        self._slots = slots  # the input that an edge leads to; -1: a node inside the call

    def __call__(self, outgoing: Gradients, incoming: Gradients) -> None:
        watch = self._job.watch
        if not watch.on or watch.thread.here.busy:
            return
        with OwnCode(watch, "backward"):  # this runs in the user's thread, with our mode on
            late = self._leaves or self._job.settings.deferred
            if late or any(g is not None and not g.is_cpu for g in outgoing):
                self._look_later(incoming, outgoing)
            else:
                self._look(incoming, outgoing)

    def _look(self, incoming: Gradients, outgoing: Gradients) -> None:
        bad = False
        size = 0
        made: list[HeldSlot] = []
        # The ring has gradients of its own over the same memory: the engine still sees that nobody else uses its tensors,
        # so that a parameter takes the one it is given as it takes it without us.
        for slot, gradient in zip(self._slots, outgoing):
            if gradient is not None:
                bad = bad or not is_finite(gradient)
                made.append((slot, gradient.detach(), gradient._version))
                size += bytes_of(gradient)
        if bad:
            named = [(self._name(i), g) for i, g in enumerate(outgoing[: len(self._slots)]) if g is not None]
            came_in = [(f"input.{i}", g) for i, g in enumerate(incoming) if g is not None]
            on_cpu.judge_gradients(self._job, self._call, came_in, named)
        taken: list[HeldSlot] = [(i, g.detach(), g._version) for i, g in enumerate(incoming) if g is not None]
        self._job.ring.add(RingEntry(self._call, "backward", taken, made, size))

    def _look_later(self, incoming: Gradients, outgoing: Gradients) -> None:
        job, leaves, slots = self._job, self._leaves, self._slots
        made: list[tuple[SlotName, Tensor]] = [
            (slots[i] if slots[i] >= 0 else self._name(i), gradient)
            for i, gradient in enumerate(outgoing[: len(slots)])
            if gradient is not None and i not in leaves
        ]
        taken: list[tuple[SlotName, Tensor]] = [(i, g) for i, g in enumerate(incoming) if g is not None]
        sent = [
            (f"output.{max(slots[i], 0)}", gradient, variable)
            for i, variable in leaves.items()
            if (gradient := outgoing[i]) is not None
        ]
        if job.tracker.world > 1:  # when the pass is over, other ranks' gradients are in the parameter's
            passing = [(slot, gradient) for slot, gradient, _ in sent]
            on_device.look_at_gradients(job, self._call, taken, made, passing)
            return
        looks = on_device.look_at_gradients(job, self._call, taken, made)
        for slot, gradient, variable in sent:
            job.late.before_write(gradient)  # what is added to the parameter's gradient later is added in place
            job.gradient_to_come(self._call, slot, looks, variable)

    def _name(self, index: int) -> str:
        """Return the slot of what leaves through an edge; edges inside the call have no argument's number."""
        return f"output.{self._slots[index]}" if self._slots[index] >= 0 else f"output.inner{index}"


# Modules, where the calls inside them are not watched -----------------------------------------------------------------


class _Exit(NamedTuple):
    """An edge of the graph that leaves a module."""

    node: Node
    edge: int
    following: Node | None  # where it leads
    number: int  # of that node's output


class ModuleGradients:
    """Watches the gradients on the edges into and out of each module.

    Capture sees the same edges (capture/torch/autograd/graph.py) and adds up the contributions to an input's gradient; the
    guard looks at each by itself.
    """

    def __init__(self, job: GuardedJob) -> None:
        self.job = job
        # The edges that leave a module by the last nodes of it, while a model runs: of a module around it, the nodes are not
        # walked through again.
        self._exits: dict[Node, list[_Exit]] = {}
        self.last_finite: weakref.ref[Tensor] | None = (
            None  # the last gradient that went out of a module, if it was finite
        )

    def forget_exits(self) -> None:
        """Forget the edges of a model that has ended."""
        self._exits.clear()

    def watch(self, call: ModuleBackward, outputs: list[Slot], inputs: list[Edge], first: int) -> None:
        """Watch the edges of a module that made the nodes from number `first` on; outputs have their gradients' slots."""
        targets: dict[tuple[int, int], int] = {}
        known = self._exits
        for slot, source, number, leaf in inputs:
            target = (id(leaf), -1) if leaf is not None else (id(source), number)
            targets[target] = self.job.watch.gradient_slot(slot)
            if isinstance(leaf, torch.nn.Parameter):
                known = {}  # edges to parameters are not kept
        own: list[Node] = []
        for slot, tensor in outputs:
            node = node_of(tensor)
            if node is not None and first <= node._sequence_nr() < _LEAF:
                self._hook(node).incoming.append((call, tensor.output_nr, slot))
                own.append(node)
        if not targets:
            return
        exits: list[_Exit] = []
        pending = list(own)
        visited = set(own)
        taken: list[list[_Exit]] = []
        while pending:
            node = pending.pop()
            edges = known.get(node)
            if edges is None:
                edges = [_Exit(node, edge, *following) for edge, following in enumerate(node.next_functions)]
            elif any(edges is other for other in taken):
                continue  # another output of the same module
            else:
                taken.append(edges)
            for item in edges:
                following = item.following
                if following is None:
                    continue
                sequence = following._sequence_nr()
                variable = following.variable if sequence == _LEAF else None
                found = targets.get((id(following), item.number) if variable is None else (id(variable), -1))
                if found is not None:
                    self._hook(item.node).outgoing.append((call, item.edge, found))
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
            self._exits[node] = exits

    def _hook(self, node: Node) -> EdgeHook:
        known = node.metadata.get(_MODULE)
        if isinstance(known, EdgeHook) and known.owner is self:
            return known
        hook = EdgeHook(self)
        node.metadata[_MODULE] = hook
        node.register_hook(hook)
        return hook


class EdgeHook:
    """Takes the gradients on the edges of one node when it has run."""

    __slots__ = ("incoming", "outgoing", "owner")

    def __init__(self, owner: ModuleGradients) -> None:
        self.owner = owner
        self.incoming: list[tuple[ModuleBackward, int, int]] = []  # call, output number, slot
        self.outgoing: list[tuple[ModuleBackward, int, int]] = []  # call, edge number, slot

    def __call__(self, outgoing: Gradients, incoming: Gradients) -> None:
        watch = self.owner.job.watch
        if not watch.on or watch.thread.here.busy:
            return
        with OwnCode(watch, "backward"):  # the user's thread, with our mode on
            for call, number, slot in reversed(self.incoming):  # the outermost module first: it was built last
                if number < len(incoming) and (gradient := incoming[number]) is not None:
                    call.take(slot, gradient)
            for call, edge, slot in self.outgoing:
                if edge < len(outgoing) and (gradient := outgoing[edge]) is not None:
                    call.take(slot, gradient)


class ModuleBackward:
    """The backward part of a module call: its gradients in, and its gradients out."""

    __slots__ = ("_call", "_entry", "_gradients", "_lone", "_looks", "_wrong")

    def __init__(self, gradients: ModuleGradients, call: LiveCall, lone: bool) -> None:
        self._gradients = gradients
        self._call = call
        self._lone = lone  # nothing goes out of it but to parameters: what comes in is judged by itself
        self._entry: RingEntry | None = None  # of this pass, in the ring, which says how long its gradients are held
        self._wrong: list[LiveTensor] = []  # gradients that came in and are not finite; the call has them, too
        self._looks: list[LookSlot] = []

    def take(self, slot: int, gradient: Tensor) -> None:
        """Take one gradient; what goes out is judged with what came in."""
        job = self._gradients.job
        name = job.recorder.strings[slot]
        if job.is_late(gradient):
            self._log(job, name, gradient)
        elif name.startswith("input"):
            self._came_in(job, name, gradient)
        else:
            self._went_out(job, name, gradient)

    def _came_in(self, job: GuardedJob, name: str, gradient: Tensor) -> None:
        entry = self._entry
        held: HeldSlot = (name, gradient.detach(), gradient._version)
        first = next((slot for slot, _, _ in entry.inputs), name) if entry is not None else name
        if entry is None or first == name:  # the graph was kept and runs again
            self._entry = RingEntry(self._call, "backward", [held], [], bytes_of(gradient))
            self._call.incoming = self._wrong = []
            job.ring.add(self._entry)
        elif job.ring.grow(entry, bytes_of(gradient)):
            entry.inputs.append(held)
        last = self._gradients.last_finite
        if last is not None and last() is gradient:
            return  # as it went out of the call before
        if not is_finite(gradient):
            self._wrong.append(on_cpu.live_tensor(job, name, gradient))
            if self._lone:
                job.judge(job.tracker.backward, self._call, list(self._wrong), [])

    def _went_out(self, job: GuardedJob, name: str, gradient: Tensor) -> None:
        entry = self._entry
        if is_finite(gradient):
            self._gradients.last_finite = weakref.ref(gradient)
        else:
            given = list(self._wrong)
            if not given and entry is not None:
                given = [LiveTensor(str(slot), 0, Counts(), tensor=tensor) for slot, tensor, _ in entry.inputs]
            job.judge(job.tracker.backward, self._call, given, [on_cpu.live_tensor(job, name, gradient)])
        if entry is not None and job.ring.grow(entry, bytes_of(gradient)):
            entry.outputs.append((name, gradient.detach(), gradient._version))

    def _log(self, job: GuardedJob, name: str, gradient: Tensor) -> None:
        before = job.late.held
        look = job.late.gradient(gradient)
        if not name.startswith("input"):
            made: list[LookSlot] = [(name, look)]
            on_device.log_gradients(job, self._call, list(self._looks), made, before)
            return
        if next((slot for slot, _ in self._looks), name) == name:
            self._looks = []
        self._looks.append((name, look))
        self._call.incoming = [known for _, known in self._looks]
        if self._lone:
            on_device.log_gradients(job, self._call, [(name, look)], [], before)


# Losses ---------------------------------------------------------------------------------------------------------------


class Losses:
    """Looks at what each backward pass starts from: at module level a loss may be made by calls that are not watched."""

    def __init__(self, job: GuardedJob) -> None:
        self._job = job

    def install(self) -> Undo:
        """Replace `torch.autograd.backward`; return what puts it back."""
        original = torch.autograd.backward

        def backward(tensors: object, *args: object, **kwargs: object) -> object:
            watch = self._job.watch
            if watch.on and not watch.thread.here.busy:
                with OwnComputation(watch, "Tensor.backward"):
                    self._look(tensors)
            return original(tensors, *args, **kwargs)  # type: ignore[arg-type]

        return replace(torch.autograd, "backward", backward)

    def _look(self, tensors: object) -> None:
        job = self._job
        several = tensors if isinstance(tensors, (list, tuple)) else [tensors]
        given = [item for item in several if isinstance(item, Tensor)]
        if not given:
            return
        series = job.watch.series("Tensor.backward")
        site = job.watch.site(outside_torch(sys._getframe(2)))
        call = LiveCall(series, series.next(job.recorder.epoch), "api", "backward", None, site)
        if any(job.is_late(tensor) for tensor in given):
            looks = [job.late.given(tensor, job.parameter) for tensor in given]
            seen = [LiveTensor(f"input.{n}", look.key, None, look, "", look.tensor) for n, look in enumerate(looks)]
            job.judge_later(job.tracker.loss, call, seen)
        elif not all(is_finite(tensor) for tensor in given):
            seen = [on_cpu.live_tensor(job, f"input.{n}", tensor) for n, tensor in enumerate(given)]
            job.judge(job.tracker.loss, call, seen)
