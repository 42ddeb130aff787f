"""How near the finite values of a run come to the edges of a dtype: what would overflow there, and what would vanish.

Whether a tensor overflows follows exactly from its smallest and largest element, which every fingerprint has. Shares of
elements need the elements: they are given where the data was kept, and are unknown otherwise.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from numscope.core.errors import SettingsError
from numscope.core.names import parse_call
from numscope.store.reader import Run

_CHUNK = 1 << 22


@dataclass(frozen=True)
class Format:
    """A floating-point format: its largest number, its smallest normal and its smallest number above zero."""

    name: str
    largest: float
    normal: float
    least: float


_E4M3 = Format("float8_e4m3fn", 448.0, 2.0**-6, 2.0**-9)
FORMATS = {
    "fp32": Format("float32", float(np.finfo(np.float32).max), 2.0**-126, 2.0**-149),
    "bf16": Format("bfloat16", 3.3895313892515355e38, 2.0**-126, 2.0**-133),
    "fp16": Format("float16", 65504.0, 2.0**-14, 2.0**-24),
    "fp8": _E4M3,
    "fp8_e4m3": _E4M3,
    "fp8_e5m2": Format("float8_e5m2", 57344.0, 2.0**-14, 2.0**-16),
}
_BY_NAME = {form.name: form for form in FORMATS.values()}


@dataclass(frozen=True)
class Margin:
    """A tensor against the edges of a format; a share is None where the data was not kept."""

    call: str
    slot: str
    step: int
    rank: int
    dtype: str
    largest: float
    over: float  # the largest element over the format's largest number: above 1 it overflows
    overflowing: float | None = None
    near: float | None = None  # within 2 bits of the largest number
    subnormal: float | None = None
    flushed: float | None = None  # not zero, and zero in the format

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return asdict(self)


def format_of(name: str) -> Format:
    """Return a format by the name users know, or by its dtype's."""
    found = FORMATS.get(name) or _BY_NAME.get(name)
    if found is None:
        raise SettingsError(f"--headroom {name}: give one of {', '.join(FORMATS)}")
    return found


def headroom(run: Run, target: Format, steps: list[int] | None = None) -> list[Margin]:
    """Return the outputs that cannot be held in a format, or come within 2 bits of its edge, worst first."""
    worst: dict[tuple[str, str], Margin] = {}
    for margin in _margins(run, lambda dtype: target, steps):
        key = (margin.call, margin.slot)
        known = worst.get(key)
        lost = (margin.flushed or 0.0) > 0.01
        if (margin.over >= 0.25 or lost) and (known is None or known.over < margin.over):
            worst[key] = margin
    return sorted(worst.values(), key=lambda margin: -margin.over)


def near_misses(run: Run) -> list[Margin]:
    """Return the outputs that come within 2 bits of their own dtype's largest number."""
    found = [margin for margin in _margins(run, _BY_NAME.get, None) if margin.over >= 0.25]
    return sorted(found, key=lambda margin: -margin.over)


def operators(run: Run) -> dict[str, dict[str, int]]:
    """Return how many forward calls of each operator gave each dtype: dtype → operator → calls."""
    found: dict[str, Counter[str]] = {}
    for rank in run.ranks:
        for step in run.rank_steps(rank):
            tables = run.step_tables(step, rank)
            dtypes = dict(zip(tables.tensors["tensor"].to_pylist(), tables.tensors["dtype"].to_pylist()))
            names = {
                order: name
                for order, name, kind, phase in _rows(tables.calls, ["order", "name", "kind", "phase"])
                if kind in ("api", "aten", "collective") and phase == "forward"
            }
            for order, slot, tensor in _rows(tables.slots, ["call", "slot", "tensor"]):
                if slot == "output.0" and order in names and tensor in dtypes:
                    parsed = parse_call(names[order])
                    head = f"{parsed.prefix}.{parsed.op}" if parsed is not None else names[order]
                    found.setdefault(dtypes[tensor] or "unknown", Counter())[head] += 1
    return {dtype: dict(counter.most_common()) for dtype, counter in sorted(found.items())}


def _margins(run: Run, target: Any, steps: list[int] | None) -> Any:
    columns = ["tensor", "dtype", "shape", "min", "max", "shard", "key", "sampled"]
    for rank in run.ranks:
        for step in run.rank_steps(rank):
            if steps is not None and step not in steps:
                continue
            tables = run.step_tables(step, rank)
            rows = {row[0]: row for row in _rows(tables.tensors, columns)}
            names = dict(zip(tables.calls["order"].to_pylist(), tables.calls["name"].to_pylist()))
            seen: set[int] = set()
            for order, slot, tensor in _rows(tables.slots, ["call", "slot", "tensor"]):
                row = rows.get(tensor)
                if row is None or tensor in seen or order not in names or not slot.startswith("output"):
                    continue
                _, dtype, shape, low, high, shard, key, sampled = row
                form = target(dtype)
                if form is None or low is None or high is None or not _is_float(dtype):
                    continue
                seen.add(tensor)
                largest = max(abs(low), abs(high))
                shares: tuple[float | None, ...] = (None, None, None, None)
                if shard is not None and not sampled:
                    shares = _shares(run.array(rank, shard, key, dtype, tuple(shape)), form)
                elif largest <= form.largest:
                    shares = (0.0, 0.0 if largest < form.largest / 4 else None, None, None)
                yield Margin(names[order], slot, step, rank, dtype, largest, largest / form.largest, *shares)


def _shares(array: Any, form: Format) -> tuple[float, float, float, float]:
    """Return the shares of the finite elements that overflow, come near, are subnormal, and vanish."""
    flat = array.reshape(-1)
    counts = np.zeros(4, np.int64)
    total = 0
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK]
        size = np.abs(part.astype(np.complex128) if part.dtype.kind == "c" else part.astype(np.float64))
        size = size[np.isfinite(size)]
        total += size.size
        counts += [
            np.count_nonzero(size > form.largest),
            np.count_nonzero((size >= form.largest / 4) & (size <= form.largest)),
            np.count_nonzero((size > form.least / 2) & (size < form.normal)),
            np.count_nonzero((size > 0) & (size <= form.least / 2)),
        ]
    shares = counts / max(total, 1)
    return float(shares[0]), float(shares[1]), float(shares[2]), float(shares[3])


def _is_float(dtype: str | None) -> bool:
    return dtype is not None and dtype.startswith(("float", "bfloat", "complex"))


def _rows(table: Any, columns: list[str]) -> Any:
    return zip(*(table[name].to_pylist() for name in columns))
