"""The guard on the CPU: results are looked at on the spot, and for a finite one nothing is described or written down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch

from numscope.capture.torch.guard.calls import Given, LiveCall, bytes_of, key_of, version_of
from numscope.capture.torch.guard.flags import count, is_finite
from numscope.capture.torch.guard.guarded_job import GuardedJob
from numscope.capture.torch.guard.record import HeldSlot, RingEntry
from numscope.capture.torch.guard.tracking import LiveTensor
from numscope.capture.torch.levels.function_names import Api
from numscope.capture.torch.own_code import OwnCode, OwnComputation
from numscope.capture.torch.slots import Slot
from numscope.nonfinite.rule import Counts

Tensor = torch.Tensor
_PLAIN = (Tensor, torch.nn.Parameter)
_SAVED = 1 << 20  # bytes of a tensor that is copied before a call overwrites it


def save(job: GuardedJob, tensor: Tensor) -> Tensor | None:
    """Return a copy of a small tensor that is about to be overwritten: the record will want it as it was."""
    if tensor.layout is not torch.strided or tensor.nbytes > _SAVED or type(tensor) not in _PLAIN:
        return None
    with OwnComputation(job.watch):
        copy = tensor.detach().clone()
        state = job.watch.thread.here
        before = job.ring.last() if tensor is state.last else None
        if before is not None and before.outputs:
            slot, held, _ = before.outputs[0]
            if held is state.held:
                before.outputs[0] = (slot, copy, None)  # the call that made it has it from here, too
    return copy


def look_at_call(job: GuardedJob, api: Api, call: LiveCall, given: Given, outputs: Sequence[Tensor]) -> bool:
    """Look at the results of an API call; tell whether they are more than views of what it was given."""
    state = job.watch.thread.here
    tensors = given.tensors
    bad = fresh = False
    size = 0
    view = tensors[0] if tensors and not api.overwrites else None
    last = state.last
    for tensor in outputs:
        base = tensor._base
        if base is not None and view is not None and (base is view or base is view._base):
            continue
        fresh = True
        if tensor is last and not api.overwrites:
            continue
        size += tensor.numel() * tensor.element_size()
        bad = bad or not is_finite(tensor)
    state.last = outputs[0]
    if bad and fresh:
        _judge_call(job, api, call, given, outputs)
    elif fresh and job.tracker.doubts:
        job.tracker.took_keys(api.op, {key_of(tensor) for tensor in tensors})
    # The ring must not keep a graph alive; the result of the call before is held already.
    taken: list[HeldSlot] = [
        (index, item if item.grad_fn is None else state.held if item is last else item.detach(), version)
        for index, (item, version) in enumerate(zip(tensors, given.versions))
    ]
    if given.saved is not None:
        taken[0] = (0, given.saved, None)
        size += given.saved.nbytes
    made: list[HeldSlot] = [(index, item.detach(), version_of(item)) for index, item in enumerate(outputs)]
    _, state.held, _ = made[0]
    job.ring.add(RingEntry(call, "forward", taken, made, size))
    return fresh


def _judge_call(job: GuardedJob, api: Api, call: LiveCall, given: Given, outputs: Sequence[Tensor]) -> None:
    with OwnCode(job.watch):
        results = list(enumerate(outputs))
        if not (api.overwrites and given.was_finite):
            results = written(job, results, given.kwargs)
        if not results:
            return
        before = dict(zip(map(id, given.tensors), given.versions))
        slots, constants = arguments(job, given)
        inputs = []
        for slot, tensor in slots:
            version = before.get(id(tensor), -1)
            overwritten = version not in (-1, version_of(tensor))
            finite = overwritten and given.was_finite and job.marks.get(key_of(tensor)) in (None, "blank")
            item = live_tensor(job, slot, tensor, clean=finite)
            if overwritten and given.saved is not None and tensor is given.tensors[0]:
                item = replace(item, tensor=given.saved, known=count(given.saved))
            elif overwritten:
                item = replace(item, version=version)
            inputs.append(item)
        made = [live_tensor(job, f"output.{index}", tensor) for index, tensor in results]
        job.judge(job.tracker.forward, call, inputs, made, constants)


def arguments(job: GuardedJob, given: Given) -> tuple[list[tuple[str, Tensor]], list[float]]:
    """Return the tensors among a call's arguments with the names of their slots, and the numbers."""
    others: list[tuple[str, object]] = []
    named = {name: value for name, value in given.kwargs.items() if name != "out"}
    slots = job.watch.flatten("input", given.args, others)
    slots += job.watch.flatten_named("kwargs", named, others)
    names = job.recorder.strings
    numbers = [float(v) for _, v in others if isinstance(v, (int, float)) and not isinstance(v, bool)]
    return [(names[slot], tensor) for slot, tensor in slots], numbers


def written(
    job: GuardedJob, results: list[tuple[int, Tensor]], kwargs: Mapping[str, object]
) -> list[tuple[int, Tensor]]:
    """Return the results of which no part may still be uninitialised memory."""
    marks = job.marks
    if not marks or "out" in kwargs:
        return results
    return [(index, tensor) for index, tensor in results if marks.get(key_of(tensor)) != "blank"]


def judge_gradients(
    job: GuardedJob, call: LiveCall, incoming: Iterable[tuple[str, Tensor]], outgoing: Iterable[tuple[str, Tensor]]
) -> None:
    """Judge gradients that came into a node and went out of it, one of them not finite."""
    with OwnComputation(job.watch):
        taken = [live_tensor(job, slot, tensor) for slot, tensor in incoming]
        made = [live_tensor(job, slot, tensor) for slot, tensor in outgoing]
        job.judge(job.tracker.backward, call, taken, made)


def look_at_module(
    job: GuardedJob,
    call: LiveCall,
    module: torch.nn.Module,
    slots: list[Slot],
    versions: list[int],
    outputs: list[Slot],
) -> None:
    """Look at what a module gave back, where calls inside it are not watched."""
    names = job.recorder.strings
    with OwnCode(job.watch):
        clean = all(is_finite(tensor) for _, tensor in outputs)
        taken: list[HeldSlot] = [
            (names[slot], tensor.detach(), version) for (slot, tensor), version in zip(slots, versions)
        ]
        held: list[HeldSlot] = [(names[slot], tensor.detach(), version_of(tensor)) for slot, tensor in outputs]
    job.ring.add(RingEntry(call, "forward", taken, held, sum(bytes_of(tensor) for _, tensor in outputs)))
    if clean:
        return
    with OwnComputation(job.watch):
        given = [
            replace(live_tensor(job, names[slot], tensor, clean=version != version_of(tensor)), version=version)
            for (slot, tensor), version in zip(slots, versions)
        ]
        given += [live_tensor(job, f"parameters.{n}", p) for n, p in module._parameters.items() if p is not None]
        made = [live_tensor(job, names[slot], tensor) for slot, tensor in outputs]
        job.judge(job.tracker.forward, call, given, made)


def look_at_data(job: GuardedJob, call: LiveCall, slots: list[Slot]) -> None:
    """Look at what enters a root module."""
    last = job.watch.thread.here.last
    with OwnCode(job.watch):
        bad = [(slot, tensor) for slot, tensor in slots if tensor is not last and not is_finite(tensor)]
    if bad:
        with OwnCode(job.watch):
            tensors = [live_tensor(job, job.recorder.strings[slot], tensor) for slot, tensor in bad]
            job.judge(job.tracker.data, call, tensors)


def live_tensor(job: GuardedJob, slot: str, tensor: Tensor, clean: bool = False) -> LiveTensor:
    """Return a tensor in a slot with its counts; `clean`: it is known to be, or to have been, finite."""
    if clean or not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
        return LiveTensor(slot, key_of(tensor), Counts(elements=tensor.numel()), tensor=tensor)
    return LiveTensor(slot, key_of(tensor), count(tensor), parameter=job.parameter(tensor), tensor=tensor)
