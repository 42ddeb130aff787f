"""The launches of one CUDA stream: one per tensor, or one for many small ones; nothing waits for the device.

The launches leave records in a ring on the device. When it is full, and at the end, one more launch joins the records of
each content into one line; one copy to pinned memory then brings all lines to the host.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from numscope.fingerprint.constants import BUCKETS
from numscope.fingerprint.cuda import kernels
from numscope.fingerprint.cuda import transposed as transposing
from numscope.fingerprint.cuda.jobs import Small, table_of
from numscope.fingerprint.cuda.launch import Launch, Used, launch_of
from numscope.fingerprint.cuda.lines import write_lines
from numscope.fingerprint.cuda.shapes import (
    FLAT,
    MOST_PROGRAMS,
    MOST_TILES,
    PER,
    TUNING,
    collapsed,
    in_rows,
    programs_for,
    turned,
)
from numscope.fingerprint.cuda.tables import TILE, DeviceTables
from numscope.fingerprint.kinds import Kind
from numscope.fingerprint.native import load
from numscope.fingerprint.rows import Rows
from numscope.fingerprint.torch_content import KIND_OF, PendingTensor, flat_chunks

Tensor = torch.Tensor

RECORDS = 32768
LINES = 4096
_SPREAD = 10_000  # shapes with strides that are remembered
COPIED = 1 << 24  # elements copied at a time where the strides are worse than a copy
_KEPT = 1 << 26  # bytes of the memory for straight copies that is kept for the next one
_FEW = BUCKETS  # programs: contents with more are launched by themselves, which costs less than a table of them

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Finish = Callable[[Rows], None]


class Line(NamedTuple):
    """A line of results: the row that it belongs to, and the tensor's number of elements."""

    row: int
    elements: int
    real: int  # elements, complex ones counted twice


class FullLines(NamedTuple):
    """A full buffer of lines, and the Line of each."""

    out: Tensor
    about: NDArray[np.int64]


class Turn(NamedTuple):
    """A launch that copies transposed matrices of one shape into row-major order."""

    start: Launch
    programs: int
    size: int  # of the copy, in bytes
    tail: tuple[int, ...]


class Plan(NamedTuple):
    """A launch that measures contents of one dtype and size, or of one shape with its strides, at a multiple of 16 bytes."""

    packed: bytes | None  # for the launch in C
    call: Callable[..., None]
    before: tuple[object, ...]  # arguments before the address
    head: tuple[int, ...]  # between the address and the line's number
    tail: tuple[int, ...]  # after the record's number
    programs: int
    elements: int
    real: int  # elements, complex ones counted twice
    kind: Kind
    per: int
    turn: Turn | None
    flat: bool  # the content lies in one piece


class StreamBatch:
    """The pending launches of one stream, and its buffers."""

    def __init__(self, tables: DeviceTables, stream: int, queue: torch.cuda.Stream) -> None:
        self.tables, self.stream = tables, stream
        native = load()
        self.start = None if native is None else native.launch
        self.entry = 0 if native is None else native.launch_entry  # its address
        self.queue = queue  # torch's own object of the stream; one made of its address is another queue for address 0
        device = tables.device
        self.ring = torch.empty(RECORDS * kernels.RECORD, dtype=torch.int64, device=device)
        self.table = torch.zeros(LINES * 2, dtype=torch.int64, device=device)
        self.out = self._lines()
        self.plans: dict[tuple[torch.dtype, int], Plan] = {}  # of contents in one piece
        self.spread: dict[tuple[torch.dtype, torch.Size, tuple[int, ...]], Plan] = {}  # of others
        self.alike: dict[Hashable, Plan] = {}  # of tensors that a caller calls alike
        # memory for copies of transposed matrices: each is read before the next is made
        self.straight: Tensor | None = None
        self.known = 0  # size of the tables when `plans` was begun
        self.about = np.empty((LINES, 3), np.int64)  # of the lines in `out`: row, elements, real elements in the tensor
        self.used = Used(0, 0, LINES, RECORDS, self.about.ctypes.data)
        self.joined = 0  # of the lines, those whose records are joined
        self.full: list[FullLines] = []

    def _lines(self) -> Tensor:
        return torch.empty(LINES * kernels.RECORD, dtype=torch.int64, device=self.tables.device)

    # --- adding

    def add(self, row: int, tensor: Tensor, address: int) -> None:
        """Launch the kernel that measures the tensor at this address."""
        plan = self._known(tensor)
        if plan is not None and not address & 15 and not tensor.is_neg() and not tensor.is_conj():
            self.launch(plan, row, address)
        elif elements := tensor.numel():
            with torch.no_grad():
                self._add_any(row, tensor.detach(), elements)

    def _known(self, tensor: Tensor) -> Plan | None:
        if tensor.is_contiguous():
            return self.plans.get((tensor.dtype, tensor.numel()))
        return self.spread.get((tensor.dtype, tensor.shape, tensor.stride()))

    def learn(self, tensor: Tensor, alike: Hashable) -> None:
        """Remember the plan of a tensor that was just added, for tensors like it, without conjugate or negative bit."""
        plan = self._known(tensor)
        if plan is not None and len(self.alike) < _SPREAD:
            self.alike[alike] = plan

    def launch(self, plan: Plan, row: int, address: int) -> None:
        """Launch a tensor's plan; its address is a multiple of 16."""
        packed = plan.packed
        if packed is None or self.start is None or self.start(packed, row, address >> 32, address):
            self.launch_by_triton(plan, row, address)

    def launch_by_triton(self, plan: Plan, row: int, address: int) -> None:
        """Do as `launch` where C cannot: for transposed matrices, a full ring, a thread that has no context yet."""
        if plan.turn is not None:
            straight = self._turned(address, plan.turn)  # held until the launch below: its memory is this stream's
            address = straight.data_ptr()
        used = self._room(plan.programs)
        plan.call(*plan.before, address, *plan.head, used.lines, used.records, *plan.tail)
        self._use(plan.programs, Line(row, plan.elements, plan.real))

    def _room(self, programs: int, lines: int = 1) -> Used:
        """Make room for this many programs and lines, which may be all; return how much is used."""
        used = self.used
        if used.records + programs > RECORDS or used.lines + lines > LINES:
            self._make_room(lines)
        return used

    def _use(self, programs: int, *about: Line) -> None:
        """Note lines that were launched."""
        used = self.used
        end = used.lines + len(about)
        self.about[used.lines : end] = about
        used.lines = end
        used.records += programs

    def add_many(self, many: Sequence[PendingTensor]) -> None:
        """Measure many tensors, small ones in one piece by few launches."""
        groups: dict[tuple[str, int], tuple[Kind, list[Small]]] = {}
        for row, tensor, address, alike in many:
            plan = None if alike is None or address & 15 else self.alike.get(alike)
            if plan is None:
                self.add(row, tensor, address)
                if alike is not None:
                    self.learn(tensor, alike)
            elif plan.programs > _FEW or not plan.flat or not plan.per:
                self.launch(plan, row, address)
            else:
                _, jobs = groups.setdefault((plan.kind.name, plan.per), (plan.kind, []))
                jobs.append(Small(row, plan.elements, plan.real, address, plan.programs))
        for (_, per), (kind, jobs) in groups.items():
            begin = programs = 0
            for end, job in enumerate(jobs):
                if programs + job.programs > MOST_PROGRAMS or end - begin == LINES:
                    self._launch_jobs(kind, per, jobs[begin:end], programs)
                    begin, programs = end, 0
                programs += job.programs
            self._launch_jobs(kind, per, jobs[begin:], programs)

    def _launch_jobs(self, kind: Kind, per: int, jobs: list[Small], programs: int) -> None:
        used = self._room(programs, len(jobs))
        self._launch_many(kind, per, table_of(jobs, programs, used.lines, used.records))
        self._use(programs, *(Line(job.row, job.elements, job.real) for job in jobs))

    def _add_any(self, row: int, tensor: Tensor, elements: int) -> None:
        kind, parts = KIND_OF[tensor.dtype]
        count = elements * parts
        self.tables.know(count)
        if self.known != self.tables.known:  # the tables have moved
            self.known = self.tables.known
            self.plans.clear()
            self.spread.clear()
            self.alike.clear()
        per = PER.get(kind.name, 0)
        if not (tensor.is_conj() or tensor.is_neg()):
            if tensor.is_contiguous():
                self._whole(Line(row, elements, count), kind, tensor, None, per if tensor.data_ptr() % 4 == 0 else 0)
                self._plan(tensor, kind, elements, count, None, per)
                return
            matrix = turned(tensor, parts)
            if matrix is not None:
                turn = self._turn(kind, tensor, matrix)
                self._whole(Line(row, elements, count), kind, self._turned(tensor.data_ptr(), turn), None, per)
                self._plan(tensor, kind, elements, count, None, per, turn)
                return
            rows = in_rows(tensor, parts, per) if per else None
            shape = collapsed(tensor, parts) if rows is None else rows
            if shape is not None:
                per = per if rows is not None else 0
                self._whole(Line(row, elements, count), kind, tensor, shape, per)
                self._plan(tensor, kind, elements, count, shape, per)
                return
        begin = 0
        for chunk in flat_chunks(tensor, COPIED):
            end = begin + chunk.numel() * parts
            self._part(Line(row, elements, count), kind, chunk, begin, end, begin, None, per)
            begin = end

    def _plan(
        self,
        tensor: Tensor,
        kind: Kind,
        elements: int,
        count: int,
        shape: list[int] | None,
        per: int,
        turn: Turn | None = None,
    ) -> None:
        """Keep the launch for the next content of this dtype and size, or of this shape and strides."""
        if count > MOST_PROGRAMS * MOST_TILES * TILE or tensor.data_ptr() & 15:
            return
        tiles = -(-count // (TILE * per if per else TILE))
        code, values = self.tables.code(kind)
        *where, dims = [*FLAT, 1] if shape is None else shape
        head = *(part.data_ptr() for part in self._parts(per)), values.data_ptr(), count, 0
        tail = 0, tiles, *where, code, kind.size, per, dims, self.tables.packed[per], self.tables.early
        start = self._starter(kind, per, dims, aligned=True)
        programs = programs_for(tiles, self.tables.at_once[per])
        before = programs, 1, 1, self.stream, *start.fixed
        flat = shape is None and turn is None
        packed = None
        if self.start is not None and start.direct is not None and self.tables.direct and turn is None:
            arguments, sizes = (0, *head, 0, 0, 0, tiles, *where), (elements, count)
            packed = start.direct.packed(self.used, programs, self.stream, sizes, arguments, len(head) + 1)
        plan = Plan(packed, start.call, before, head, tail, programs, elements, count, kind, per, turn, flat)
        if tensor.is_contiguous():
            self.plans[tensor.dtype, elements] = plan
        elif len(self.spread) < _SPREAD:
            self.spread[tensor.dtype, tensor.shape, tensor.stride()] = plan

    def _whole(self, line: Line, kind: Kind, tensor: Tensor, shape: list[int] | None, per: int) -> None:
        most = MOST_PROGRAMS * MOST_TILES * TILE
        for first in range(0, line.real, most):  # one launch, except for the very largest
            self._part(line, kind, tensor, first, min(first + most, line.real), 0, shape, per)

    def _part(
        self,
        line: Line,
        kind: Kind,
        data: Tensor,
        first: int,
        end: int,
        begin: int,
        shape: list[int] | None,
        per: int,
    ) -> None:
        """Measure the elements [first, end) of a content, of which `data` holds those from `begin` on."""
        tile = TILE * per if per else TILE
        low, high = first // tile, -(-end // tile)
        programs = programs_for(high - low, self.tables.at_once[per])
        used = self._room(programs)
        self._launch(
            kind,
            per,
            1 if shape is None else shape[-1],
            data,
            programs,
            (end, begin, used.lines, used.records, low, high, *(FLAT if shape is None else shape[:-1])),
        )
        self._use(programs, line)

    def _make_room(self, lines: int) -> None:
        self._join()
        used = self.used
        used.records = 0
        if used.lines + lines > LINES:
            self.full.append(FullLines(self.out[: used.lines * kernels.RECORD], self.about[: used.lines].copy()))
            self.out = self._lines()
            used.lines = self.joined = 0

    # --- launching

    def _parts(self, per: int) -> tuple[Tensor, ...]:
        tables = self.tables
        return (
            self.ring,
            self.table,
            tables.facts[per or 1],
            tables.places,
            tables.blocks,
            tables.spans,
            tables.chunks,
            tables.rows,
        )

    def _launch(self, kind: Kind, per: int, dims: int, data: Tensor, programs: int, numbers: tuple[int, ...]) -> None:
        address = data.data_ptr()
        code, values = self.tables.code(kind)
        self._starter(kind, per, dims, aligned=address % 16 == 0)(
            programs,
            self.stream,
            address,
            *(part.data_ptr() for part in self._parts(per)),
            values.data_ptr(),
            *numbers,
            code,
            kind.size,
            per,
            dims,
            self.tables.packed[per],
            self.tables.early,
        )

    def _launch_many(self, kind: Kind, per: int, table: NDArray[np.int64]) -> None:
        compiled, (code, values) = self.tables.compiled, self.tables.code(kind)
        with torch.cuda.stream(self.queue):
            host = torch.empty(table.shape, dtype=torch.int64, pin_memory=True)
            host.numpy()[:] = table
            jobs = host.to(self.tables.device, non_blocking=True)  # its memory is this stream's: not reused too early
        key = "many", kind.name, per
        if key not in compiled:
            warm = kernels.measure_many.warmup(
                jobs,
                *self._parts(per),
                values,
                code,
                kind.size,
                per,
                self.tables.packed[per],
                grid=(1,),
                num_warps=TUNING[per].warps,
                maxnreg=TUNING[per].registers,
            )
            compiled[key] = launch_of(warm)
        compiled[key](
            len(table),
            self.stream,
            jobs.data_ptr(),
            *(part.data_ptr() for part in self._parts(per)),
            values.data_ptr(),
            code,
            kind.size,
            per,
            self.tables.packed[per],
        )

    def _turn(self, kind: Kind, tensor: Tensor, matrix: list[int]) -> Turn:
        """Return the launch that makes a contiguous copy of transposed matrices."""
        compiled = self.tables.compiled
        planes, rows, columns, stride, _, plane1, plane2 = matrix
        even = 16 // kind.size  # elements to 16 bytes
        if tensor.data_ptr() % 16 or any(number % even for number in (stride, plane1, plane2)):
            even = 1
        key = "transposed", kind.size, even
        if key not in compiled:
            compiled[key] = self._compile_transposed(kind, even)
        squares = -(-rows // transposing.SQUARE) * -(-columns // transposing.SQUARE)
        return Turn(compiled[key], planes * squares, tensor.numel() * kind.size, (*matrix[1:], even))

    def _turned(self, address: int, turn: Turn) -> Tensor:
        """Launch the copy; return the memory of this stream that it will lie in."""
        straight = self.straight
        if straight is None or straight.numel() < turn.size:
            straight = torch.empty(turn.size, dtype=torch.uint8, device=self.tables.device)
            if type(straight) is not Tensor:
                raise TypeError("a mode of the job's makes tensors that have no memory")
            if turn.size <= _KEPT:
                self.straight = straight
        turn.start(turn.programs, self.stream, address, straight.data_ptr(), *turn.tail)
        return straight

    def _compile_transposed(self, kind: Kind, even: int) -> Launch:
        stand_in = torch.empty(16, dtype=_BITS[kind.size], device=self.tables.device)
        return launch_of(transposing.transposed.warmup(stand_in, stand_in, *([1] * 6), even, grid=(1,), num_warps=8))

    def _starter(self, kind: Kind, per: int, dims: int, *, aligned: bool) -> Launch:
        compiled = self.tables.compiled
        key = kind.name, per, dims, aligned
        start = compiled.get(key)
        if start is None:
            start = compiled[key] = self._compile(kind, per, dims, aligned)
        return start

    def _compile(self, kind: Kind, per: int, dims: int, aligned: bool) -> Launch:
        code, values = self.tables.code(kind)
        stand_in = torch.empty(64, dtype=_BITS[4 if per else kind.size], device=self.tables.device)
        if not aligned:
            stand_in = stand_in[1:]
        compiled = kernels.measure.warmup(
            stand_in,
            *self._parts(per),
            values,
            *([1] * 15),
            code,
            kind.size,
            per,
            dims,
            self.tables.packed[per],
            self.tables.early,
            grid=(1,),
            num_warps=TUNING[per].warps,
            maxnreg=TUNING[per].registers,
            **({"launch_pdl": True} if self.tables.early else {}),
        )
        return launch_of(compiled)

    # --- handing over

    def _join(self) -> None:
        """Join the records of the lines that are new since the last time."""
        new = self.used.lines - self.joined
        if new:
            self._launch_reduce(new, self.joined)
            self.joined += new

    def _launch_reduce(self, lines: int, first: int) -> None:
        compiled = self.tables.compiled
        if "reduce" not in compiled:
            warm = kernels.reduce.warmup(self.ring, self.table, self.out, grid=(1,), num_warps=16)
            compiled["reduce"] = launch_of(warm)
        # The addresses tell where the new lines begin (both are multiples of 16 bytes), not a number.
        table, out = self.table.data_ptr() + 16 * first, self.out.data_ptr() + 8 * kernels.RECORD * first
        compiled["reduce"](lines, self.stream, self.ring.data_ptr(), table, out)

    def begin(self) -> Finish:
        """Start the copy to the host; return a function that waits for it and writes the rows. The stream goes on meanwhile."""
        used = self.used
        if not (used.lines or self.full):
            return _nothing
        self._join()
        out = [full.out for full in self.full]
        about = np.concatenate([*(full.about for full in self.full), self.about[: used.lines]])
        arrive = self._to_host([*out, self.out[: used.lines * kernels.RECORD]])
        self.forget()

        def finish(rows: Rows) -> None:
            write_lines(arrive().reshape(-1, kernels.RECORD), about, rows)

        return finish

    def forget(self) -> None:
        """Empty the buffers."""
        self.used.lines = self.used.records = self.joined = 0
        self.full = []

    def _to_host(self, buffers: list[Tensor]) -> Callable[[], NDArray[np.int64]]:
        """Copy the lines on a stream of our own, so that the job's need not wait for the link; it gets a new buffer."""
        side = self.tables.side()
        side.wait_stream(self.queue)
        with torch.cuda.stream(side):
            joined = torch.cat(buffers) if len(buffers) > 1 else buffers[0]
            host = torch.empty(joined.shape, dtype=torch.int64, pin_memory=True)
            host.copy_(joined, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
        for buffer in buffers:
            buffer.record_stream(side)  # its memory is not given away before the copy is done
        with torch.cuda.stream(self.queue):
            self.out = self._lines()

        def arrive() -> NDArray[np.int64]:
            event.synchronize()  # waits without the interpreter's lock
            return host.numpy()

        return arrive


def _nothing(rows: Rows) -> None:
    pass
