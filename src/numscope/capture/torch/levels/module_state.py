"""A module's own tensors: its parameters with the gradients that come to them, and its buffers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from numscope.capture.torch.autograd.backward import BackwardCall
from numscope.capture.torch.identity.storages import version_of
from numscope.capture.torch.own_code import OwnCode
from numscope.capture.torch.slots import Slot
from numscope.capture.torch.watch import Watch

_NormBase = torch.nn.modules.batchnorm._NormBase
Tensors = Mapping[str, torch.Tensor | None]


def state_of(watch: Watch, parameters: Tensors, buffers: Tensors) -> list[Slot]:
    """Return a module's own parameters and buffers with their slots."""
    return [
        Slot(slots.get(name) or watch.state_slot(slots, name), tensor)
        for slots, tensors in ((watch.parameter_slots, parameters), (watch.buffer_slots, buffers))
        for name, tensor in tensors.items()
        if tensor is not None
    ]


def written_by(watch: Watch, module: torch.nn.Module, versions: dict[str, int | None]) -> list[Slot]:
    """Return the buffers that a call has written to, as its outputs."""
    # Normalisations write their running statistics without telling the version counter.
    statistics = isinstance(module, _NormBase) and module.training
    written = []
    for name, buffer in module._buffers.items():
        if buffer is not None and (statistics or version_of(buffer) != versions.get(name)):
            if statistics:
                watch.tensors.mark_unversioned(buffer)
            written.append(Slot(watch.slot_id("output.buffers", name), buffer))
    return written


class GradientHook:
    """Shows a parameter's gradient in the backward call of its module."""

    __slots__ = ("_backwards", "_path", "_slot", "_watch")

    def __init__(self, watch: Watch, backwards: dict[str, BackwardCall], path: str, slot: int) -> None:
        self._watch = watch
        self._backwards = backwards
        self._path = path
        self._slot = slot

    def __call__(self, tensor: torch.Tensor) -> None:
        watch = self._watch
        state = watch.thread.here
        if not watch.on or state.busy:
            return
        call = self._backwards.get(self._path)
        if call is None or not call.wanted:
            return
        with OwnCode(watch, "parameters_grad"):
            if (gradient := tensor.grad) is not None:
                watch.show(call.begin(state), self._slot, gradient, call.name)


def watch_gradient(
    watch: Watch, backwards: dict[str, BackwardCall], parameter: torch.nn.Parameter, path: str, name: str
) -> Any:
    """Show a parameter's gradient in the backward call of its module, whose path it is; return the hook's handle, or None."""
    if not (watch.settings.parameters and watch.record_backward) or not parameter.requires_grad:
        return None
    hook = GradientHook(watch, backwards, path, watch.slot_id("parameters_grad", name))
    return parameter.register_post_accumulate_grad_hook(hook) if parameter.is_leaf else None
