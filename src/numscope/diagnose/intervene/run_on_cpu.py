"""Runs a callable on the CPU, or in another dtype, or both, unnoticed by its caller.

Arguments are copied to the CPU and results back. In-place writes are copied to the originals. Autograd goes through,
because a copy is itself differentiable. Tensors that the callable reaches in other ways (a
module's parameters, globals, closures) are copied when a torch function meets them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TypeVar

import torch
import torch.utils.checkpoint
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from numscope.capture.torch.numerics import autocast_of
from numscope.capture.torch.own_code import OwnCode
from numscope.core.operators import Trait, names_with
from numscope.diagnose.pytree import tree_map, tree_map_tensors

T = TypeVar("T")

CPU = torch.device("cpu")
_TO_DEVICE = {"cuda", "npu", "xpu", "mps", "hpu", "mlu", "musa"}
_CASTS = {"float", "double", "half", "bfloat16"}
_UNVERSIONED_WRITES = names_with(Trait.UNVERSIONED_WRITES)


@dataclass(frozen=True)
class _TensorCopy:
    original: torch.Tensor
    copy: torch.Tensor
    version: int  # of the copy when it was made

    @property
    def is_written(self) -> bool:
        return self.copy._version != self.version


@dataclass(frozen=True)
class _ContainerCopy:
    original: list[object] | dict[object, object]
    copy: list[object] | dict[object, object]
    items: list[object]  # of the copy when it was made


class CpuCopies:
    """Copies of tensors on the CPU, or where they are, in a dtype if one is given, and their originals."""

    def __init__(self, dtype: torch.dtype | None, in_place: bool = False) -> None:
        self.dtype = dtype
        self.in_place = in_place  # tensors stay on their device
        self.device: torch.device | None = None  # of the first tensor that was copied
        self.nominal: torch.dtype | None = None  # the dtype that results would have had
        self._copies: dict[int, _TensorCopy] = {}  # by the id of the original
        self._originals: dict[int, torch.Tensor] = {}  # by the id of the copy
        self._containers: list[_ContainerCopy] = []

    def copied(self, value: T) -> T:
        """Return a value with its tensors on the CPU."""
        copy = tree_map_tensors(value, self._copied)
        self._remember_containers(value, copy)
        return copy

    def _remember_containers(self, value: object, copy: object) -> None:
        """Remember the lists and dictionaries in a value: the callable may add items to them, as to a cache."""
        if isinstance(value, (list, dict)) and isinstance(copy, (list, dict)):
            self._containers.append(_ContainerCopy(value, copy, list(_items(copy))))
        for item, counterpart in zip(_items(value), _items(copy)):
            self._remember_containers(item, counterpart)

    def _copied(self, tensor: torch.Tensor) -> torch.Tensor:
        known = self._copies.get(id(tensor))
        if known is not None:
            return known.copy
        dtype = self.dtype_of(tensor.dtype)
        if (self.in_place or tensor.device.type == "cpu") and dtype == tensor.dtype:
            return tensor
        if self.device is None and tensor.device.type != "cpu":
            self.device = tensor.device
        if dtype != tensor.dtype:
            self.nominal = torch.promote_types(self.nominal, tensor.dtype) if self.nominal else tensor.dtype
        copy = tensor.to(tensor.device if self.in_place else CPU, dtype)
        self._copies[id(tensor)] = _TensorCopy(tensor, copy, copy._version)
        self._originals[id(copy)] = tensor
        return copy

    def dtype_of(self, dtype: torch.dtype) -> torch.dtype:
        """Return the dtype in which a tensor of some dtype is copied."""
        return self.dtype if self.dtype is not None and dtype.is_floating_point else dtype

    def write_back(self, unversioned: bool = False) -> None:
        """Copy in-place writes to the originals; with `unversioned` by content, as a kernel may not raise the version."""
        for made in self._copies.values():
            is_written = made.is_written
            if unversioned and not is_written and not made.copy.requires_grad:
                is_written = not torch.equal(made.original.to(made.copy), made.copy)
            if is_written:
                made.original.copy_(made.copy)
        for container in self._containers:
            now = list(_items(container.copy))
            if len(now) == len(container.items) and all(new is old for new, old in zip(now, container.items)):
                continue
            if isinstance(container.original, dict):
                assert isinstance(container.copy, dict)
                items = self.restored(list(container.copy.items()))
                container.original.clear()
                container.original.update(items)
            else:
                container.original[:] = self.restored(list(container.copy))

    def with_written_originals(self, value: T) -> T:
        """Return a result with originals in place of written copies, so that a later write reaches the original."""
        written = {id(made.copy) for made in self._copies.values() if made.is_written}
        return tree_map_tensors(value, lambda item: self._originals[id(item)] if id(item) in written else item)

    def restored(self, value: T) -> T:
        """Return a result with its tensors on the device and in the dtype in which they would have been."""
        return tree_map_tensors(value, self._restored)

    def _restored(self, tensor: torch.Tensor) -> torch.Tensor:
        original = self._originals.get(id(tensor))
        if original is not None:
            return original
        dtype = tensor.dtype
        if self.dtype is not None and dtype == self.dtype:
            dtype = self.nominal or torch.get_default_dtype()
        return tensor.to(self.device or tensor.device, dtype)


class CpuMode(TorchFunctionMode):
    """Makes every torch function run on the CPU, in a dtype if one is given."""

    def __init__(self, outer: CpuCopies) -> None:
        super().__init__()
        self._outer = outer

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _TO_DEVICE and not self._outer.in_place:
            return args[0]
        dtype = self._outer.dtype
        if dtype is not None and name in _CASTS and len(args) == 1 and not kwargs:
            (tensor,) = args
            assert isinstance(tensor, torch.Tensor)
            return tensor if tensor.dtype == dtype else tensor.to(dtype)
        copies = CpuCopies(dtype, self._outer.in_place)
        with OwnCode():
            args = tree_map(copies.copied(args), self._argument)
            kwargs = tree_map(copies.copied(kwargs), self._argument)
        if (name == "to" or "device" in kwargs) and not self._outer.in_place:
            args, kwargs = tree_map(args, _cpu_for_device), tree_map(kwargs, _cpu_for_device)
        result = func(*args, **kwargs)
        with OwnCode():
            copies.write_back(unversioned=name in _UNVERSIONED_WRITES)
            result = copies.with_written_originals(result)
        if self._outer.device is None:
            self._outer.device = copies.device
        if self._outer.nominal is None:  # no argument of the callable has a floating dtype: token ids, say
            self._outer.nominal = copies.nominal
        return result

    def _argument(self, value: object) -> object:
        if isinstance(value, torch.dtype):
            return self._outer.dtype_of(value)
        if isinstance(value, torch.device) and not self._outer.in_place and value.type not in ("cpu", "meta"):
            if self._outer.device is None:
                self._outer.device = value
            return CPU
        return value


def _cpu_for_device(value: object) -> object:
    """Replace an argument that is the name of a device."""
    return CPU if isinstance(value, str) and value.partition(":")[0] in _TO_DEVICE else value


def run_on_cpu(
    function: Callable[..., T],
    args: tuple[object, ...],
    kwargs: dict[str, object],
    dtype: torch.dtype | None = None,
    in_place: bool = False,
) -> T:
    """Call a function on the CPU, in a dtype if one is given; the result is where it would have been.

    With `in_place` tensors stay on their device: then only the dtype is another.
    """
    copies = CpuCopies(dtype, in_place)
    with OwnCode():
        args, kwargs = copies.copied(args), copies.copied(kwargs)
    with _autocast(copies), _checkpoints(copies), CpuMode(copies):
        result = function(*args, **kwargs)
    with OwnCode():
        copies.write_back(unversioned=getattr(function, "__name__", "") in _UNVERSIONED_WRITES)
        restored = copies.restored(result)
    return restored


@contextlib.contextmanager
def _checkpoints(copies: CpuCopies) -> Iterator[None]:
    """Make checkpoints inside recompute on the CPU too, which they do later, in backward."""
    home = torch.utils.checkpoint
    names = [name for name in ("_checkpoint_without_reentrant_generator", "CheckpointFunction") if hasattr(home, name)]
    before = {name: getattr(home, name) for name in names}

    def on_cpu(function: Callable[..., T]) -> Callable[..., T]:
        def run(*args: object, **kwargs: object) -> T:
            if any(isinstance(mode, CpuMode) for mode in _get_current_function_mode_stack()):
                return function(*args, **kwargs)
            with _autocast(copies), CpuMode(copies):
                result = function(*args, **kwargs)
            return result

        return run

    def wrapped(original: Callable[..., T]) -> Callable[..., T]:
        return lambda function, *args, **kwargs: original(on_cpu(function), *args, **kwargs)

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
def _autocast(copies: CpuCopies) -> Iterator[None]:
    """Run under the autocast of the original device, or under none where a dtype is given."""
    if copies.dtype is not None:
        with torch.autocast("cpu", enabled=False):
            yield
    elif copies.device is not None and (dtype := autocast_of(copies.device.type)) is not None:
        with torch.autocast("cpu", dtype=dtype):
            yield
    else:
        yield


def _items(value: object) -> Collection[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, (list, tuple)) else ()
