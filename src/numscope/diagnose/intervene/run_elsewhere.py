"""Runs a callable on the CPU, or in another dtype, as if nothing had moved.

Arguments are moved there, results back; what the callable writes to in place is written to the original; autograd goes
through, because moving is itself differentiable. Tensors that the callable reaches by other ways (a module's parameters,
globals, closures) are moved when a torch function meets them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
import torch.utils.checkpoint
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from numscope.capture.torch.own_code import OwnCode
from numscope.core.operators import Trait, names_with
from numscope.diagnose.pytree import tree_map, tree_map_tensors

CPU = torch.device("cpu")
_TO_DEVICE = {"cuda", "npu", "xpu", "mps", "hpu", "mlu", "musa"}
_CASTS = {"float", "double", "half", "bfloat16"}
_WRITE_UNSEEN = names_with(Trait.UNVERSIONED_WRITES)


class Moving:
    """Moves tensors to the CPU, in a dtype if one is given, and remembers where they came from."""

    def __init__(self, dtype: torch.dtype | None) -> None:
        self.dtype = dtype
        self.device: torch.device | None = None  # where the first moved tensor came from
        self.nominal: torch.dtype | None = None  # the dtype that results would have had
        self._copies: dict[int, tuple[torch.Tensor, torch.Tensor, int]] = {}  # id → original, copy, its version
        self._originals: dict[int, torch.Tensor] = {}
        self._containers: list[tuple[Any, Any, list[Any]]] = []  # a list or dict, what stands for it, its items

    def there(self, value: Any) -> Any:
        """Return a value with its tensors moved."""
        moved = tree_map_tensors(value, self._there)
        self._remember(value, moved)
        return moved

    def _remember(self, value: Any, moved: Any) -> None:
        """Remember the lists and dicts in a value: the callable may put something into them (a cache)."""
        if isinstance(value, (list, tuple, dict)):
            if not isinstance(value, tuple):
                self._containers.append((value, moved, list(_items(moved))))
            for item, counterpart in zip(_items(value), _items(moved)):
                self._remember(item, counterpart)

    def _there(self, tensor: torch.Tensor) -> torch.Tensor:
        known = self._copies.get(id(tensor))
        if known is not None:
            return known[1]
        dtype = self._lifted(tensor.dtype)
        if tensor.device.type == "cpu" and dtype == tensor.dtype:
            return tensor
        if self.device is None and tensor.device.type != "cpu":
            self.device = tensor.device
        if dtype != tensor.dtype:
            self.nominal = torch.promote_types(self.nominal, tensor.dtype) if self.nominal else tensor.dtype
        moved = tensor.to(CPU, dtype)
        self._copies[id(tensor)] = (tensor, moved, moved._version)
        self._originals[id(moved)] = tensor
        return moved

    def _lifted(self, dtype: torch.dtype) -> torch.dtype:
        return self.dtype if self.dtype is not None and dtype.is_floating_point else dtype

    def write_back(self, unseen: bool = False) -> None:
        """Write to the originals what was written to their copies; `unseen`: versions don't tell."""
        for original, moved, version in self._copies.values():
            if moved._version != version or (
                unseen and not moved.requires_grad and not torch.equal(original.to(moved), moved)
            ):
                original.copy_(moved)
        for container, used, before in self._containers:
            now = list(_items(used))
            if len(now) == len(before) and all(new is old for new, old in zip(now, before)):
                continue
            back = self.back(list(used.items()) if isinstance(used, dict) else list(used))
            if isinstance(container, dict):
                container.clear()
                container.update(back)
            else:
                container[:] = back

    def written(self, value: Any) -> Any:
        """Return a result in which what was written to in place is the original, so that it can be written to again."""
        changed = {id(moved) for _, moved, version in self._copies.values() if moved._version != version}
        return tree_map_tensors(value, lambda item: self._originals[id(item)] if id(item) in changed else item)

    def back(self, value: Any) -> Any:
        """Return a result with its tensors where they would have been."""
        return tree_map_tensors(value, self._back)

    def _back(self, tensor: torch.Tensor) -> torch.Tensor:
        original = self._originals.get(id(tensor))
        if original is not None:
            return original
        dtype = tensor.dtype
        if self.dtype is not None and dtype == self.dtype:
            dtype = self.nominal or torch.get_default_dtype()
        return tensor.to(self.device or tensor.device, dtype)


class OnCpu(TorchFunctionMode):
    """Makes every torch function run on the CPU, in a dtype if one is given."""

    def __init__(self, moving: Moving) -> None:
        super().__init__()
        self._outer = moving

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _TO_DEVICE:
            return args[0]
        dtype = self._outer.dtype
        if dtype is not None and name in _CASTS and len(args) == 1 and not kwargs:
            return args[0] if args[0].dtype == dtype else args[0].to(dtype)
        moving = Moving(dtype)
        with OwnCode():
            args = tree_map(moving.there(args), self._argument)
            kwargs = tree_map(moving.there(kwargs), self._argument)
        if name == "to" or "device" in kwargs:
            args, kwargs = _cpu_for_device(args), _cpu_for_device(kwargs)
        result = func(*args, **kwargs)
        with OwnCode():
            moving.write_back(unseen=name in _WRITE_UNSEEN)
            result = moving.written(result)
        if self._outer.device is None:
            self._outer.device = moving.device
        if self._outer.nominal is None:  # nothing that was given has a floating dtype: token ids, say
            self._outer.nominal = moving.nominal
        return result

    def _argument(self, value: Any) -> Any:
        if isinstance(value, torch.dtype):
            return self._outer._lifted(value)
        if isinstance(value, torch.device) and value.type not in ("cpu", "meta"):
            if self._outer.device is None:
                self._outer.device = value
            return CPU
        return value


def _cpu_for_device(value: Any) -> Any:
    """Replace the names of devices, where an argument is known to be one."""

    def change(item: Any) -> Any:
        return CPU if isinstance(item, str) and item.partition(":")[0] in _TO_DEVICE else item

    return tree_map(value, change)


def run_on_cpu(function: Callable[..., Any], args: Any, kwargs: Any, dtype: torch.dtype | None = None) -> Any:
    """Call a function on the CPU, in a dtype if one is given; the result is where it would have been."""
    moving = Moving(dtype)
    with OwnCode():
        moved_args, moved_kwargs = moving.there(args), moving.there(kwargs)
    with _autocast(moving), _checkpoints(moving), OnCpu(moving):
        result = function(*moved_args, **moved_kwargs)
    with OwnCode():
        moving.write_back(unseen=getattr(function, "__name__", "") in _WRITE_UNSEEN)
        return moving.back(result)


@contextlib.contextmanager
def _checkpoints(moving: Moving) -> Iterator[None]:
    """Have what a checkpoint inside runs again in backward, when we are long gone, run on the CPU too."""
    home: Any = torch.utils.checkpoint
    names = [name for name in ("_checkpoint_without_reentrant_generator", "CheckpointFunction") if hasattr(home, name)]
    before = {name: getattr(home, name) for name in names}

    def again(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if any(isinstance(mode, OnCpu) for mode in _get_current_function_mode_stack()):
                return function(*args, **kwargs)
            with _autocast(moving), OnCpu(moving):
                return function(*args, **kwargs)

        return run

    def wrapped(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda function, *args, **kwargs: original(again(function), *args, **kwargs)

    for name, original in before.items():
        is_class = isinstance(original, type)
        ours = SimpleNamespace(apply=wrapped(original.apply)) if is_class else wrapped(original)
        setattr(home, name, ours)
    try:
        yield
    finally:
        for name, original in before.items():
            setattr(home, name, original)


@contextlib.contextmanager
def _autocast(moving: Moving) -> Iterator[None]:
    """Give the CPU the device's autocast, so that only the place changes; none where a dtype is asked for."""
    if moving.dtype is not None:
        with torch.autocast("cpu", enabled=False):
            yield
    elif moving.device is not None and torch.is_autocast_enabled(moving.device.type):
        with torch.autocast("cpu", dtype=torch.get_autocast_dtype(moving.device.type)):
            yield
    else:
        yield


def _items(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value
