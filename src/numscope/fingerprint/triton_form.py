"""The fingerprint of CUDA tensors: one launch per tensor, no allocation and no synchronisation until `finish`.

The launches of one stream leave records in a ring on the device. When it is full, and at the end, one more launch joins
the records of each launch into one line; one copy to pinned memory then brings all lines to the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from numscope.fingerprint import triton_kernels as kernels
from numscope.fingerprint.columns import Fingerprints
from numscope.fingerprint.constants import BUCKETS, SKETCH
from numscope.fingerprint.definition import fingerprint
from numscope.fingerprint.kinds import Kind
from numscope.fingerprint.rows import Rows
from numscope.fingerprint.torch_content import KIND_OF, flat_chunks
from numscope.fingerprint.triton_tables import TILE, DeviceTables

Tensor = torch.Tensor

MOST_TILES = 64  # of one program: its float32 sums stay short enough for 1e-6
MOST_PROGRAMS = 40 * BUCKETS
RECORDS = 32768
LINES = 4096
COPIED = 1 << 24  # elements copied at a time where the strides are worse than a copy
_DIMENSIONS = 5
_PER = {"float32": 1, "bfloat16": 2, "float16": 2}


@dataclass
class Tuning:
    """How a tensor is cut up; bench/gpu_fingerprint.py measures the choices."""

    programs: int = 16 * BUCKETS  # that a large tensor is spread over
    many: int = 4  # tiles whose loads are under way at a time: 1, 2 or 4
    warps: int = 8
    registers: int | None = None  # at most, per thread


TUNING = Tuning()

Finish = Callable[[Rows], None]


class StreamBatch:
    """The pending launches of one stream, and its buffers."""

    def __init__(self, tables: DeviceTables, stream: int, queue: Any) -> None:
        self.tables, self.stream = tables, stream
        self.queue = queue  # torch's own object of the stream; one made of its address is another queue for address 0
        device = tables.device
        self.ring = torch.empty(RECORDS * kernels.RECORD, dtype=torch.int64, device=device)
        self.table = torch.zeros(LINES * 2, dtype=torch.int64, device=device)
        self.scratch = torch.empty(MOST_PROGRAMS * TILE, dtype=torch.float64, device=device)
        self.out = self._lines()
        self.known = 0  # size of the tables when `fixed` was made
        self.fixed: tuple[int, ...] = ()
        self.used = 0  # records in the ring
        self.joined = 0  # lines whose records are joined
        self.lines: list[tuple[int, int, int]] = []  # row, elements, real elements in the tensor
        self.full: list[Tensor] = []  # buffers of lines that are full

    def _lines(self) -> Tensor:
        return torch.empty(LINES * kernels.RECORD, dtype=torch.int64, device=self.tables.device)

    def add(self, row: int, tensor: Tensor) -> None:
        """Launch what measures the tensor."""
        kind, parts = KIND_OF[tensor.dtype]
        elements = tensor.numel()
        count = elements * parts
        if count == 0:
            return
        self.tables.know(count)
        put_off = tensor.is_conj() or tensor.is_neg()
        if not put_off:
            if tensor.is_contiguous():
                self._whole(row, kind, tensor, elements, count, None)
                return
            shape = collapsed(tensor, parts)
            if shape is not None:
                self._whole(row, kind, tensor, elements, count, shape)
                return
        begin = 0
        for chunk in flat_chunks(tensor, COPIED):
            end = begin + chunk.numel() * parts
            self._part((row, elements, count), kind, chunk, begin, end, begin, None)
            begin = end

    def _whole(self, row: int, kind: Kind, tensor: Tensor, elements: int, count: int, shape: list[int] | None) -> None:
        most = MOST_PROGRAMS * MOST_TILES * TILE
        for first in range(0, count, most):  # one launch, but for the very largest
            self._part((row, elements, count), kind, tensor, first, min(first + most, count), 0, shape)

    def _part(
        self, line: tuple[int, int, int], kind: Kind, data: Tensor, first: int, end: int, begin: int,
        shape: list[int] | None,
    ) -> None:  # fmt: skip
        """Measure the elements [first, end) of a content, of which `data` holds those from `begin` on."""
        address = data.data_ptr()
        per = _PER.get(kind.name, 0) if shape is None and address % 4 == 0 else 0
        tile = TILE * per if per else TILE
        low, high = first // tile, -(-end // tile)
        programs = programs_for(high - low)
        if self.used + programs > RECORDS or len(self.lines) - LINES * len(self.full) == LINES:
            self._make_room()
        at = len(self.lines) - LINES * len(self.full)
        self.lines.append(line)
        self._launch(
            kind, per, 1 if shape is None else shape[-1], data, programs,
            (end, begin, at, self.used, low, high, *(_FLAT if shape is None else shape[:-1])),
        )  # fmt: skip
        self.used += programs

    def _make_room(self) -> None:
        self._join()
        self.used = 0
        if len(self.lines) - LINES * len(self.full) == LINES:
            self.full.append(self.out)
            self.out = self._lines()
            self.joined = 0

    def _join(self) -> None:
        """Join the records of the lines that are new since the last time."""
        new = len(self.lines) - LINES * len(self.full) - self.joined
        if new:
            self._launch_reduce(new, self.joined)
            self.joined += new

    def _launch(self, kind: Kind, per: int, dims: int, data: Tensor, programs: int, numbers: tuple[int, ...]) -> None:
        address = data.data_ptr()
        aligned = address % 16 == 0
        tables = self.tables
        key = kind.name, per, dims, aligned
        start = tables.compiled.get(key)
        if start is None:
            start = tables.compiled[key] = self._compile(kind, per, dims, aligned)
        code, values = tables.code(kind)
        if self.known != tables.known:  # the tables have grown since
            self.known = tables.known
            parts = tables.places, tables.blocks, tables.spans, tables.chunks, tables.rows, self.scratch
            self.fixed = self.ring.data_ptr(), self.table.data_ptr(), *(part.data_ptr() for part in parts)
        start(
            programs, self.stream, address, *self.fixed, values.data_ptr(), *numbers,
            code, kind.size, per, dims, TUNING.many,
        )  # fmt: skip

    def _compile(self, kind: Kind, per: int, dims: int, aligned: bool) -> Callable[..., None]:
        tables = self.tables
        code, values = tables.code(kind)
        width = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[4 if per else kind.size]
        stand_in = torch.empty(64, dtype=width, device=tables.device)
        if not aligned:
            stand_in = stand_in[1:]
        compiled = kernels.measure.warmup(
            stand_in, self.ring, self.table, tables.places, tables.blocks, tables.spans, tables.chunks, tables.rows,
            self.scratch, values, *([1] * 15), code, kind.size, per, dims, TUNING.many,
            grid=(1,), num_warps=TUNING.warps, maxnreg=TUNING.registers,
        )  # fmt: skip
        return _starter(compiled)

    def _launch_reduce(self, lines: int, first: int) -> None:
        compiled = self.tables.compiled
        if "reduce" not in compiled:
            warm = kernels.reduce.warmup(self.ring, self.table, self.out, grid=(1,), num_warps=4)
            compiled["reduce"] = _starter(warm)
        # Where the new lines begin is said by the addresses (multiples of 16 bytes both), not by a number.
        table, out = self.table.data_ptr() + 16 * first, self.out.data_ptr() + 8 * kernels.RECORD * first
        compiled["reduce"](lines, self.stream, self.ring.data_ptr(), table, out)

    def begin(self) -> Finish:
        """Start the copy to the host; return what waits for it and writes the rows. The stream may go on meanwhile."""
        lines = self.lines
        if not lines:
            return _nothing
        self._join()
        last = len(lines) - LINES * len(self.full)
        arrive = self._to_host([*self.full, self.out[: last * kernels.RECORD]])
        self.used, self.joined, self.lines, self.full = 0, 0, [], []

        def finish(rows: Rows) -> None:
            write_lines(arrive().reshape(-1, kernels.RECORD), lines, rows)

        return finish

    def _to_host(self, buffers: list[Tensor]) -> Callable[[], NDArray[np.int64]]:
        with torch.cuda.stream(self.queue):
            joined = torch.cat(buffers) if len(buffers) > 1 else buffers[0]
            host = torch.empty(joined.shape, dtype=torch.int64, pin_memory=True)
            host.copy_(joined, non_blocking=True)  # later launches of this stream come after it
            event = torch.cuda.Event()
            event.record()

        def arrive() -> NDArray[np.int64]:
            event.synchronize()  # waits without the interpreter's lock
            return host.numpy()

        return arrive


def _nothing(rows: Rows) -> None:
    pass


_FLAT = [1] * (_DIMENSIONS - 1) + [1] + [0] * (_DIMENSIONS - 1)


def _starter(compiled: Any) -> Callable[..., None]:
    """Return what launches a compiled kernel directly: binding the arguments anew each time would cost 10 µs."""
    run, function, metadata = compiled.run, compiled.function, compiled.packed_metadata

    def start(programs: int, stream: int, *arguments: int) -> None:
        run(programs, 1, 1, stream, function, metadata, None, None, None, *arguments)

    return start


def programs_for(tiles: int) -> int:
    """Return how many programs share this many tiles: one tile each, or a multiple of 61 of them."""
    if tiles <= TUNING.programs:
        return tiles
    least = -(-tiles // (MOST_TILES * BUCKETS)) * BUCKETS
    return max(TUNING.programs, min(least, MOST_PROGRAMS))


def collapsed(tensor: Tensor, parts: int) -> list[int] | None:
    """Return the inner sizes, the strides (innermost first, of real elements) and the kernel's number of dimensions.

    None where a copy is better: more than five dimensions, or a large tensor whose neighbours lie far apart.
    """
    if tensor.dtype.is_complex:
        tensor = torch.view_as_real(tensor)
    elif parts > 1:
        return None
    sizes: list[int] = []
    strides: list[int] = []
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride())):
        if size == 1:
            continue
        if sizes and stride == strides[-1] * sizes[-1]:
            sizes[-1] *= size
        else:
            sizes.append(size)
            strides.append(stride)
    if len(sizes) > _DIMENSIONS:
        return None
    near = not sizes or strides[0] == 0 or (strides[0] == 1 and sizes[0] >= 16)
    if not near and math.prod(sizes) > 1 << 18:
        return None
    dims = 3 if len(sizes) <= 3 else _DIMENSIONS
    sizes += [1] * (_DIMENSIONS - len(sizes))
    strides += [0] * (_DIMENSIONS - len(strides))
    return [*sizes[: _DIMENSIONS - 1], *strides, dims]


def write_lines(raw: NDArray[np.int64], lines: list[tuple[int, int, int]], rows: Rows) -> None:
    """Join the lines that belong to one row, and write the rows."""
    about = np.array(lines, np.int64)
    row, first, place = np.unique(about[:, 0], return_index=True, return_inverse=True)
    floats = raw.view(np.float64)
    with np.errstate(all="ignore"):
        sums = _joined(np.add, floats[:, kernels.SUM : kernels.SQUARES_SMALL + 1], place, len(row))
        counts = _joined(np.add, raw[:, kernels.NAN : kernels.HASH + 1], place, len(row))
        sketch = _joined(np.add, floats[:, :SKETCH], place, len(row))
        low = _joined(np.minimum, floats[:, kernels.MIN], place, len(row))
        high = _joined(np.maximum, floats[:, kernels.MAX], place, len(row))
        total, total_big, squares, squares_big, squares_small = sums.T
        elements, real = about[first, 1], about[first, 2]
        finite = real - counts[:, :3].sum(1)
        some = finite > 0
        mean = total / finite + np.ldexp(total_big / finite, kernels.BIG)
        big, small = np.ldexp(np.sqrt(squares_big), kernels.BIG), np.ldexp(np.sqrt(squares_small), -kernels.BIG)
        l2 = np.hypot(np.hypot(np.sqrt(squares), big), small)
    rows.set_many(
        row,
        Fingerprints(
            elements=elements,
            nan=counts[:, 0],
            posinf=counts[:, 1],
            neginf=counts[:, 2],
            zero=counts[:, 3],
            min=np.where(some, low, np.nan),
            max=np.where(some, high, np.nan),
            mean=np.where(some, mean, np.nan),
            l2=l2,
            hash=np.ascontiguousarray(counts[:, 4]).view(np.uint64),
            sketch=sketch,
        ),
    )


def _joined(join: np.ufunc, part: NDArray[Any], place: NDArray[np.intp], count: int) -> NDArray[Any]:
    if len(part) == count and (place[1:] > place[:-1]).all():
        return part
    order = np.argsort(place, kind="stable")
    starts = np.searchsorted(place[order], np.arange(count))
    result: NDArray[Any] = join.reduceat(part[order], starts, axis=0)
    return result


class CudaBatch:
    """The pending launches of one CUDA device, on all its streams."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        with torch.cuda.device(device):
            self.tables = DeviceTables(device)
            self.streams: dict[int, StreamBatch] = {}
            self._try_out()

    def _try_out(self) -> None:
        """Measure two tensors and compare with the definition: raise where this Triton or GPU does not do it."""
        for dtype in (torch.float32, torch.bfloat16):
            value = torch.arange(-700, 2000, device=self.device).to(dtype)
            rows = Rows()
            rows.count = 1
            self.add(0, value)
            self.begin()(rows)
            found = rows.hand_over()
            bits = value.view(torch.int16 if dtype is torch.bfloat16 else torch.int32).cpu().numpy()
            kind = KIND_OF[dtype][0]
            array = bits.view("bfloat16" if kind.name == "bfloat16" else np.float32)
            known = fingerprint(array)
            if found.hash[0] != known.hash[0] or not np.allclose(found.sketch, known.sketch, atol=1e-6 * known.l2[0]):
                raise RuntimeError(f"Triton's fingerprint of a {kind.name} tensor is not the defined one")

    def add(self, row: int, tensor: Tensor) -> None:
        """Launch what measures the tensor, on the current stream."""
        index = tensor.device.index
        stream = torch._C._cuda_getCurrentRawStream(index)
        if torch.cuda.is_current_stream_capturing():
            raise TypeError("a CUDA graph is being captured: its replays would measure again, and nobody would ask")
        batch = self.streams.get(stream)
        if batch is None:
            batch = self.streams[stream] = StreamBatch(self.tables, stream, torch.cuda.current_stream(index))
        if torch.cuda.current_device() == index:
            batch.add(row, tensor)
        else:
            with torch.cuda.device(index):
                batch.add(row, tensor)

    def begin(self) -> Finish:
        """Start the copies of all streams; return what waits for them and writes the rows."""
        with torch.cuda.device(self.device):
            waits = [batch.begin() for batch in self.streams.values()]

        def finish(rows: Rows) -> None:
            for wait in waits:
                wait(rows)

        return finish
