"""The fingerprint in plain torch operations, for devices without Triton; nothing is copied back before `finish`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from numscope.fingerprint import constants
from numscope.fingerprint.columns import Fingerprints
from numscope.fingerprint.constants import BUCKETS, CHUNK, ROW, SKETCH, SPAN
from numscope.fingerprint.rows import Rows
from numscope.fingerprint.torch_content import KIND_OF, flat_chunks, raw_bytes

Tensor = torch.Tensor

_DEEP = 16  # chunks at a time: at most 8 MB per temporary
_NAN, _POSINF, _NEGINF, _ZERO, _HASH = range(5)  # the columns of counts
_COUNTS = _HASH + 1
_MIN, _MAX, _SUM, _L2 = range(4)  # the columns of sums
_SUMS = _L2 + 1


class DeviceBatch:
    """The pending results of one device, in buffers on that device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # Apple's GPUs have no float64: there sums are float32, over chunks, and right to about 1e-6
        self.real = torch.float32 if device.type == "mps" else torch.float64
        self.rows: list[int] = []
        self.elements: list[tuple[int, int]] = []
        self.counts: list[Tensor] = []
        self.sums: list[Tensor] = []
        self.sketches: list[Tensor] = []
        self._factors = torch.from_numpy(constants.factors().copy()).to(device)
        self._signs = torch.from_numpy(constants.sign_table().copy()).to(device=device, dtype=self.real)
        self._places = torch.arange(CHUNK, device=device)
        self._known = 0
        self._know(64)

    def _know(self, chunks: int) -> None:
        """Have the numbers of the first chunks and spans on the device; doubles, so that it happens rarely."""
        if chunks <= self._known:
            return
        self._known = max(chunks, 2 * self._known)
        index = np.arange(self._known)
        bits = (constants.flips(index)[:, None] >> np.arange(ROW, dtype=np.uint64)) & np.uint64(1)
        self._span_factors = torch.from_numpy(constants.span_factors(index)).to(self.device)
        self._starts = torch.from_numpy(constants.rolls(index) * ROW).to(self.device)
        self._flips = torch.from_numpy(1.0 - 2.0 * bits.astype(np.float32)).to(device=self.device, dtype=self.real)

    def add(self, row: int, tensor: Tensor) -> None:
        """Enqueue the operations that measure the tensor."""
        kind, parts = KIND_OF[tensor.dtype]
        elements = tensor.numel() * parts
        if elements == 0:
            return
        self._know(-(-elements * max(kind.size, 4) // (4 * SPAN)) + _DEEP * CHUNK // SPAN)
        counts = torch.zeros(_COUNTS, dtype=torch.int64, device=self.device)
        sums: Tensor | None = None
        sketch = torch.zeros(SKETCH, dtype=self.real, device=self.device)
        for number, chunk in enumerate(flat_chunks(tensor, _DEEP * CHUNK // parts)):
            counts[_HASH] += self._hash(raw_bytes(chunk), number * (_DEEP * CHUNK * kind.size // 4))
            value = self._value(chunk, tensor.dtype)
            part = self._take(value, number * _DEEP, counts, sketch)
            sums = part if sums is None else _joined(sums, part)
        assert sums is not None
        self.rows.append(row)
        self.elements.append((tensor.numel(), elements))
        self.counts.append(counts)
        self.sums.append(sums)
        self.sketches.append(sketch)

    def _value(self, chunk: Tensor, dtype: torch.dtype) -> Tensor:
        kind, parts = KIND_OF[dtype]
        if dtype.is_complex:
            chunk = torch.view_as_real(chunk).view(-1)
        elif parts > 1 or kind.name == "uint8":
            chunk = raw_bytes(chunk)
        elif chunk.dtype.itemsize == 1 and chunk.dtype.is_floating_point:
            chunk = chunk.to(torch.float32)  # the 8-bit floats convert to nothing else on some devices
        return chunk.to(self.real)

    def _take(self, value: Tensor, first: int, counts: Tensor, sketch: Tensor) -> Tensor:
        """Add the counts and the sketch of these elements; return their min, max, sum and l2."""
        finite = torch.isfinite(value)
        counts[_NAN] += torch.isnan(value).sum()
        counts[_POSINF] += (value == torch.inf).sum()
        counts[_NEGINF] += (value == -torch.inf).sum()
        counts[_ZERO] += (value == 0).sum()
        low = torch.where(finite, value, torch.inf).amin()
        high = torch.where(finite, value, -torch.inf).amax()
        clean = torch.where(finite, value, 0.0)
        size = clean.abs().amax()
        # two factors: the one power of two that lifts the smallest element overflows
        exponent = torch.where(size > 0, torch.frexp(size).exponent, 0)
        half = torch.div(exponent, 2, rounding_mode="floor")
        near, far = _power(-half, self.real), _power(half - exponent, self.real)
        scaled = clean * near * far
        root = torch.linalg.vector_norm(scaled) / near / far
        sketch[:BUCKETS] += self._buckets(scaled, first) / near / far
        return torch.stack([low, high, clean.sum(), root])

    def _buckets(self, value: Tensor, first: int) -> Tensor:
        count = value.numel()
        chunks = -(-count // CHUNK)
        start = self._starts[first : first + chunks, None]
        sign = self._signs[start + self._places].view(chunks, -1, ROW) * self._flips[first : first + chunks, None, :]
        padded = torch.nn.functional.pad(value * sign.view(-1)[:count], (0, -count % BUCKETS))
        return torch.roll(padded.view(-1, BUCKETS).sum(0), first * CHUNK % BUCKETS)

    def _hash(self, raw: Tensor, first: int) -> Tensor:
        if raw.numel() % 4:
            raw = torch.nn.functional.pad(raw, (0, -raw.numel() % 4))
        if raw.storage_offset() % 4:
            raw = raw.clone()
        word = raw.view(torch.int32).to(torch.int64)
        span, whole = first // SPAN, word.numel() // SPAN * SPAN
        rest = (word[whole:] * self._factors[: word.numel() - whole]).sum()
        total = rest * self._span_factors[span + whole // SPAN]
        if whole:
            part = (word[:whole].view(-1, SPAN) * self._factors).sum(1)
            total = total + (part * self._span_factors[span : span + whole // SPAN]).sum()
        return total

    def begin(self) -> Callable[[Rows], None]:
        """Take the pending results; return a function that copies them to the host and writes their rows."""
        if not self.rows:
            return lambda rows: None
        # int64 and float64 travel in one tensor of bytes: one copy, one synchronisation
        parts = [torch.stack(self.counts), torch.stack(self.sums), torch.stack(self.sketches)]
        joined = torch.cat([part.view(torch.uint8).view(len(self.rows), -1) for part in parts], 1)
        numbers, elements = np.array(self.rows), np.array(self.elements, np.int64)
        for pending in (self.rows, self.elements, self.counts, self.sums, self.sketches):
            pending.clear()
        if self.device.type != "cuda":  # another thread's copy need not come after this thread's work
            raw = joined.cpu().numpy()
            return lambda rows: self._write(raw, numbers, elements, rows)
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.device))

        def finish(rows: Rows) -> None:
            event.synchronize()
            self._write(joined.cpu().numpy(), numbers, elements, rows)

        return finish

    def _write(
        self, raw: NDArray[np.uint8], numbers: NDArray[np.int64], elements: NDArray[np.int64], rows: Rows
    ) -> None:
        real = np.float64 if self.real is torch.float64 else np.float32
        counts = np.ascontiguousarray(raw[:, : _COUNTS * 8]).view(np.int64)
        floats = np.ascontiguousarray(raw[:, _COUNTS * 8 :]).view(real).astype(np.float64)
        finite = elements[:, 1] - counts[:, : _NEGINF + 1].sum(1)
        with np.errstate(all="ignore"):
            mean = floats[:, _SUM] / finite
        none = finite == 0
        rows.set_many(
            numbers,
            Fingerprints(
                elements=elements[:, 0],
                nan=counts[:, _NAN],
                posinf=counts[:, _POSINF],
                neginf=counts[:, _NEGINF],
                zero=counts[:, _ZERO],
                min=np.where(none, np.nan, floats[:, _MIN]),
                max=np.where(none, np.nan, floats[:, _MAX]),
                mean=np.where(none, np.nan, mean),
                l2=floats[:, _L2],
                hash=counts[:, _HASH].view(np.uint64) if counts.shape[0] else np.empty(0, np.uint64),
                sketch=floats[:, _SUMS:],
            ),
        )


def _power(exponent: Tensor, real: torch.dtype) -> Tensor:
    return torch.exp2(exponent.to(real))


def _joined(sums: Tensor, part: Tensor) -> Tensor:
    return torch.stack(
        [
            torch.minimum(sums[_MIN], part[_MIN]),
            torch.maximum(sums[_MAX], part[_MAX]),
            sums[_SUM] + part[_SUM],
            torch.hypot(sums[_L2], part[_L2]),
        ]
    )
