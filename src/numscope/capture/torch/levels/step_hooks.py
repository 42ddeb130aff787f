"""Hooks of ours around every optimizer's step, which no compiled region sees.

Torch's global step hooks are called by the step itself: where a step is compiled, Dynamo would compile them, and guard on
them in every step. So they are taken out of torch's dictionaries while a region runs; around a region that is a compiled
step, they are called from outside.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, MutableMapping
from types import FrameType, FunctionType, MethodType
from typing import Any, NamedTuple

from torch.optim import Optimizer
from torch.optim import optimizer as _of_torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from numscope.capture.torch.thread import Undo

Hook = Callable[[Optimizer, Any, Any], None]
# Called around a compiled step: with the optimizer, and the frame that runs the region.
RegionHook = Callable[[Optimizer, FrameType], None]
Hooks = MutableMapping[int, Any]


class _Around(NamedTuple):
    """Hooks of ours that stand in torch's dictionaries, by their keys."""

    keys: tuple[int, ...]
    before_region: RegionHook | None
    after_region: RegionHook | None


_around: list[_Around] = []
_lock = threading.Lock()
_regions = 0  # that run now, in any thread
_order: list[tuple[Hooks, dict[int, Any]]] = []  # what the dictionaries held when the first of them began


def around_steps(
    before: Hook | None, after: Hook | None,
    before_region: RegionHook | None = None, after_region: RegionHook | None = None,
) -> Undo:  # fmt: skip
    """Have both called around every optimizer's step, and the others around one that is compiled; return what ends it."""
    handles = [
        *([register_optimizer_step_pre_hook(before)] if before is not None else []),
        *([register_optimizer_step_post_hook(after)] if after is not None else []),
    ]
    around = _Around(tuple(handle.id for handle in handles), before_region, after_region)
    _around.append(around)

    def undo() -> None:
        with _lock:
            for handle in handles:
                handle.remove()
            if around in _around:
                _around.remove(around)

    return undo


def region_begins(frame: FrameType) -> Optimizer | None:
    """Take our hooks out of torch's dictionaries; return the optimizer whose step this frame's region is, if it is one."""
    global _regions
    if not _around:
        return None
    with _lock:
        _regions += 1
        if _regions == 1:
            ours = {key for around in _around for key in around.keys}
            for hooks in (_of_torch._global_optimizer_pre_hooks, _of_torch._global_optimizer_post_hooks):
                _order.append((hooks, dict(hooks)))
                for key in ours.intersection(hooks):
                    del hooks[key]
    optimizer = _stepped_by(frame.f_locals.get("fn"))
    if optimizer is not None:
        for around in list(_around):
            if around.before_region is not None:
                around.before_region(optimizer, frame)
    return optimizer


def region_ends(frame: FrameType, optimizer: Optimizer | None) -> None:
    """Put our hooks back where they were, and tell that a compiled step has ended."""
    global _regions
    with _lock:
        _regions = max(_regions - 1, 0)
        if _regions == 0:
            ours = {key for around in _around for key in around.keys}
            for hooks, before in _order:
                now = dict(hooks)
                hooks.clear()
                hooks.update({key: hook for key, hook in before.items() if key in ours or key in now})
                hooks.update(now)
            _order.clear()
    if optimizer is not None:
        for around in reversed(_around):
            if around.after_region is not None:
                around.after_region(optimizer, frame)


def _stepped_by(function: object) -> Optimizer | None:
    """Return the optimizer whose step a compiled function makes: its method, or a function that names both."""
    if isinstance(function, MethodType):
        return function.__self__ if isinstance(function.__self__, Optimizer) else None
    if not isinstance(function, FunctionType) or "step" not in function.__code__.co_names:
        return None
    named = [*inspect.getclosurevars(function).nonlocals.values()]
    named += [function.__globals__.get(name) for name in function.__code__.co_names]
    found = [value for value in named if isinstance(value, Optimizer)]
    return found[0] if len(found) == 1 else None
