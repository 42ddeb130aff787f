"""Collectives: what each rank gives and gets, the result as it is after `wait`.

torch.distributed's functions are no torch functions: no mode sees them. All of them, whoever imported them, end in a
method of ProcessGroup and a Work; those are replaced while capture is on. Functional collectives (DTensor, FSDP) are
operators and are seen as such.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from numscope.capture.torch.own_code import OwnComputation
from numscope.capture.torch.slots import Slot
from numscope.capture.torch.thread import Undo
from numscope.capture.torch.watch import Watch

# Method of ProcessGroup → the function users know, positions of what is read, positions of what is written.
METHODS: dict[str, tuple[str, tuple[int, ...], tuple[int, ...]]] = {
    "allreduce": ("all_reduce", (0,), (0,)),
    "allreduce_coalesced": ("all_reduce_coalesced", (0,), (0,)),
    "broadcast": ("broadcast", (0,), (0,)),
    "reduce": ("reduce", (0,), (0,)),
    "allgather": ("all_gather", (1,), (0,)),
    "allgather_coalesced": ("all_gather_coalesced", (1,), (0,)),
    "_allgather_base": ("all_gather_into_tensor", (1,), (0,)),
    "all_gather_single": ("all_gather_into_tensor", (1,), (0,)),
    "allgather_into_tensor_coalesced": ("all_gather_into_tensor_coalesced", (1,), (0,)),
    "gather": ("gather", (1,), (0,)),
    "scatter": ("scatter", (1,), (0,)),
    "reduce_scatter": ("reduce_scatter", (1,), (0,)),
    "_reduce_scatter_base": ("reduce_scatter_tensor", (1,), (0,)),
    "reduce_scatter_single": ("reduce_scatter_tensor", (1,), (0,)),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter_tensor_coalesced", (1,), (0,)),
    "alltoall": ("all_to_all", (1,), (0,)),
    "alltoall_base": ("all_to_all_single", (1,), (0,)),
    "all_to_all_single": ("all_to_all_single", (1,), (0,)),
    "send": ("send", (0,), ()),
    "recv": ("recv", (), (0,)),
    "recv_anysource": ("recv", (), (0,)),
}


class Collectives:
    """Records collectives through the process group's methods."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._waiting: dict[
            int, tuple[Any, int, int, Any]
        ] = {}  # id of a Work → the Work, order, name, tensors written

    def install(self) -> Undo:
        """Replace the methods; return what puts them back."""
        distributed = sys.modules.get("torch.distributed")
        if distributed is None or not distributed.is_available():
            return lambda: None
        group, work = distributed.ProcessGroup, distributed.Work
        # As they stand in the class: read as attributes, methods of C++ classes would no longer be methods.
        originals = [(group, name, group.__dict__[name]) for name in METHODS if name in group.__dict__]
        originals.append((work, "wait", work.__dict__["wait"]))
        for owner, name, _ in originals:
            plain = getattr(owner, name)
            setattr(owner, name, self._waited(plain) if owner is work else self._recorded(name, plain))

        def undo() -> None:
            for owner, name, original in originals:
                setattr(owner, name, original)
            self._waiting.clear()

        return undo

    def _recorded(self, method: str, original: Any) -> Any:
        name, reads, writes = METHODS[method]

        def call(group: Any, *args: Any, **kwargs: Any) -> Any:
            watch = self._watch
            if not watch.on or watch.thread.here.busy:
                return original(group, *args, **kwargs)
            opened = self._guarded(lambda: self._before(name, group, args, kwargs, reads), name)
            if watch.tensors.carries_over:
                self._guarded(lambda: self._unsettle([args[place] for place in writes if place < len(args)]), name)
            watch.thread.here.collective = True
            try:
                result = original(group, *args, **kwargs)
            finally:
                watch.thread.here.collective = False
            if opened is not None:
                order, call_name = opened
                written = [args[place] for place in writes if place < len(args)]
                if result is None:
                    self._guarded(lambda: self._after(order, call_name, written), name)
                else:
                    self._waiting[id(result)] = (result, order, call_name, written)
            return result

        return call

    def _waited(self, original: Any) -> Any:
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(work, *args, **kwargs)
            found = self._waiting.pop(id(work), None)
            if found is not None and found[0] is work and self._watch.on and not self._watch.thread.here.busy:
                self._guarded(lambda: self._after(*found[1:]), "wait")
            return result

        return wait

    def _before(self, name: str, group: Any, args: Any, kwargs: Any, reads: tuple[int, ...]) -> tuple[int, int] | None:
        watch = self._watch
        recorder = watch.recorder
        watch.do_first()
        series = watch.series(f"Distributed.{name}")
        call = series.name(series.next(recorder.epoch))
        stack = watch.thread.here.stack
        parent = stack[-1] if stack else None
        if not watch.in_scope(call, parent, "collective"):
            return None
        slots: list[Slot] = watch.flatten("input", [args[place] for place in reads if place < len(args)], [])
        options = next((item for item in args if hasattr(item, "reduceOp")), None)
        facts: list[tuple[str, Any]] = [("group_size", group.size()), ("group_rank", group.rank())]
        if group.size() < torch.distributed.get_world_size():
            facts.append(("ranks", torch.distributed.get_process_group_ranks(group)))
        if options is not None:
            facts.append(("op", _operation(options.reduceOp)))
        root = getattr(next((item for item in args if hasattr(item, "rootRank")), None), "rootRank", None)
        if root is not None:
            facts.append(("root", root))
        facts += [(str(place), item) for place, item in enumerate(args) if isinstance(item, int)]
        order = recorder.order()
        phase = "forward" if torch._C._current_graph_task_id() == -1 else "backward"
        recorder.call(
            order, call, watch.kinds["collective"],
            parent.module if parent else watch.no_text, parent.module_class if parent else watch.no_text,
            watch.phases[phase], parent.order if parent else -1, -1, watch.arguments([], facts),
            watch.site(sys._getframe(4)), False, -1, watch.thread_number(),
        )  # fmt: skip
        watch.record(order, slots, call)
        return order, call

    def _unsettle(self, written: list[Any]) -> None:
        """Measure anew, in the next step, what is written to: it may be waited for where we don't see it."""
        for _, tensor in self._watch.flatten("output", written, []):
            self._watch.tensors.drop_carried_over(tensor)

    def _after(self, order: int, name: int, written: list[Any]) -> None:
        watch = self._watch
        outputs = watch.flatten("output", written, [])
        for _, tensor in outputs:
            watch.tensors.mark_unversioned(tensor)  # the backend writes without telling autograd's version counter
        watch.record(order, outputs, name)

    def _guarded(self, work: Any, where: str) -> Any:
        with OwnComputation(self._watch, f"collective {where}"):
            return work()
        return None


def _operation(operation: Any) -> str:
    """Return the name of a reduction; its own text holds an address."""
    kinds = torch.distributed.ReduceOp.RedOpType.__members__
    return next((name for name, kind in kinds.items() if operation == kind), "unknown")
