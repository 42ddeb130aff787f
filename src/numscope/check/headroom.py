"""How near the finite values of a run come to the edges of a dtype: what would overflow there, and what would vanish.

Whether a tensor overflows follows exactly from its smallest and largest element, which every fingerprint has. Shares of
elements need the elements: they are given where the data was kept, and are unknown otherwise. A number overflows, is
subnormal or vanishes as it would after rounding to the nearest. Elements that are their own dtype's smallest number are
masks, and are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import numpy as np

from numscope.check.steps import rows_of
from numscope.core.dtypes import FLOATS, AnyArray, FloatFormat
from numscope.core.errors import SettingsError
from numscope.core.json_value import JsonObject
from numscope.core.names import parse_call
from numscope.store.reader import Run

_CHUNK = 1 << 22  # elements measured at a time

FORMATS = {  # by the names that users know
    "fp32": FLOATS["float32"],
    "bf16": FLOATS["bfloat16"],
    "fp16": FLOATS["float16"],
    "fp8": FLOATS["float8_e4m3fn"],
    "fp8_e4m3": FLOATS["float8_e4m3fn"],
    "fp8_e5m2": FLOATS["float8_e5m2"],
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
    over: float  # the largest element over the format's largest number
    overflows: bool = False
    overflowing: float | None = None
    near: float | None = None  # within 2 bits of the largest number
    subnormal: float | None = None
    flushed: float | None = None  # not zero, and zero in the format

    def to_dict(self) -> JsonObject:
        """Return the margin as JSON can hold it."""
        return asdict(self)


def format_of(name: str) -> FloatFormat:
    """Return a format by the name users know, or by its dtype's."""
    found = FORMATS.get(name) or _BY_NAME.get(name)
    if found is None:
        raise SettingsError(f"--headroom {name}: give one of {', '.join(FORMATS)}")
    return found


def headroom(run: Run, target: FloatFormat, steps: list[int] | None = None) -> list[Margin]:
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
        for step in run.written_steps(rank):
            tables = run.step_tables(step, rank)
            dtypes = dict(zip(tables.tensors["tensor"].to_pylist(), tables.tensors["dtype"].to_pylist()))
            forward = [
                (order, name, kind)
                for order, name, kind, phase in rows_of(tables.calls, ["order", "name", "kind", "phase"])
                if phase == "forward"
            ]
            # Where the calls inside modules were not recorded, the modules are the operators.
            inner = any(kind in ("api", "aten") for _, _, kind in forward)
            kinds = ("api", "aten", "collective") if inner else ("module", "collective")
            names = {order: name for order, name, kind in forward if kind in kinds}
            for order, slot, tensor in rows_of(tables.slots, ["call", "slot", "tensor"]):
                if slot == "output.0" and order in names and tensor in dtypes:
                    parsed = parse_call(names[order])
                    head = f"{parsed.prefix}.{parsed.op}" if parsed is not None else names[order]
                    found.setdefault(dtypes[tensor] or "unknown", Counter())[head] += 1
    return {dtype: dict(counter.most_common()) for dtype, counter in sorted(found.items())}


def _margins(run: Run, target: Callable[[str], FloatFormat | None], steps: list[int] | None) -> Iterator[Margin]:
    columns = ["tensor", "dtype", "shape", "min", "max", "zero", "elements", "shard", "key", "sampled"]
    for rank in run.ranks:
        for step in run.written_steps(rank):
            if steps is not None and step not in steps:
                continue
            tables = run.step_tables(step, rank)
            rows = {row[0]: row for row in rows_of(tables.tensors, columns)}
            names = dict(zip(tables.calls["order"].to_pylist(), tables.calls["name"].to_pylist()))
            seen: set[int] = set()
            for order, slot, tensor in rows_of(tables.slots, ["call", "slot", "tensor"]):
                row = rows.get(tensor)
                if row is None or tensor in seen or order not in names or not slot.startswith(("output", "parameters")):
                    continue
                _, dtype, shape, low, high, zero, elements, shard, key, sampled = row
                own, form = FLOATS.get(dtype), target(dtype)
                if own is None or form is None or low is None or high is None:
                    continue
                seen.add(tensor)
                mask = low if low == -own.largest else None
                largest = max(abs(low), abs(high)) if mask is None else 0.0 if high == mask else abs(high)
                shares: tuple[float | None, ...] = (None, None, None, None)
                kept = shard is not None and not sampled
                if kept:
                    array = run.array(rank, shard, key, dtype, tuple(shape))
                    shares = _shares(array, form, mask)
                overflows = bool(form.overflows(largest)) or bool(shares[0])
                if not kept and not overflows:
                    shares = (0.0, 0.0 if largest < form.largest / 4 else None, None, None)
                    if largest <= form.smallest / 2 and mask is None and zero is not None and elements:
                        shares = (0.0, 0.0, 0.0, 1 - zero / elements)  # every element is too small
                yield Margin(names[order], slot, step, rank, dtype, largest, largest / form.largest, overflows, *shares)


def _shares(array: AnyArray, form: FloatFormat, mask: float | None = None) -> tuple[float, float, float, float]:
    """Return the shares of the finite elements that overflow, come near, are subnormal, and vanish."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.dtype.kind == "c":
        flat = flat.view(flat.real.dtype)
    counts = np.zeros(4, np.int64)
    total = 0
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK].astype(np.float64)
        part = part[np.isfinite(part)] if mask is None else part[np.isfinite(part) & (part != mask)]
        size = np.abs(part)
        total += size.size
        over = form.overflows(size)
        counts += [
            np.count_nonzero(over),
            np.count_nonzero((size >= form.largest / 4) & ~over),
            np.count_nonzero((size > form.smallest / 2) & (size < form.normal - form.smallest / 2)),
            np.count_nonzero((size > 0) & (size <= form.smallest / 2)),
        ]
    overflow, near, subnormal, vanish = (counts / max(total, 1)).tolist()
    return overflow, near, subnormal, vanish
