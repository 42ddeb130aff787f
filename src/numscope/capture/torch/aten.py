"""The aten level: a TorchDispatchMode that records every dispatched operator, in forward and in backward.

An operator that runs in backward is linked to the forward operator whose autograd node is running: a node has the
sequence number that was the newest when its operator was dispatched.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from numscope.capture.torch.names import UNINITIALIZED, is_in_place
from numscope.capture.torch.tensors import version_of
from numscope.capture.torch.thread import OwnWork
from numscope.capture.torch.watch import Watch

_SILENT = {
    "detach",
    "alias",
    "lift_fresh",
    "is_same_size",
    "_local_scalar_dense",
    "sym_size",
    "sym_numel",
    "sym_stride",
}


class AtenMode(TorchDispatchMode):
    """Sees each operator while it is on the mode stack."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._watch = watch
        self._heads: dict[Any, tuple[str, str, str]] = {}  # operator → head, op, kind
        self._owners: dict[tuple[int, int], int] = {}  # thread, sequence number → order of the forward operator
        self._epoch = -1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        watch = self._watch
        thread = watch.thread
        if thread.busy or not (watch.on and watch.forward_on):
            return func(*args, **kwargs)
        head, op, kind = self._heads.get(func) or self._learn(func)
        if op in _SILENT or head.startswith("Ops.pr"):  # profiler, prim: no operators of the model
            return func(*args, **kwargs)
        row = None
        with OwnWork(watch, head):
            row = self._before(head, op, kind, args, kwargs)
        result = func(*args, **kwargs)
        if row is not None:
            with OwnWork(watch, head):
                self._after(row, op, result)
        return result

    def _learn(self, func: Any) -> tuple[str, str, str]:
        namespace, _, op = func._schema.name.partition("::")
        if namespace == "aten":
            found = (f"Aten.{op}", op, "aten")
        elif namespace in {"c10d", "_c10d_functional", "_c10d_functional_autograd"}:
            found = (f"Distributed.{op}", op, "collective")
        else:
            found = (f"Ops.{namespace}.{op}", op, "aten")
        self._heads[func] = found
        return found

    def _before(self, head: str, op: str, kind: str, args: Any, kwargs: Any) -> tuple[Any, ...] | None:
        watch = self._watch
        recorder = watch.recorder
        node = torch._C._current_autograd_node()
        phase = "forward" if node is None else "backward"
        series = watch.series(f"{head}:{phase}", None, head)
        number = series.next(recorder.epoch)
        name = series.name(number, phase)
        stack = watch.thread.stack
        parent = stack[-1] if stack else None
        wanted = watch.record_forward if node is None else watch.record_backward
        if not wanted or not watch.in_scope(name, parent, kind, phase):
            return None
        order = recorder.order()
        positional: list[tuple[str, Any]] = []
        named: list[tuple[str, Any]] = []
        slots = watch.flatten("input", args, positional) + watch.flatten_named("kwargs", kwargs, named)
        forward = self._link(order, node)
        recorder.call(
            order, name, watch.kinds[kind],
            parent.module if parent else watch.no_text, parent.module_class if parent else watch.no_text,
            watch.phases[phase], parent.order if parent else -1, forward, watch.arguments(positional, named),
            watch.site(sys._getframe(2)) if node is None else -1, False, -1, watch.thread_number(),
        )  # fmt: skip
        rows = watch.rows(order, slots, is_in_place(op))
        if watch.keeps_some:
            watch.keep(slots, rows, name)
        watch.add(rows)
        return order, name, slots, [version_of(tensor) for _, tensor in slots]

    def _link(self, order: int, node: Any) -> int:
        """Return the forward operator that a backward one belongs to; remember a forward one."""
        epoch, thread = self._watch.recorder.epoch, self._watch.thread_number()
        if self._epoch != epoch:
            self._epoch = epoch
            self._owners.clear()
        if node is not None:
            return self._owners.get((thread, node._sequence_nr()), self._owners.get((0, node._sequence_nr()), -1))
        self._owners.setdefault((thread, torch._C._autograd._get_sequence_nr() - 1), order)
        return -1

    def _after(self, row: tuple[Any, ...], op: str, result: Any) -> None:
        watch = self._watch
        order, name, slots, versions = row
        outputs = watch.flatten_output(result)
        if not outputs:
            written = [
                t for (_, t), version in zip(slots, versions) if version is not None and version_of(t) != version
            ]
            outputs = [(watch.slot_id("output", index), tensor) for index, tensor in enumerate(written)]
        if op in UNINITIALIZED:
            watch.blank(order, outputs)
        else:
            watch.record(order, outputs, name)
        watch.ended(name)
        watch.flush_if_full()
