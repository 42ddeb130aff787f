"""The API level: a TorchFunctionMode that records every torch function, also those imported before numscope was."""

from __future__ import annotations

import sys
from collections.abc import Collection
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from numscope.capture.recording.interned import Series
from numscope.capture.recording.rows import CallRow, tensors_of
from numscope.capture.torch.autograd.backward import BackwardCall, running
from numscope.capture.torch.autograd.graph import CallGraph
from numscope.capture.torch.identity.storages import version_of
from numscope.capture.torch.identity.subclasses import wait_for
from numscope.capture.torch.identity.uninitialized import record_results
from numscope.capture.torch.inputs import Inputs
from numscope.capture.torch.levels.compiled import is_tracing
from numscope.capture.torch.levels.function_names import Api, ApiTable, Function, is_cast
from numscope.capture.torch.own_code import OwnCode
from numscope.capture.torch.slots import Arguments, Keywords, Slot
from numscope.capture.torch.thread import Open, State
from numscope.capture.torch.watch import Watch

_task = torch._C._current_graph_task_id
_grad_is_on = torch.is_grad_enabled
_sequence = torch._C._autograd._get_sequence_nr


class BegunCall(NamedTuple):
    """A call of a torch function that has begun."""

    row: CallRow
    inputs: Inputs
    series: Series  # of its names
    number: int  # in the series
    parent: Open
    versions: list[int | None] | None  # of its input tensors, where it is asked what it has written to
    first: int  # the sequence number of the first autograd node that can be its own


class ApiMode(TorchFunctionMode):
    """Sees each call of a torch function while it is on the mode stack."""

    __slots__ = ("_known", "_table", "_thread", "_watch")

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch
        self._table = ApiTable()
        self._known = self._table.known
        self._thread = watch.thread
        watch.recorder.sites.boundary(record_call.__code__)  # the stack outside of a composite is the composite's own

    def __torch_function__(
        self, func: Function, types: Collection[type], args: Arguments = (), kwargs: Keywords | None = None
    ) -> Any:
        """Run a function of any kind, and record it if it is a call."""
        api = self._known.get(func) or self._table[func]
        kwargs = kwargs or {}
        state: State = self._thread.here
        if api.plain or state.busy:  # the most there are: shapes, gradients, flags
            return func(*args, **kwargs)
        if api.aside:
            if api.transparent:
                return self._inside(api, func, args, kwargs)
            if not self._is_call(api, args, kwargs):
                return func(*args, **kwargs)
        watch = self._watch
        if state.quiet is not None or not (watch.on and watch.forward_on) or is_tracing():
            return func(*args, **kwargs)
        stack = state.stack
        if stack and (op := stack[-1].op) and _same_name(op, api.op):
            return func(*args, **kwargs)  # the composite itself, not a call inside it
        frame = sys._getframe(1)
        if api.composite:
            return record_call(watch, api, partial(self._inside, api, func, args, kwargs), args, kwargs, frame)
        begun = _begin(watch, state, api, args, kwargs, frame)
        outer, state.calling = state.calling, begun.row.order if begun is not None else -1
        try:
            result = func(*args, **kwargs)
        except Exception as error:
            if begun is not None:
                raised(watch, api, begun.row, begun.inputs.rows, error)
            raise
        finally:
            state.calling = outer
        if begun is not None:
            end_call(watch, api, begun, None, result)
        return result

    def _is_call(self, api: Api, args: Arguments, kwargs: Keywords) -> bool:
        """Tell whether a silent function is a call all the same: it casts, or cuts the graph. Distrust memory that it
        gives away."""
        if not self._watch.on:
            return False
        first = args[0] if args else None
        if api.exposes and isinstance(first, torch.Tensor):
            self._watch.tensors.mark_unversioned(first, storage_only=api.exposes_storage)
        return is_cast(api, args, kwargs) or (api.cuts and isinstance(first, torch.Tensor) and first.requires_grad)

    def _inside(self, api: Api, func: Function, args: Arguments, kwargs: Keywords) -> Any:
        """Run a function so that the torch functions it calls are seen too."""
        if api.twin is None:
            return func(*args, **kwargs)
        with self:
            return api.twin(*args, **kwargs)


def record_call(
    watch: Watch, api: Api, work: Function, args: Arguments, kwargs: Keywords, frame: FrameType | None
) -> Any:
    """Do the work of a call, recording it and the calls inside it."""
    state: State = watch.thread.here
    begun = _begin(watch, state, api, args, kwargs, frame)
    stack = state.stack
    backward = None
    if begun is None:
        stack.append(_unrecorded(api, stack[-1] if stack else watch.outside))
    else:
        row = begun.row
        backward = _backward(watch, begun)
        stack.append(Open(row.order, row.module, row.module_class, begun.parent.path, row.stack, api.op, backward))
    outer, state.calling = state.calling, -1
    try:
        result = work()
    except Exception as error:
        if begun is not None:
            raised(watch, api, begun.row, begun.inputs.rows, error)
        raise
    finally:
        state.calling = outer
        stack.pop()
    if begun is not None:
        end_call(watch, api, begun, backward, result)
    return result


def _unrecorded(api: Api, outer: Open) -> Open:
    """Return a composite that is not recorded: its inner calls belong to what it runs in."""
    return Open(outer.order, outer.module, outer.module_class, outer.path, outer.site, api.op, outer.backward)


def _same_name(outer: str, inner: str) -> bool:
    outer, inner = outer.strip("_"), inner.strip("_")
    return inner.startswith(outer) or outer.startswith(inner)


def _begin(
    watch: Watch, state: State, api: Api, args: Arguments, kwargs: Keywords, frame: FrameType | None
) -> BegunCall | None:
    """Record the inputs as they are before the call, unseen; None where the call is not to be recorded.

    A fault of ours is counted.
    """
    with OwnCode(watch, api.head):
        recorder = watch.recorder
        if watch.asks:
            watch.do_first()
        series = api.series = api.series or watch.series(api.head)
        stack = state.stack
        parent = stack[-1] if stack else watch.outside
        outer_site = parent.site
        phase = watch.forward_phase
        recompute = False
        if _task() != -1:  # the engine runs
            recompute = _grad_is_on()
            if not (stack or recompute):
                parent = running(watch)
                phase = watch.backward_phase
        number = name = first_order = -1
        if not recompute:
            number = series.next(recorder.epoch)
            name = series.name(number)
            if watch.asks and not watch.in_scope(name, parent, "api", watch.phase_names[phase]):
                return None
        order = next(recorder.orders)
        site = watch.intern(frame, outer_site) if watch.stacks else -1
        inputs = Inputs(watch)
        versions: list[int | None] | None = None
        # Versions are asked for only where a written input can be the result, or where uninitialised memory is about.
        asks_versions = api.asks_versions or bool(watch.tensors.uninitialized)
        if asks_versions or api.may_write:
            inputs.find(watch, args, kwargs)
            _expect_writes(watch, api, inputs.slots)
            inputs.measure(watch, order, api.overwrites)
            if asks_versions:
                versions = [version_of(tensor) for _, tensor in inputs.slots]
        else:
            inputs.take(watch, order, args, kwargs)
        if recompute:  # it has the name of its first execution
            found = watch.executions.find(series, tensors_of(inputs.rows))
            number, first_order = found or (series.next(recorder.epoch), -1)
            name = series.name(number)
            if not watch.in_scope(name, parent, "api"):
                return None
        else:
            watch.executions.note(series, number, order, tensors_of(inputs.rows))
        if watch.keeps_some and inputs.rows:
            watch.keep(inputs.slots, inputs.rows, name)
        row = watch.call_row(
            order,
            name,
            watch.api_kind,
            parent.module,
            parent.module_class,
            phase,
            parent=parent.order,
            forward=first_order,
            arguments=watch.arguments(inputs.positional, inputs.named),
            stack=site,
            recompute=recompute,
        )
        return BegunCall(row, inputs, series, number, parent, versions, _sequence())
    return None


def _expect_writes(watch: Watch, api: Api, slots: list[Slot]) -> None:
    """Measure anew, from here on, what a call may write to; settle what was written before and has come by now."""
    if watch.tensors.uninitialized and not api.views:
        for _, tensor in slots:
            if (result := wait_for(tensor)) is not None:
                watch.tensors.note_write(result)
    if api.may_write:
        for _, tensor in slots:
            watch.tensors.drop_carried_over(tensor)
            watch.tensors.mark_aliases_unversioned(tensor)


def _backward(watch: Watch, begun: BegunCall) -> BackwardCall:
    name = begun.series.name(begun.number, "backward")
    forward = begun.row.order if watch.record_forward else -1
    return BackwardCall(watch, name, begun.row, forward, begun.parent.backward)


def end_call(watch: Watch, api: Api, begun: BegunCall, backward: BackwardCall | None, result: object) -> None:
    """Record the call with its outputs, unseen, and watch for the gradients."""
    with OwnCode(watch, api.head):
        outputs = _record(watch, api, begun, result)
        if not outputs:
            return
        targets = begun.inputs.targets
        if targets and any(tensor.requires_grad for _, tensor in outputs):
            CallGraph(watch, backward or _backward(watch, begun), targets, begun.first).attach(outputs)
        if watch.scope.stateful:
            watch.ended(begun.row.name)
        if watch.keeps_some or len(watch.recorder.slot_rows) > watch.recorder.full:
            watch.flush_if_full()


def _record(watch: Watch, api: Api, begun: BegunCall, result: object) -> list[Slot]:
    """Record a call of any kind; return its outputs, none where it is no call: it computes no tensor."""
    row, slots, rows = begun.row, begun.inputs.slots, begun.inputs.rows
    if api.writes_unversioned:
        _distrust_written(watch, slots, begun.versions)
    elif api.foreign:
        watch.tensors.note_foreign_use([tensor for _, tensor in slots])
    outputs = watch.flatten_output(result)
    if outputs:
        if not api.computes:
            api.has_computed()
    elif not (outputs := _written(watch, slots, begun.versions) or _unscaled(watch, api, slots)):
        if not row.recompute:
            begun.series.give_back(begun.number)
        return outputs
    if watch.record_forward:
        watch.recorder.call(row)
        if api.uninitialized or api.pending:
            watch.add(rows)
            watch.blank(row.order, outputs, watch.not_waited if api.pending else watch.uninitialized)
        elif begun.versions is not None and watch.tensors.uninitialized:
            record_results(watch, api, row.order, row.name, slots, begun.versions, rows, outputs)
        else:
            watch.add(rows)
            for slot, tensor in outputs:
                watch.show(row.order, slot, tensor, row.name, backward=False)
    return outputs


def _distrust_written(watch: Watch, slots: list[Slot], versions: list[int | None] | None) -> None:
    """Measure anew what a call may have written without telling the version counter."""
    for (_, tensor), version in zip(slots, versions or ()):
        if not tensor.requires_grad and version_of(tensor) == version:
            watch.tensors.mark_unversioned(tensor)


def _written(watch: Watch, slots: list[Slot], versions: list[int | None] | None) -> list[Slot]:
    """Return the inputs that a call has written to, as its outputs."""
    written = [
        tensor
        for (_, tensor), version in zip(slots, versions or ())
        if version is not None and version_of(tensor) != version
    ]
    return [Slot(watch.slot_id("output", index), tensor) for index, tensor in enumerate(written)]


def _unscaled(watch: Watch, api: Api, slots: list[Slot]) -> list[Slot]:
    """Return what a GradScaler has divided, and its count of infinities: it tells no version counter."""
    written = slots[:-1] if api.op == "_amp_foreach_non_finite_check_and_unscale_" else []
    return [Slot(watch.slot_id("output", index), tensor) for index, (_, tensor) in enumerate(written)]


def raised(watch: Watch, api: Api, row: CallRow, rows: list[int], error: Exception) -> None:
    """Record a call that raised; the user may catch it and go on."""
    if type(error).__name__ == "_StopRecomputationError":  # how checkpoint ends a recomputation
        return
    with OwnCode(watch, api.head):
        text = watch.recorder.strings.id(f"{type(error).__name__}: {error}"[:300])
        watch.recorder.call(row._replace(error=text))
        watch.add(rows)
