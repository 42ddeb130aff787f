"""Kept tensors of a CUDA device on their way to the disk.

The job only copies a tensor on its device and notes on the stream that it did (`DeviceCopy`). The writer knows from the
fingerprints which contents it has already; the others its threads fetch through pinned memory of their own, on streams of
their own: one piece is on its way while the one before it is written, and the job waits for nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple, Protocol

import torch
from numpy.typing import NDArray

from numscope.capture.torch.identity.subclasses import to_numpy
from numscope.store.batch import OnDevice
from numscope.store.dtypes import numpy_dtype

PIECE = 8 << 20
_thread = threading.local()


class DeviceCopy(NamedTuple):
    """A tensor of ours on a device, contiguous, and the event after which it is whole."""

    tensor: torch.Tensor
    ready: Any


Move = tuple[
    torch.Tensor, torch.Tensor, Any
]  # bytes of the host, bytes of the device, the event after which they are whole


class Engine(Protocol):
    """What copies from one device to the host."""

    def buffer(self, size: int) -> torch.Tensor:
        """Return bytes of the host's that the device can write to."""

    def begin(self, moves: Iterable[Move]) -> Callable[[], None]:
        """Begin to copy; return what waits for the end."""


def left_there(copy: torch.Tensor) -> torch.Tensor | DeviceCopy:
    """Return a copy just made as one to be fetched later, if it is on a device that can do that."""
    if copy.device.type != "cuda":
        return copy
    ready = torch.cuda.Event()
    ready.record(torch.cuda.current_stream(copy.device))
    return DeviceCopy(copy, ready)


def for_the_writer(copy: torch.Tensor | DeviceCopy) -> NDArray[Any] | OnDevice:
    """Return a copy as the writer takes it."""
    if not isinstance(copy, DeviceCopy):
        return to_numpy(copy)
    dtype = numpy_dtype(str(copy.tensor.dtype).removeprefix("torch."))
    return to_numpy(copy.tensor) if dtype is None else OnDevice(dtype, tuple(copy.tensor.shape), copy, fetch)


def fetch(copies: Sequence[DeviceCopy]) -> Iterator[memoryview]:
    """Give the bytes of the copies, one after the other, in pieces; each is valid until the next is asked for."""
    if not hasattr(_thread, "ways"):
        _thread.ways = {}
    for device, group in groupby(copies, lambda copy: copy.tensor.device):
        if device not in _thread.ways:
            _thread.ways[device] = Way(_Cuda(device), PIECE)
        yield from _thread.ways[device].bring(group)


class Way:
    """Two buffers of one thread, filled in turn."""

    def __init__(self, engine: Engine, size: int) -> None:
        self._engine = engine
        self._size = size
        self._buffers = [engine.buffer(size) for _ in range(2)]
        self._views = [buffer.numpy().data for buffer in self._buffers]

    def bring(self, copies: Iterable[DeviceCopy]) -> Iterator[memoryview]:
        """Give the bytes of the copies in pieces."""
        arriving: tuple[Callable[[], None], memoryview] | None = None
        for turn, piece in enumerate(_pieces(copies, self._size)):
            buffer, view = self._buffers[turn % 2], self._views[turn % 2]
            moves, filled = [], 0
            for source, ready in piece:
                moves.append((buffer[filled : filled + len(source)], source, ready))
                filled += len(source)
            wait = self._engine.begin(moves)
            if arriving is not None:
                arriving[0]()
                yield arriving[1]
            arriving = wait, view[:filled]
        if arriving is not None:
            arriving[0]()
            yield arriving[1]


def _pieces(copies: Iterable[DeviceCopy], size: int) -> Iterator[list[tuple[torch.Tensor, Any]]]:
    """Cut the bytes of the copies, and gather them, into pieces of that size."""
    piece: list[tuple[torch.Tensor, Any]] = []
    room = size
    for copy in copies:
        if not copy.tensor.numel():
            continue
        rest = copy.tensor.reshape(-1).view(torch.uint8)
        while len(rest):
            piece.append((rest[:room], copy.ready))
            room, rest = room - len(rest[:room]), rest[room:]
            if not room:
                yield piece
                piece, room = [], size
    if piece:
        yield piece


class _Cuda:
    """Copies on a stream of its own; what is copied stays referred to until it has arrived.

    It is used by one thread of the writer, which has the device as its current one: to come back to another one could
    make a context there, of hundreds of megabytes.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        torch.cuda.set_device(device)
        self._stream = torch.cuda.Stream(device)

    def buffer(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def begin(self, moves: Iterable[Move]) -> Callable[[], None]:
        held = list(moves)
        torch.cuda.set_device(self._device)
        with torch.cuda.stream(self._stream):
            for target, source, ready in held:
                self._stream.wait_event(ready)
                target.copy_(source, non_blocking=True)
            arrived = torch.cuda.Event(blocking=True)  # waits asleep, and without the interpreter's lock
            arrived.record(self._stream)

        def wait() -> None:
            arrived.synchronize()
            held.clear()

        return wait
