"""Kept tensors of a CUDA device, on their way to the disk.

The job's thread copies a tensor on its device and records an event on the stream (`DeviceCopy`). The writer knows from the
fingerprints which contents it has already. Its threads fetch the others through pinned memory and streams of their own:
one piece is copied to the host while the piece before it is written, and the job waits for nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from numscope.capture.torch.identity.subclasses import to_numpy
from numscope.store.batch import OnDevice
from numscope.store.dtypes import numpy_dtype

PIECE = 8 << 20
_thread = threading.local()


class DeviceCopy(NamedTuple):
    """A contiguous copy on a device, and the event after which it is complete."""

    tensor: torch.Tensor
    ready: torch.cuda.Event


class Source(NamedTuple):
    """Bytes on a device, and the event after which they are complete."""

    data: torch.Tensor
    ready: torch.cuda.Event


class Move(NamedTuple):
    """Bytes to be copied to the host."""

    target: torch.Tensor
    source: torch.Tensor
    ready: torch.cuda.Event  # after which the source is complete


class Arriving(NamedTuple):
    """A piece that is being copied to the host."""

    wait: Callable[[], None]
    data: memoryview


class Engine(Protocol):
    """Copies from one device to the host."""

    def buffer(self, size: int) -> torch.Tensor:
        """Return host memory that the device can write to."""

    def begin(self, moves: Iterable[Move]) -> Callable[[], None]:
        """Begin to copy; return a function that waits until all is copied."""


def fetched_later(copy: torch.Tensor) -> torch.Tensor | DeviceCopy:
    """Return a new copy as one that the writer fetches later, where its device allows that."""
    if copy.device.type != "cuda":
        return copy
    ready = torch.cuda.Event()
    ready.record(torch.cuda.current_stream(copy.device))
    return DeviceCopy(copy, ready)


def for_the_writer(copy: torch.Tensor | DeviceCopy) -> NDArray[np.generic] | OnDevice:
    """Return a copy in the form that the writer takes."""
    if not isinstance(copy, DeviceCopy):
        return to_numpy(copy)
    dtype = numpy_dtype(str(copy.tensor.dtype).removeprefix("torch."))
    return to_numpy(copy.tensor) if dtype is None else OnDevice(dtype, tuple(copy.tensor.shape), copy, fetch)


def fetch(copies: Sequence[DeviceCopy]) -> Iterator[memoryview]:
    """Yield the bytes of the copies, one after the other, in pieces; each is valid until the next is asked for."""
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
        """Yield the bytes of the copies in pieces."""
        arriving: Arriving | None = None
        for turn, piece in enumerate(_pieces(copies, self._size)):
            buffer, view = self._buffers[turn % 2], self._views[turn % 2]
            moves, filled = [], 0
            for source in piece:
                moves.append(Move(buffer[filled : filled + len(source.data)], source.data, source.ready))
                filled += len(source.data)
            wait = self._engine.begin(moves)
            if arriving is not None:
                arriving.wait()
                yield arriving.data
            arriving = Arriving(wait, view[:filled])
        if arriving is not None:
            arriving.wait()
            yield arriving.data


def _pieces(copies: Iterable[DeviceCopy], size: int) -> Iterator[list[Source]]:
    """Cut the bytes of the copies, or gather them, into pieces of this size."""
    piece: list[Source] = []
    room = size
    for copy in copies:
        if not copy.tensor.numel():
            continue
        rest = copy.tensor.reshape(-1).view(torch.uint8)
        while len(rest):
            piece.append(Source(rest[:room], copy.ready))
            room, rest = room - len(rest[:room]), rest[room:]
            if not room:
                yield piece
                piece, room = [], size
    if piece:
        yield piece


class _Cuda:
    """Copies on a stream of its own, and holds the sources until they have arrived.

    One thread of the writer uses it and keeps the device as its current one: going back to another device could create
    a context there, of hundreds of megabytes.
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
