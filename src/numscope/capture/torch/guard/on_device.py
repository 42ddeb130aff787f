"""The guard on a device: a call is logged with the looks at its tensors, and judged when their counts have come."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch

from numscope.capture.torch.guard import on_cpu
from numscope.capture.torch.guard.calls import Given, LiveCall, key_of
from numscope.capture.torch.guard.guarded_job import GuardedJob
from numscope.capture.torch.guard.record import DeviceEntry, LookSlot, SlotName
from numscope.capture.torch.levels.function_names import Api
from numscope.capture.torch.own_code import OwnCode
from numscope.capture.torch.patching import replace, together
from numscope.capture.torch.slots import Slot
from numscope.capture.torch.thread import Undo

Tensor = torch.Tensor


def look_at_call(job: GuardedJob, api: Api, call: LiveCall, given: Given, outputs: Sequence[Tensor]) -> bool:
    """Look at the results of an API call; tell whether they are more than views of what it was given."""
    late = job.late
    view = given.tensors[0] if given.tensors and not api.overwrites else None
    fresh = False
    for tensor in outputs:
        base = tensor._base
        if base is not None and view is not None and (base is view or base is view._base):
            late.alias(tensor, view)
        else:
            fresh = True
    if not fresh:
        return False
    written = on_cpu.written(job, list(enumerate(outputs)), given.kwargs)
    if not written:
        return True
    before = late.held
    inputs: list[LookSlot] = []
    constants: list[float] = []
    nested = bool(given.kwargs)
    versions = iter(given.versions)
    for index, value in enumerate(given.args):
        if isinstance(value, Tensor):
            inputs.append((index, late.given(value, job.parameter, next(versions))))
        elif isinstance(value, (list, tuple, dict)):
            nested = True
        elif isinstance(value, (int, float)):
            constants.append(float(value))
    if nested:
        slots, constants = on_cpu.arguments(job, given)
        known = dict(zip(map(id, given.tensors), given.versions))
        inputs = [(slot, late.given(tensor, job.parameter, known.get(id(tensor)))) for slot, tensor in slots]
    made: list[LookSlot] = [(index, late.made(tensor)) for index, tensor in written]
    if call.transmits:
        _transmit(inputs, made)
    job.log_forward(DeviceEntry(call, "forward", inputs, made, late.held - before, late.window, constants))
    return True


def before_write(job: GuardedJob, target: Tensor) -> None:
    """Look at a tensor that is about to be overwritten, where nothing is known of it: a gradient that DDP filled, say."""
    if job.late.known(target) is None and job.marks.get(key_of(target)) != "blank":
        with OwnCode(job.watch):
            job.late.given(target, job.parameter).tensor = None


def look_at_gradients(
    job: GuardedJob,
    call: LiveCall,
    incoming: Iterable[tuple[SlotName, Tensor]],
    outgoing: Iterable[tuple[SlotName, Tensor]],
    passing: Iterable[tuple[SlotName, Tensor]] = (),
) -> list[LookSlot]:
    """Look at gradients that came into a node, and went out of it; return the looks at the former.

    `passing` go to parameters as they are, and must be looked at before other ranks' are added to them.
    """
    late = job.late
    before = late.held
    given: list[LookSlot] = [(slot, late.gradient(tensor)) for slot, tensor in incoming]
    made: list[LookSlot] = [(slot, late.gradient(tensor)) for slot, tensor in outgoing]
    made += [(slot, late.passing(tensor)) for slot, tensor in passing]
    log_gradients(job, call, given, made, before)
    return given


def log_gradients(
    job: GuardedJob, call: LiveCall, given: list[LookSlot], made: list[LookSlot], held_before: int
) -> None:
    """Log gradients; `held_before`: the bytes that were held before them."""
    if made and all(any(look is other for _, other in given) for _, look in made):
        return  # handed on as they are
    if call.transmits:
        _transmit(given, made)
    late = job.late
    job.log_backward(DeviceEntry(call, "backward", given, made, late.held - held_before, late.window))


def look_at_module(
    job: GuardedJob,
    call: LiveCall,
    module: torch.nn.Module,
    slots: list[Slot],
    versions: list[int],
    outputs: list[Slot],
) -> None:
    """Look at what a module was given and gave back, where calls inside it are not watched."""
    late = job.late
    names = job.recorder.strings
    with OwnCode(job.watch):
        before = late.held
        given: list[LookSlot] = [
            (names[slot], late.given(tensor, job.parameter, version))
            for (slot, tensor), version in zip(slots, versions)
        ]
        parameters: list[LookSlot] = [
            (f"parameters.{name}", late.given(parameter, job.parameter))
            for name, parameter in module._parameters.items()
            if parameter is not None
        ]
        made: list[LookSlot] = [(names[slot], late.made(tensor)) for slot, tensor in outputs]
        if call.transmits:
            _transmit(given, made)
        job.log_forward(DeviceEntry(call, "forward", given + parameters, made, late.held - before, late.window))


def look_at_data(job: GuardedJob, call: LiveCall, slots: list[Slot]) -> None:
    """Look at what enters a root module."""
    late = job.late
    names = job.recorder.strings
    with OwnCode(job.watch):
        before = late.held
        made: list[LookSlot] = [(names[slot], late.given(tensor, job.parameter)) for slot, tensor in slots]
        job.log_data(DeviceEntry(call, "input", (), made, late.held - before, late.window))


def _transmit(given: Sequence[LookSlot], made: Sequence[LookSlot]) -> None:
    """Let inputs be looked at only where the output is not finite; both must wait for the same launch."""
    sink = next((look for _, look in made if look.waits), None)
    if sink is None:
        return
    for _, look in given:
        if look.waits and look.after is None and look.row < sink.row:  # in one order, so that none waits for itself
            look.after = sink


class CudaGraphs:
    """Looks at nothing while a CUDA graph is captured, and at all tensors anew after a replay, which may write to any."""

    def __init__(self, job: GuardedJob) -> None:
        self._job = job

    def install(self) -> Undo:
        """Replace what begins, ends and replays a graph; return what puts it back."""
        kind = torch.cuda.CUDAGraph
        watch, late = self._job.watch, self._job.late
        begin: Callable[..., None] = kind.capture_begin
        end: Callable[..., None] = kind.capture_end
        replay: Callable[..., None] = kind.replay
        on: list[bool] = []

        def capture_begin(graph: object, *args: object, **kwargs: object) -> None:
            with OwnCode(watch, "a CUDA graph"):
                late.launch_where_made()  # a launch inside would be part of the graph
            on.append(watch.on)
            watch.on = False
            begin(graph, *args, **kwargs)

        def capture_end(graph: object, *args: object, **kwargs: object) -> None:
            try:
                end(graph, *args, **kwargs)
            finally:
                watch.on = on.pop() if on else watch.on

        def replayed(graph: object) -> None:
            with OwnCode(watch, "a CUDA graph"):
                late.launch_where_made()  # what waits may be overwritten
                late.forget()
            replay(graph)

        new = {"capture_begin": capture_begin, "capture_end": capture_end, "replay": replayed}
        return together(replace(kind, name, method) for name, method in new.items())
