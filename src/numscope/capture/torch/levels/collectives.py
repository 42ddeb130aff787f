"""Collectives: what each rank gives and gets, the result as it is after `wait`.

torch.distributed's functions are no torch functions: no mode sees them. All of them, whoever imported them, end in a
method of ProcessGroup and a Work; those are replaced while capture is on. Functional collectives (DTensor, FSDP) are
operators and are seen as such.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from numscope.capture.torch.own_code import OwnComputation
from numscope.capture.torch.patching import replace, together
from numscope.capture.torch.slots import Argument, Arguments, Slot
from numscope.capture.torch.thread import Undo
from numscope.capture.torch.watch import Watch

Function = Callable[..., Any]


class Method(NamedTuple):
    """A method of ProcessGroup."""

    name: str  # of the function that users know
    reads: tuple[int, ...]  # positions of the arguments that it reads
    writes: tuple[int, ...]  # of those that it writes to


METHODS = {
    "allreduce": Method("all_reduce", (0,), (0,)),
    "allreduce_coalesced": Method("all_reduce_coalesced", (0,), (0,)),
    "broadcast": Method("broadcast", (0,), (0,)),
    "reduce": Method("reduce", (0,), (0,)),
    "allgather": Method("all_gather", (1,), (0,)),
    "allgather_coalesced": Method("all_gather_coalesced", (1,), (0,)),
    "_allgather_base": Method("all_gather_into_tensor", (1,), (0,)),
    "all_gather_single": Method("all_gather_into_tensor", (1,), (0,)),
    "allgather_into_tensor_coalesced": Method("all_gather_into_tensor_coalesced", (1,), (0,)),
    "gather": Method("gather", (1,), (0,)),
    "scatter": Method("scatter", (1,), (0,)),
    "reduce_scatter": Method("reduce_scatter", (1,), (0,)),
    "_reduce_scatter_base": Method("reduce_scatter_tensor", (1,), (0,)),
    "reduce_scatter_single": Method("reduce_scatter_tensor", (1,), (0,)),
    "reduce_scatter_tensor_coalesced": Method("reduce_scatter_tensor_coalesced", (1,), (0,)),
    "alltoall": Method("all_to_all", (1,), (0,)),
    "alltoall_base": Method("all_to_all_single", (1,), (0,)),
    "all_to_all_single": Method("all_to_all_single", (1,), (0,)),
    "send": Method("send", (0,), ()),
    "recv": Method("recv", (), (0,)),
    "recv_anysource": Method("recv", (), (0,)),
}


_NAMELESS = ("", "undefined", "default_pg", "mesh_default")  # descriptions of groups that the user gave none
Begun = TypeVar("Begun")


@dataclass(frozen=True)
class Pending(Generic[Begun]):
    """A collective whose result is waited for."""

    work: object  # torch's `Work`
    begun: Begun
    written: list[object]  # the arguments that it writes to


class CollectiveCalls(ABC, Generic[Begun]):
    """Sees collectives through the process group's methods."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._waiting: dict[int, Pending[Begun]] = {}  # by the id of the Work

    @abstractmethod
    def _before(self, name: str, group: Any, args: Arguments, reads: tuple[int, ...], frame: FrameType) -> Begun | None:
        """Look at what a collective of this name is given; None where that is not wanted."""

    @abstractmethod
    def _after(self, begun: Begun, written: list[object]) -> None:
        """Look at what it has written to."""

    def install(self) -> Undo:
        """Replace the methods; return what puts them back."""
        distributed = sys.modules.get("torch.distributed")
        if distributed is None or not distributed.is_available():
            return lambda: None
        group, work = distributed.ProcessGroup, distributed.Work
        undo = [
            replace(group, name, self._recorded(name, getattr(group, name))) for name in METHODS if name in vars(group)
        ]
        return together([self._waiting.clear, *undo, replace(work, "wait", self._waited(work.wait))])

    def _recorded(self, method: str, original: Function) -> Function:
        name, reads, writes = METHODS[method]

        def call(group: Any, *args: object, **kwargs: object) -> object:
            watch = self._watch
            if not watch.on or watch.thread.here.busy:
                return original(group, *args, **kwargs)
            begun: Begun | None = None
            written = [args[place] for place in writes if place < len(args)]
            with OwnComputation(watch, f"collective {name}"):
                begun = self._before(name, group, args, reads, sys._getframe(1))
            if watch.tensors.carries_over:
                with OwnComputation(watch, f"collective {name}"):
                    self._unsettle(written)
            watch.thread.here.collective = True
            try:
                result = original(group, *args, **kwargs)
            finally:
                watch.thread.here.collective = False
            if begun is not None:
                if result is None:
                    with OwnComputation(watch, f"collective {name}"):
                        self._after(begun, written)
                else:
                    self._waiting[id(result)] = Pending(result, begun, written)
            return result

        return call

    def _waited(self, original: Function) -> Function:
        def wait(work: object, *args: object, **kwargs: object) -> object:
            result = original(work, *args, **kwargs)
            pending = self._waiting.pop(id(work), None)
            if pending is not None and pending.work is work and self._watch.on and not self._watch.thread.here.busy:
                with OwnComputation(self._watch, "collective wait"):
                    self._after(pending.begun, pending.written)
            return result

        return wait

    def _unsettle(self, written: list[object]) -> None:
        """Measure anew, in the next step, what is written to: it may be waited for where we don't see it."""
        for _, tensor in self._watch.flatten("output", written, []):
            self._watch.tensors.drop_carried_over(tensor)


class BegunCollective(NamedTuple):
    """A collective that has begun."""

    order: int
    name: int


class Collectives(CollectiveCalls[BegunCollective]):
    """Records collectives."""

    def _before(
        self, name: str, group: Any, args: Arguments, reads: tuple[int, ...], frame: FrameType
    ) -> BegunCollective | None:
        watch = self._watch
        recorder = watch.recorder
        watch.do_first()
        series = watch.series(f"Distributed.{name}")
        call = series.name(series.next(recorder.epoch))
        stack = watch.thread.here.stack
        if not watch.in_scope(call, stack[-1] if stack else None, "collective"):
            return None
        slots: list[Slot] = watch.flatten("input", [args[place] for place in reads if place < len(args)], [])
        options = next((item for item in args if hasattr(item, "reduceOp")), None)
        facts: list[Argument] = [("group_size", group.size()), ("group_rank", group.rank())]
        if group.size() < torch.distributed.get_world_size():
            facts.append(("ranks", torch.distributed.get_process_group_ranks(group)))
        if (described := getattr(group, "group_desc", "")) not in _NAMELESS:
            facts.append(("group", described))
        if options is not None:
            facts.append(("op", _operation(options.reduceOp)))
        root = getattr(next((item for item in args if hasattr(item, "rootRank")), None), "rootRank", None)
        if root is not None:
            facts.append(("root", root))
        facts += [(str(place), item) for place, item in enumerate(args) if isinstance(item, int)]
        order = recorder.order()
        parent = stack[-1] if stack else watch.outside
        phase = watch.forward_phase if torch._C._current_graph_task_id() == -1 else watch.backward_phase
        row = watch.call_row(
            order,
            call,
            watch.kinds["collective"],
            parent.module,
            parent.module_class,
            phase,
            parent=parent.order,
            arguments=watch.arguments([], facts),
            stack=watch.site(frame),
        )
        recorder.call(row)
        watch.record(order, slots, call)
        return BegunCollective(order, call)

    def _after(self, begun: BegunCollective, written: list[object]) -> None:
        watch = self._watch
        outputs = watch.flatten("output", written, [])
        for _, tensor in outputs:
            watch.tensors.mark_unversioned(tensor)  # the backend writes without telling autograd's version counter
        watch.record(begun.order, outputs, begun.name)


def _operation(operation: object) -> str:
    """Return the name of a reduction; its own text holds an address."""
    kinds = torch.distributed.ReduceOp.RedOpType.__members__
    return next((name for name, kind in kinds.items() if operation == kind), "unknown")
