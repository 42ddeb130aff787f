"""The API level: a TorchFunctionMode that records every torch function, also those imported before numscope was."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from numscope.capture.interned import Series
from numscope.capture.torch.autograd.backward import BackwardCall, running
from numscope.capture.torch.autograd.graph import attach, attach_one
from numscope.capture.torch.identity.storages import version_of
from numscope.capture.torch.identity.subclasses import PLAIN, wait_for
from numscope.capture.torch.inputs import Targets, aim, take
from numscope.capture.torch.levels.api_results import Begun, raised, record
from numscope.capture.torch.levels.compiled import is_tracing
from numscope.capture.torch.levels.function_names import Api, ApiTable, Function, is_cast
from numscope.capture.torch.own_code import OwnCode
from numscope.capture.torch.slots import POSITIONS, Slot
from numscope.capture.torch.thread import Open, State
from numscope.capture.torch.watch import Watch
from numscope.fingerprint.columns import Unmeasured

_task = torch._C._current_graph_task_id
_grad_is_on = torch.is_grad_enabled
_sequence = torch._C._autograd._get_sequence_nr
_functions = torch._C._len_torch_function_stack
_Tensor = torch.Tensor
_NONE: list[tuple[str, Any]] = []
_NO_SLOTS: list[Slot] = []


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

    def __torch_function__(self, func: Function, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        api = self._known.get(func) or self._table[func]
        if api.plain:  # the most there are: shapes, gradients, flags
            return func(*args, **kwargs) if kwargs else func(*args)
        state: State = self._thread.here
        watch = self._watch
        tensors = watch.tensors
        stack = state.stack
        if (
            not api.usual or state.busy or not watch.on or not watch.calm or not PLAIN.issuperset(types) or watch.asks
            or tensors.uninitialized or state.quiet is not None or not watch.forward_on or is_tracing() or _functions()
            or _task() != -1 or len(args) > POSITIONS or (stack and (op := stack[-1].op) and _same_name(op, api.op))
        ):  # fmt: skip
            return self._any(api, func, state, args, kwargs or {}, sys._getframe(1))

        # Most calls: as `_begin` and `end_call` do it, here, at once. No other mode is on, and there are plain tensors alone,
        # which need no guard against others' functions.
        order = -1
        recorder = watch.recorder
        with OwnCode(watch, api.head):
            series = api.series or _learn_series(watch, api)
            now = series.now
            number = next(now[1]) if now[0] == recorder.epoch and not now[2] else series.next(recorder.epoch)
            try:
                name = series.forward[number]
            except IndexError:
                name = series.name(number)
            parent = stack[-1] if stack else watch.outside
            new = next(recorder.orders)
            intern = watch.intern
            site = intern(sys._getframe(1), parent.site) if watch.stacks else -1
            positional: list[tuple[str, Any]] = []
            rows: list[int] = []
            targets: Targets | None = {} if watch.record_backward and _grad_is_on() else None
            take(watch, new, "input", args, watch.places, positional, rows, targets)
            if kwargs:
                named: list[tuple[str, Any]] = []
                take(watch, new, "kwargs", kwargs.values(), watch.keywords(kwargs), named, rows, targets)
                arguments = watch.arguments(positional, named)
            else:
                arguments = watch.arguments(positional, _NONE) if positional else -1
            watch.executions.log += (series, number, new, len(rows), rows)  # see `note`
            thread = state.number
            if thread < 0:
                thread = watch.thread_number()
            row = (new, name, watch.api_kind, parent.module, parent.module_class, watch.forward_phase, parent.order, -1,
                   arguments, site, False, -1, thread)  # fmt: skip
            first = _sequence() if targets else -1
            order = new
        try:
            result = func(*args, **kwargs) if kwargs else func(*args)
        except Exception as error:
            if order >= 0:
                raised(watch, api, row, rows, error)
            raise
        if order < 0:
            return result
        if type(result) is not _Tensor:
            end_call(
                watch,
                state,
                api,
                (row, _NO_SLOTS, rows, series, number, parent, None, targets or None, first),
                None,
                result,
            )
            return result
        with OwnCode(watch, api.head):
            recorder.call_rows.extend(row)
            try:
                rows += (order, watch.first_output, tensors.look_up(result), -1)
            except Unmeasured as why:
                rows += (order, watch.first_output, -1, watch.unmeasured(why))
            recorder.slot_rows.extend(rows)
            if targets and (node := result.grad_fn) is not None and node._sequence_nr() >= first:
                call = _backward(watch, series, number, row, parent)
                attach_one(watch, call, (result.output_nr, call, watch.first_gradient), node, targets, first)
            if len(recorder.slot_rows) > recorder.full:
                watch.flush_if_full()
        return result

    def _any(self, api: Api, func: Function, state: State, args: Any, kwargs: Any, frame: Any) -> Any:
        """Run a function of any kind, and record it if it is a call."""
        if state.busy:
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
        if api.composite:
            return record_call(watch, api, partial(self._inside, api, func, args, kwargs), args, kwargs, frame)
        begun = _begin(watch, state, api, args, kwargs, frame)
        try:
            result = func(*args, **kwargs) if kwargs else func(*args)
        except Exception as error:
            if begun is not None:
                raised(watch, api, begun[0], begun[2], error)
            raise
        if begun is not None:
            end_call(watch, state, api, begun, None, result)
        return result

    def _is_call(self, api: Api, args: Any, kwargs: Any) -> bool:
        """Tell whether a silent function is a call all the same: it casts, or cuts the graph. Distrust memory that it
        gives away."""
        if not self._watch.on:
            return False
        if api.exposes and isinstance(args[0], torch.Tensor):
            self._watch.tensors.mark_unversioned(args[0], storage_only=api.exposes_storage)
        return bool(is_cast(api, args, kwargs) or (api.cuts and args[0].requires_grad))

    def _inside(self, api: Api, func: Function, args: Any, kwargs: Any) -> Any:
        """Run a function so that the torch functions it calls are seen too."""
        if api.twin is None:
            return func(*args, **kwargs)
        with self:
            return api.twin(*args, **kwargs)


def record_call(watch: Watch, api: Api, work: Function, args: Any, kwargs: Any, frame: Any) -> Any:
    """Do the work of a call, recording it and the calls inside it."""
    state: State = watch.thread.here
    begun = _begin(watch, state, api, args, kwargs, frame)
    stack = state.stack
    backward = None
    if begun is None:
        stack.append(_unrecorded(api, stack[-1] if stack else watch.outside))
    else:
        row, parent = begun[0], begun[5]
        backward = _backward(watch, begun[3], begun[4], row, parent)
        stack.append(Open(row[0], row[3], row[4], parent.path, row[9], api.op, backward))
    try:
        result = work()
    except Exception as error:
        if begun is not None:
            raised(watch, api, begun[0], begun[2], error)
        raise
    finally:
        stack.pop()
    if begun is not None:
        end_call(watch, state, api, begun, backward, result)
    return result


def _unrecorded(api: Api, outer: Open) -> Open:
    """Return a composite that is not recorded: its inner calls belong to what it runs in."""
    return Open(outer.order, outer.module, outer.module_class, outer.path, outer.site, api.op, outer.backward)


def _same_name(outer: str, inner: str) -> bool:
    outer, inner = outer.strip("_"), inner.strip("_")
    return inner.startswith(outer) or outer.startswith(inner)


def _begin(watch: Watch, state: State, api: Api, args: Any, kwargs: Any, frame: Any) -> Begun | None:
    """Record the inputs as they are before the call, unseen; None where the call is not to be recorded.

    A fault of ours is counted.
    """
    with OwnCode(watch, api.head):
        recorder = watch.recorder
        if watch.asks:
            watch.do_first()
        series = api.series or _learn_series(watch, api)
        stack = state.stack
        parent = stack[-1] if stack else watch.outside
        base = parent.site
        phase = watch.forward_phase
        recompute = False
        if _task() != -1:  # the engine runs
            recompute = _grad_is_on()
            if not (stack or recompute):
                parent = running(watch)
                phase = watch.backward_phase
        first_order = -1
        if not recompute:
            number = series.next(recorder.epoch)
            name = series.name(number)
            if watch.asks and not watch.in_scope(name, parent, "api", watch.phase_names[phase]):
                return None
        order = next(recorder.orders)
        intern = watch.intern
        site = intern(frame, base) if watch.stacks else -1
        positional: list[tuple[str, Any]] = []
        named: list[tuple[str, Any]] = _NONE
        slots: list[Slot] = _NO_SLOTS
        rows: list[int] = []
        targets: Targets | None = {} if watch.record_backward and _grad_is_on() else None
        # What was written to is asked only where it can be the result, or where memory that holds nothing yet is about.
        versions: list[int | None] | None = None
        asks_versions = api.asks_versions or watch.tensors.uninitialized
        if not asks_versions and watch.calm and not api.may_write and len(args) <= POSITIONS:  # most calls
            take(watch, order, "input", args, watch.places, positional, rows, targets)
            if kwargs:
                named = []
                take(watch, order, "kwargs", kwargs.values(), watch.keywords(kwargs), named, rows, targets)
        else:
            slots = watch.flatten("input", args, positional)
            if kwargs:
                named = []
                slots += watch.flatten_named("kwargs", kwargs, named)
            if watch.tensors.uninitialized and not api.views:
                for _, tensor in slots:
                    if (result := wait_for(tensor)) is not None:
                        watch.tensors.note_write(result)
            if api.may_write:
                for _, tensor in slots:
                    watch.tensors.drop_carried_over(tensor)
                    watch.tensors.mark_aliases_unversioned(tensor)
            if watch.record_forward:
                rows = watch.rows(order, slots, api.overwrites)
            if targets is not None:
                aim(watch, targets, slots)
            if asks_versions:
                versions = [version_of(tensor) for _, tensor in slots]
        arguments = watch.arguments(positional, named) if positional or named else -1
        if recompute:  # it has the name of its first execution
            found = watch.executions.find(series, rows[2::4])
            number, first_order = found or (series.next(recorder.epoch), -1)
            name = series.name(number)
            if not watch.in_scope(name, parent, "api"):
                return None
        elif watch.calm:
            watch.executions.log += (series, number, order, len(rows), rows)  # see `note`
        else:
            watch.executions.note(series, number, order, rows[2::4])
        if watch.keeps_some and rows:
            watch.keep(slots, rows, name)
        thread = state.number
        if thread < 0:
            thread = watch.thread_number()
        row = (order, name, watch.api_kind, parent.module, parent.module_class, phase, parent.order, first_order,
               arguments, site, recompute, -1, thread)  # fmt: skip
        if not targets:
            return row, slots, rows, series, number, parent, versions, None, -1
        return row, slots, rows, series, number, parent, versions, targets, _sequence()
    return None


def _learn_series(watch: Watch, api: Api) -> Series:
    series = api.series = watch.series(api.head)
    return series


def _backward(watch: Watch, series: Series, number: int, row: tuple[int, ...], parent: Open) -> BackwardCall:
    try:
        name = series.backward[number]
    except IndexError:
        name = series.name(number, "backward")
    return BackwardCall(watch, name, row, row[0] if watch.record_forward else -1, parent.backward)


def end_call(watch: Watch, state: State, api: Api, begun: Begun, backward: BackwardCall | None, result: Any) -> None:
    """Record the call with its outputs, unseen, and watch for the gradients."""
    with OwnCode(watch, api.head):
        row, _, rows, series, number, parent, versions, targets, first = begun
        recorder = watch.recorder
        if versions is None and type(result) is _Tensor and watch.calm:  # most calls
            recorder.call_rows.extend(row)
            tensors = watch.tensors
            try:
                found = tensors.number(result)
                rows += (row[0], watch.first_output, found, -1)
            except Unmeasured as why:
                rows += (row[0], watch.first_output, -1, watch.unmeasured(why))
            recorder.slot_rows.extend(rows)
            if targets is not None and (node := result.grad_fn) is not None and node._sequence_nr() >= first:
                call = backward or _backward(watch, series, number, row, parent)
                attach_one(watch, call, (result.output_nr, call, watch.first_gradient), node, targets, first)
            if len(recorder.slot_rows) > recorder.full:
                watch.flush_if_full()
            return
        if not (outputs := record(watch, api, begun, result)):
            return
        if targets is not None:
            for _, tensor in outputs:
                if tensor.requires_grad:
                    attach(watch, backward or _backward(watch, series, number, row, parent), outputs, targets, first)
                    break
        if watch.scope.stateful:
            watch.ended(row[1])
        if watch.keeps_some or len(recorder.slot_rows) > recorder.full:
            watch.flush_if_full()
