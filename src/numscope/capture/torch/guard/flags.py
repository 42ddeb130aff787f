"""Is a tensor finite? Answered on the spot for the CPU, and by flags that stay on the device for all others.

The CPU's test is one sum: a NaN or an infinity makes every sum it is in non-finite, so a finite sum proves all elements
finite. A sum of finite numbers may overflow too; only then is the tensor looked at again.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from math import isfinite
from types import ModuleType
from typing import Protocol

import torch

from numscope.capture.torch.own_code import OwnCode
from numscope.nonfinite.rule import Counts

Tensor = torch.Tensor

_STRIDED = torch.strided
_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
_PLAIN = (Tensor, torch.nn.Parameter)
_WIDE = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_CAPACITY = 1 << 15  # flags of one window on a device; when they are used up, they are read
_NARROW = {
    dtype
    for name in dir(torch)
    if name.startswith("float8_") and isinstance(dtype := getattr(torch, name), torch.dtype)
}


def content(tensor: Tensor) -> Tensor | None:
    """Return the floating-point values of a tensor as a dense one, or None where it has none to look at."""
    dtype = tensor.dtype
    if not (dtype.is_floating_point or dtype.is_complex):
        return None
    if tensor.layout is not _STRIDED:
        if tensor.layout is torch.sparse_coo:
            return tensor._values().detach()
        if tensor.is_nested or tensor.layout in _COMPRESSED:
            return _plain(tensor.values().detach())
        return None
    if tensor.device.type == "meta":
        return None
    if tensor.is_nested:
        return tensor.values().detach()
    return _plain(tensor.detach())


def _plain(tensor: Tensor) -> Tensor | None:
    """Return a strided tensor's values as real numbers, or None where there are none to look at."""
    dtype = tensor.dtype
    if type(tensor) is not Tensor and type(tensor) is not torch.nn.Parameter:
        plain = _inside(tensor)
        if plain is None:
            return None
        tensor = plain
    if dtype.is_complex:
        return torch.view_as_real(tensor.resolve_conj())
    return tensor.to(torch.float32) if dtype in _NARROW else tensor


def is_finite(tensor: Tensor) -> bool:
    """Tell whether a CPU tensor's elements are all finite."""
    dtype = tensor.dtype
    if dtype.is_floating_point:
        try:
            if isfinite(tensor.detach().sum()):
                return True
        except (RuntimeError, NotImplementedError, TypeError):
            pass  # sparse, nested, 8-bit: looked at below
    elif not dtype.is_complex:
        return True
    values = content(tensor)
    if values is None or values.numel() == 0:
        return True
    low, high = torch.aminmax(values)
    return isfinite(low) and isfinite(high)


def count(tensor: Tensor) -> Counts:
    """Count a tensor's non-finite elements, on any device; waits for the device."""
    values = content(tensor)
    elements = int(tensor.numel())
    if values is None or values.numel() == 0:
        return Counts(elements=elements)
    nan = int(torch.isnan(values).sum())
    up = int(torch.isposinf(values).sum())
    down = int(torch.isneginf(values).sum())
    finite = values if not (nan or up or down) else torch.where(torch.isfinite(values), values, 0.0)
    low = float(finite.amin()) <= torch.finfo(tensor.dtype).min / 2
    return Counts(nan, up, down, elements, low)


class DeviceFlags:
    """Counts of non-finite elements that lie on one device until they are read: no synchronisation for a tensor."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._used = 0
        self._elements: list[int] = []
        with torch.inference_mode(False):  # they outlive such a stretch
            self._launcher = _launcher(device)
            self._buffer = torch.zeros((_CAPACITY, 4), dtype=torch.int32, device=device)
        self._streams = Streams(device) if device.type == "cuda" else None

    @property
    def full(self) -> bool:
        """Tell whether the flags must be taken before the next call."""
        return self._used > _CAPACITY - 4096

    def add(self, tensor: Tensor) -> int:
        """Enqueue the look at a tensor; return the number of its flags, or -1 where there is nothing to look at."""
        values = _values(tensor)
        if values is None or values.numel() == 0:
            return -1
        if self._streams is not None and not self._streams.is_here():
            self._streams.move()
        row = self.row(tensor)
        self._launcher.one(values if values.is_contiguous() else _dense(values), self._buffer, row)
        return row

    def row(self, tensor: Tensor) -> int:
        """Return the number of the flags that a tensor will have."""
        row = self._used
        self._used += 1
        self._elements.append(tensor.numel())
        return row

    def is_here(self) -> bool:
        """Tell whether the work that is enqueued now comes after that which made the tensors before; else go there."""
        if self._streams is None or self._streams.is_here():
            return True
        self._streams.move()
        return False

    def launch(self, looks: list[tuple[Tensor, int, int]]) -> None:
        """Enqueue looks at many tensors with as few launches as can be.

        A look is a tensor, the number of its flags, and the number of flags that must show something for this look to be
        taken at all, or -1. Those come after all others, and only one row deep: what they depend on depends on nothing.
        """
        groups: dict[torch.dtype, list[tuple[Tensor, int, int]]] = {}
        with self._streams.before() if self._streams is not None else nullcontext():
            for tensor, row, root in looks:
                values = _values(tensor)
                if values is None or values.numel() == 0 or _is_gone(values):
                    continue
                values = values if values.is_contiguous() else _dense(values)
                if values.dtype in _WIDE and values.data_ptr() % 16 == 0:
                    groups.setdefault(values.dtype, []).append((values, row, root))
                else:
                    self._launcher.one(values, self._buffer, row)
            sure = [[look for look in group if look[2] < 0] for group in groups.values()]
            rest = [[look for look in group if look[2] >= 0] for group in groups.values()]
            for group in [*sure, *rest]:
                if group:
                    self._launcher.many(group, self._buffer)

    def take(self) -> Pending:
        """End a window: start to copy its flags to the host, and return where they will be."""
        used, self._used = self._used, 0
        elements, self._elements = self._elements, []
        if used == 0:
            return Pending(torch.empty((0, 4), dtype=torch.int32), None, [])
        if self._streams is not None:
            self._streams.join()
        cuda = self.device.type == "cuda"
        host = torch.empty((used, 4), dtype=torch.int32, pin_memory=cuda)
        host.copy_(self._buffer[:used], non_blocking=cuda)
        self._buffer[:used].zero_()
        return Pending(host, self._streams.mark() if self._streams is not None else None, elements)


class Streams:
    """The CUDA streams on which tensors of one window were made: each is looked at on its own."""

    def __init__(
        self, device: torch.device, cuda: ModuleType = torch.cuda, number: Callable[[], int] | None = None
    ) -> None:
        self._cuda = cuda
        self._device = device
        # A number is asked for with every tensor, and costs a twentieth of a stream object.
        self._number = number or partial(torch._C._cuda_getCurrentRawStream, device.index or 0)
        self._here = self._number()
        self._now = cuda.current_stream(device)
        self._previous = self._now
        self._others: list[torch.cuda.Stream] = []
        self._ready: torch.cuda.Event | None = None  # after it the flags are zero

    def is_here(self) -> bool:
        """Tell whether the current stream is that of the tensors before."""
        return bool(self._number() == self._here)

    def move(self) -> None:
        """Go on with the current stream; what waits still belongs to the one before."""
        self._here = self._number()
        self._previous, self._now = self._now, self._cuda.current_stream(self._device)
        self._others.append(self._previous)
        if self._ready is not None:
            self._now.wait_event(self._ready)

    def before(self) -> AbstractContextManager[object]:
        """Return a context in which work is enqueued on the stream of the tensors that wait, and go back to the current."""
        stream, self._previous = self._previous, self._now
        return self._cuda.stream(stream) if stream != self._now else nullcontext()

    def join(self) -> None:
        """Let the current stream wait for the looks on all others."""
        current = self._cuda.current_stream(self._device)
        for stream in {*self._others, self._now}:
            if stream != current:
                current.wait_stream(stream)
        self._others = []
        self._here = self._number()
        self._previous = self._now = current

    def mark(self) -> torch.cuda.Event:
        """Return an event after which the flags that were taken are on the host, and new ones may be counted."""
        self._ready = self._cuda.Event()
        self._ready.record(self._now)
        return self._ready


class Pending:
    """The flags of a window, on their way to the host."""

    def __init__(self, host: Tensor, event: torch.cuda.Event | None, elements: list[int]) -> None:
        self._host = host
        self._event = event
        self._elements = elements
        self._rows: list[list[int]] | None = None

    @property
    def ready(self) -> bool:
        """Tell whether reading would not wait."""
        return self._event is None or self._event.query()

    def struck(self) -> bool:
        """Tell whether anything in the window is not finite."""
        if self._event is not None:
            self._event.synchronize()
            self._event = None
        return bool(self._host[:, :3].any())

    def counts(self, row: int) -> Counts:
        """Return the counts of one tensor."""
        if row < 0:
            return Counts()
        if self._rows is None:
            self._rows = self._host.tolist()
        nan, up, down, low = self._rows[row]
        return Counts(nan, up, down, self._elements[row], low > 0)


class Launcher(Protocol):
    """Enqueues counts into the rows of a buffer."""

    def one(self, values: Tensor, buffer: Tensor, row: int) -> None:
        """Count one tensor."""

    def many(self, looks: list[tuple[Tensor, int, int]], buffer: Tensor) -> None:
        """Count tensors of one dtype, without gaps: each with its row, and the row that must show something, or -1."""


class PlainLauncher:
    """Counts with torch operations, several passes: for devices that have no Triton."""

    def one(self, values: Tensor, buffer: Tensor, row: int) -> None:
        """Count one tensor."""
        values = values.detach()
        low = values <= torch.finfo(values.dtype).min / 2
        found = (torch.isnan(values), torch.isposinf(values), torch.isneginf(values), low)
        buffer[row] = torch.stack([item.sum(dtype=torch.int32) for item in found])

    def many(self, looks: list[tuple[Tensor, int, int]], buffer: Tensor) -> None:
        """Count tensors, one after another; the host can tell which of them need no look."""
        for tensor, row, root in looks:
            if root < 0 or not buffer.is_cpu or bool(buffer[root, :3].any()):
                self.one(tensor, buffer, row)


def _launcher(device: torch.device) -> Launcher:
    """Return what enqueues counts: Triton kernels where there is Triton, torch operations elsewhere."""
    if device.type == "cuda":
        try:
            from numscope.capture.torch.guard.flag_kernel import TritonLauncher

            launcher = TritonLauncher(device)
            _try_out(launcher, device)
            return launcher
        except Exception as error:  # no Triton, or one that this device or version does not get on with
            warnings.warn(f"the guard counts with torch operations, which is slower ({error})", stacklevel=2)
    return PlainLauncher()


def _try_out(launcher: Launcher, device: torch.device) -> None:
    """Count what is known, once in a process's life; a wrong count is an error."""
    for dtype in (torch.float32, torch.bfloat16):
        values = torch.zeros(9001, dtype=dtype, device=device)
        values[0], values[9000], values[4097] = torch.nan, -torch.inf, torch.inf
        clean = torch.zeros_like(values)
        counts = torch.zeros((5, 4), dtype=torch.int32, device=device)
        launcher.one(values, counts, 0)
        launcher.many([(values, 1, -1), (clean, 2, -1)], counts)
        launcher.many([(values, 3, 1), (values, 4, 2)], counts)
        some, none = [1, 1, 1, 0], [0, 0, 0, 0]
        if counts.tolist() != [some, some, none, some, none]:
            raise ArithmeticError("its kernel miscounts")


def _values(tensor: Tensor) -> Tensor | None:
    """Return a tensor's values in a dtype that is counted as it is, or None where there is nothing to look at."""
    if type(tensor) in _PLAIN and tensor.dtype in _WIDE and tensor.layout is _STRIDED:
        return tensor
    return content(tensor)


def _is_gone(values: Tensor) -> bool:
    """Tell whether a tensor's memory was given back while it waited, as sharded training does with gathered weights."""
    if values.is_contiguous():
        reach = values.numel()
    else:  # an expanded tensor has more elements than memory
        reach = 1 + sum((size - 1) * step for size, step in zip(values.shape, values.stride()))
    return values.untyped_storage().nbytes() < (values.storage_offset() + reach) * values.element_size()


def _dense(values: Tensor) -> Tensor:
    """Return the same elements in any order without gaps; a copy only where memory has gaps or repeats."""
    values = values.detach()
    order = sorted(range(values.dim()), key=values.stride, reverse=True)
    permuted = values.permute(order)
    return permuted if permuted.is_contiguous() else values.contiguous()


def _inside(tensor: Tensor) -> Tensor | None:
    """Return the plain tensor inside a subclass, or None."""
    local = getattr(tensor, "_local_tensor", None)  # DTensor
    if isinstance(local, Tensor) and type(local) is Tensor:
        return local
    if type(tensor).__name__ in {"FakeTensor", "FunctionalTensor", "AsyncCollectiveTensor"}:
        return None
    with OwnCode():
        plain = tensor.as_subclass(Tensor)
    return plain if type(plain) is Tensor and plain.layout is _STRIDED else None
