"""The recorder: column buffers of the step that is running, handed to the writer in batches.

The hot path appends integers. Strings, shapes and arguments are interned: a number stands for each, and columns of text
are made by the writer's thread from the numbers. Nothing here knows a framework.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from numscope.capture.collector import make_room
from numscope.capture.recording.columns import AGAIN, Lasting, Tables
from numscope.capture.recording.interned import Shapes, Strings
from numscope.capture.recording.rows import (
    SLOT_WIDTH,
    CallRow,
    MeasuredAt,
    SlotRow,
    TensorRow,
    add_tensor,
    highest_tensor,
)
from numscope.capture.sites import Sites
from numscope.core.errors import CaptureError
from numscope.fingerprint.columns import Batch as FingerprintBatch
from numscope.fingerprint.columns import Fingerprints
from numscope.store.rundir import CLOSED
from numscope.store.writer import Batch, OnDevice, RunWriter, Sample, View

FLUSH_SLOTS = 8_000
UNWANTED = -3  # in the place of a tensor's number: this slot is not recorded
FLUSH_BYTES = 64 << 20
_OBJECTS = 4  # of Python's for a tensor of the running step


_NOWHERE = MeasuredAt(-1, -1)
_measured_at = partial(tuple.__new__, MeasuredAt)  # in a third of the time


class Form(Protocol):
    """The properties that tensors of one kind share, and where such tensors were measured."""

    dtype: int
    shape: int
    device: int
    rows: dict[int, MeasuredAt]  # by where one lies


class NewTensor(NamedTuple):
    """A tensor that was numbered, and is to be recorded with others."""

    number: int
    tensor: Any
    form: Form
    place: int  # -1 where it can't be trusted
    lasting: Lasting | None  # its fingerprint, where an earlier step has measured it
    address: int  # of its data


class Progress(NamedTuple):
    """How far a recorder has come; two that are equal say that nothing was recorded in between."""

    batch: int  # how often it has handed over
    rows: int  # numbers that are buffered
    again: int  # tensors among them that an earlier step has measured


class Recorder:
    """Buffers calls, slots and tensors, and hands them over as batches."""

    # Python is quick at the attributes and methods of an object only if that has slots, or less than 30 attributes.
    __slots__ = (
        "__weakref__",
        "_add_alike",
        "_again",
        "_batch",
        "_data",
        "_data_bytes",
        "_due",
        "_flushed",
        "_handed_over",
        "_handing_over",
        "_lasting",
        "_lock",
        "_measure",
        "_open_writer",
        "_parts",
        "_past_texts",
        "_tables",
        "_tensors",
        "_to_numpy",
        "_writer",
        "call_rows",
        "checks",
        "direct",
        "epoch",
        "faults",
        "full",
        "orders",
        "shape",
        "shares",
        "sites",
        "skipped",
        "slot_rows",
        "step",
        "strings",
        "takes_many",
        "tensor_numbers",
    )

    stores = True  # what is kept goes to a writer: it may be a view of what is kept already, and still on its device

    def __init__(
        self,
        open_writer: Callable[[], RunWriter],
        measure: FingerprintBatch | None,
        to_numpy: Callable[[Any], np.ndarray[Any, Any] | OnDevice],
        strings: Strings | None = None,
        sites: Sites | None = None,
    ) -> None:
        self.strings = Strings() if strings is None else strings
        self.sites = Sites() if sites is None else sites
        self.step = 0
        self.epoch = 0  # grows with every step, so that numbering starts anew without touching each series
        self.skipped: dict[str, int] = {}
        self.faults = 0  # of our own, among those that were skipped
        self._open_writer = open_writer
        self._writer: RunWriter | None = None
        self._measure = measure
        self._to_numpy = to_numpy
        self._lock = threading.RLock()
        self._handing_over = threading.RLock()  # batches come to the writer in the order of what is in them
        self.orders = itertools.count()
        self.tensor_numbers = itertools.count()
        # Rows one after the other: numbers only, nothing that Python's collector would have to walk.
        # The hot path adds to them itself where `direct` says so; every flush puts new lists in their place.
        self.call_rows: list[int] = []  # see `CallRow`
        self.slot_rows: list[int] = []  # see `SlotRow`
        self.full = SLOT_WIDTH * FLUSH_SLOTS  # numbers in the list of slots
        # Takes the rows of the table `checks` since the last time, where calls are verified; step by step.
        self.checks: Callable[[], Mapping[str, Any]] | None = None
        self._due = False  # what is buffered has lain there for too long
        self._tensors: list[int] = []  # see `TensorRow`
        self._batch = 0  # of fingerprints; their rows are numbered anew in each
        self._again: list[Lasting] = []  # of tensors that were measured in an earlier step
        self._lasting: list[tuple[int, Lasting]] = []  # tensor number → what a later step may refer to
        self._data: dict[int, Any] = {}
        self._data_bytes = 0
        shapes = Shapes()
        self.shape = shapes.id
        self._tables = Tables(self.strings, shapes)
        kind = type(self)
        self.direct = kind.slot is Recorder.slot and kind.call is Recorder.call
        self._add_alike: Callable[[Any, Form, int], int] | None = getattr(measure, "add_alike", None)
        self.shares = (
            self._add_alike is not None and kind.tensor is Recorder.tensor
        )  # one fingerprint for several tensors
        self.takes_many = kind.tensor is Recorder.tensor and (measure is None or self.shares)
        self._flushed = False  # a part of this step was handed over
        self._parts = 0  # how many were
        self._handed_over = 0  # tensors with a smaller number are
        self._past_texts = 0  # of calls, that no row has any more once the next batch is written

    # What the hot path calls ------------------------------------------------------------------------------------

    def order(self) -> int:
        """Return the place of a call that begins now."""
        return next(self.orders)

    def call(self, row: CallRow) -> None:
        """Record a call."""
        self.call_rows.extend(row)

    def slot(self, row: SlotRow) -> None:
        """Record that a call shows a tensor in a slot."""
        self.slot_rows.extend(row)

    def slots(self, rows: Iterable[SlotRow]) -> None:
        """Record slots; one that is not wanted is left out."""
        for row in rows:
            if row.tensor != UNWANTED:
                self.slot(row)

    def tensor(self, tensor: Any, dtype: int, shape: int, device: int, placement: int = -1) -> int:
        """Measure a tensor not seen before, and return its number; dtype, shape and device are numbers themselves."""
        number = next(self.tensor_numbers)
        if self._measure is None:
            add_tensor(self._tensors, number, dtype, shape, device, placement=placement)
            return number
        with self._lock:  # the row is one of the batch that the next flush ends
            row = self._measure.add(tensor)
            add_tensor(self._tensors, number, dtype, shape, device, row, placement)
        return number

    def view(self, form: Form, place: int, tensor: Any, address: int, placement: int) -> int:
        """Number a tensor not seen before; measure it unless one of the same elements in the same order was.

        `place` says where it lies, or is -1 where that can't be trusted; `address` where its data are; for `placement` see
        `tensor`. To be asked only where `shares` says so.
        """
        rows = form.rows
        lock, add = self._lock, self._add_alike
        lock.acquire()
        try:
            number = next(self.tensor_numbers)
            batch, row = rows.get(place, _NOWHERE)
            if batch != self._batch:
                row = add(tensor, form, address)  # type: ignore[misc]
                if place >= 0:
                    rows[place] = _measured_at((self._batch, row))
            add_tensor(self._tensors, number, form.dtype, form.shape, form.device, row, placement)
        finally:
            lock.release()
        return number

    def again(self, lasting: Lasting, dtype: int, shape: int, device: int) -> int:
        """Number a tensor that an earlier step has measured and that is still the same."""
        number = next(self.tensor_numbers)
        with self._lock:
            row = AGAIN - len(self._again)
            self._again.append(lasting)
            add_tensor(self._tensors, number, dtype, shape, device, row)
        return number

    def many(self, new: Sequence[NewTensor]) -> None:
        """Record many tensors that were not seen before, as `view` and `again` do; only where `takes_many` says so."""
        with self._lock:
            rows, batch, again = self._tensors, self._batch, self._again
            row = -1
            for number, tensor, form, place, lasting, address in new:
                if lasting is not None:
                    row = AGAIN - len(again)
                    again.append(lasting)
                elif self._add_alike is not None:
                    measured, row = form.rows.get(place, _NOWHERE)
                    if measured != batch:
                        row = self._add_alike(tensor, form, address)
                        if place >= 0:
                            form.rows[place] = _measured_at((batch, row))
                add_tensor(rows, number, form.dtype, form.shape, form.device, row)

    def lasting(self, numbers: Sequence[int]) -> list[Lasting | None]:
        """Return what a later step can refer to for the fingerprints of tensors, or None where it is too late for that."""
        with self._lock:
            first = self._handed_over
            found = [Lasting() if number >= first else None for number in numbers]
            self._lasting.extend(itertools.compress(zip(numbers, found), found))  # type: ignore[arg-type]
            return found

    @contextmanager
    def together(self) -> Iterator[None]:
        """Measure the tensors recorded inside at its end, all at once where their device gains by it."""
        gather = getattr(self._measure, "together", None)
        with self._lock, gather() if gather is not None else nullcontext():
            yield

    def keep(self, number: int, data: Any, size: int, sampled: bool = False) -> bool:
        """Keep a tensor's data, or a sample of it; `data` is the recorder's own copy.

        Return False where it is too late for that: another thread has handed over the tensor's row since the caller asked.
        """
        with self._lock:
            if self.is_handed_over(number):
                return False
            self._data[number] = (data, sampled)
            self._data_bytes += size
            return True

    def keep_view(self, number: int, view: View) -> bool:
        """Keep a tensor that shows elements of another, kept one of this step; return False where it is too late."""
        with self._lock:
            if self.is_handed_over(number):
                return False
            self._data[number] = (view, False)
            return True

    @property
    def measures(self) -> bool:
        """Tell whether tensors have fingerprints."""
        return self._measure is not None

    def is_handed_over(self, number: int) -> bool:
        """Tell whether a tensor's row is with the writer already."""
        return number < self._handed_over

    def skip(self, reason: str, fault: bool = False) -> None:
        """Count something that could not be recorded; `fault` says that it is our own fault."""
        self.faults += fault
        self.skipped[reason] = self.skipped.get(reason, 0) + 1

    def is_full(self, times: int = 1) -> bool:
        """Tell whether a flush is due; there may be so many times the usual number of slots."""
        if self._due and times == 1:
            return True
        return len(self.slot_rows) > times * SLOT_WIDTH * FLUSH_SLOTS or self._data_bytes > FLUSH_BYTES

    # Handing over -----------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Hand over what is buffered."""
        with self._handing_over:
            self._flush()

    def progress(self) -> Progress:
        """Return how far recording has come."""
        rows = len(self.call_rows) + len(self.slot_rows) + len(self._tensors) + len(self._data)
        return Progress(self._batch, rows, len(self._again))

    def due(self) -> None:
        """Have the next call's end hand over what is buffered."""
        self._due, self.full = True, -1

    @property
    def is_on_host(self) -> bool:
        """Tell whether any thread may hand over: a device is asked by the thread that works with it."""
        return self._measure is None or bool(getattr(self._measure, "is_on_host", False))

    def flush_unmoved(self, progress: Progress) -> None:
        """Hand over what is buffered, from another thread than the job's, unless the job has gone on since."""
        with self._handing_over:
            with self._lock:  # held while a tensor is measured
                moved = self.progress() != progress
            if not moved:
                self._flush()

    def _flush(self) -> None:
        with self._lock:
            self._due, self.full = False, SLOT_WIDTH * FLUSH_SLOTS
            calls, self.call_rows = self.call_rows, []
            slots, self.slot_rows = self.slot_rows, []
            tensors, self._tensors = self._tensors, []
            self._batch += 1
            again, self._again = self._again, []
            lasting, self._lasting = self._lasting, []
            data, self._data = self._data, {}
            if tensors:
                self._handed_over = 1 + highest_tensor(tensors)
                make_room(_OBJECTS * self._handed_over)
            prints = _end(self._measure) if self._measure is not None and tensors else None
            # A number is an object and a place in a list; a fingerprint's row is 592 bytes, before it becomes columns.
            size = 24 * (len(calls) + len(slots) + len(tensors))
            size += 700 * len(tensors) // len(TensorRow._fields) if prints else 0
            size += self._data_bytes
            self._data_bytes = 0
        stacks = self.sites.take_new()
        checks = self.checks() if self.checks is not None else {}
        if not (calls or slots or tensors or stacks["stack"] or checks):
            return
        self._flushed = True
        step = self.step
        arrays: dict[int, Any] = {
            number: value
            if isinstance(value, View)
            else Sample(self._to_numpy(value))
            if sampled
            else self._to_numpy(value)
            for number, (value, sampled) in data.items()
        }

        tables, part, past = self._tables, self._parts, self._past_texts
        self._parts += 1

        def batch() -> Batch:
            self.strings.forget(past)  # batches are made in order
            return Batch(
                calls=tables.calls(step, part, calls),
                slots=tables.slots(step, part, slots),
                tensors=tables.tensors(step, part, tensors, prints() if prints is not None else None, again, lasting),
                stacks=stacks,
                data=arrays,
                checks=_of_step(step, checks),
            )

        # Columns are made, and a device is waited for, in the writer's thread: the job goes on.
        self.writer.write(batch, size)

    def end_step(self) -> None:
        """Hand over the rest of the step, which is then complete; more of it may still follow."""
        self.flush()
        self.writer.end_step(self.step, self.skipped, self.faults)
        self.skipped, self.faults = {}, 0
        self._flushed = False

    def begin_step(self, step: int) -> None:
        """Start numbering for a step."""
        self.step = step
        self.epoch += 1
        self._past_texts = self.strings.begin_step()
        self.skipped, self.faults = {}, 0
        self.orders = itertools.count()
        self.tensor_numbers = itertools.count()
        self._handed_over = 0
        self._parts = 0

    @property
    def has_content(self) -> bool:
        """Tell whether anything was recorded since the step began or was last ended."""
        return self._flushed or bool(self.call_rows or self.skipped)

    @property
    def opened(self) -> bool:
        """Tell whether anything was handed over."""
        return self._writer is not None

    @property
    def writer(self) -> RunWriter:
        """The writer, opened when first needed: by then the job knows its rank."""
        if self._writer is None:
            self._writer = self._open_writer()
        return self._writer

    def settle(self, end: str = CLOSED) -> None:
        """Wait until all is written, and how the run ended, if it does here."""
        self.writer.settle(end)

    def close(self, end: str = CLOSED) -> None:
        """Close the run; what it was opened for, and its buffers, are let go with it, not when Python's collector comes."""
        self.writer.close(end)
        self._open_writer = _closed
        self._measure = self._add_alike = None


def _closed() -> RunWriter:
    raise CaptureError("this run is closed: make another with ns.capture")


def _of_step(step: int, checks: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"step": [step] * len(checks["place"]), **checks} if checks else checks


def _end(measure: FingerprintBatch) -> Callable[[], Fingerprints]:
    """End a batch of fingerprints; return what waits for them, in any thread."""
    flush = getattr(measure, "flush", None)
    if flush is not None:
        return flush()  # type: ignore[no-any-return]
    prints = measure.collect()
    return lambda: prints
