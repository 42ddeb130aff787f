"""The judge: turns compared parts into a row of the table `checks`, and examines a call whose own error is too large."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from numscope.capture.torch.verify.limits import limit
from numscope.capture.torch.verify.measure import Compared, Deviation, deviation
from numscope.capture.torch.verify.patterns import Pattern, pattern
from numscope.core.dtypes import unit_roundoff
from numscope.core.report import plain

_EXAMINED = 4  # calls of an operator, at most, whose whole output is computed again


class Found(NamedTuple):
    """A call's parts beside the exact result."""

    call: int
    backward: bool
    place: int
    operator: str
    device: str
    parts: Sequence[Compared]
    coarsest: str = ""  # dtype among what it is given, where that is coarser than what it makes


class CheckRow(NamedTuple):
    """A row of the table `checks`; `store/schema.py` says what its columns mean."""

    call: int | None
    backward: bool
    place: int
    operator: str
    dtype: str | None
    device: str | None
    verified: str
    reason: str | None
    elements: int
    off: int
    own_error: float | None
    own_ulp: float | None
    units: float | None
    limit: float | None
    pattern: str | None


class Precision(Protocol):
    """Says what this machine computes with."""

    def chip(self, device: str) -> str:
        """Return the name of a device's chip."""

    def roughness(self, operator: str, dtype: str, device: str) -> float:
        """Return the roundoff to which the settings let the operands of a product be rounded; 0: they don't."""


class Judge:
    """Judges each call, and keeps the rows until they are handed over."""

    def __init__(self, precision: Precision, failed: Callable[[CheckRow], None] | None = None) -> None:
        self._precision = precision
        self._failed = failed
        self._rows: list[CheckRow] = []
        self._lock = threading.Lock()
        self._examined: dict[str, int] = {}
        self.step = 0

    def begin_step(self, step: int) -> None:
        """Begin a step."""
        self.step = step

    def take(self) -> list[CheckRow]:
        """Return the rows since the last time."""
        with self._lock:
            rows, self._rows = self._rows, []
        return rows

    def none(self, call: int, backward: bool, place: int, operator: str, reason: str) -> None:
        """Note a call that is not verified, and why."""
        row = CheckRow(
            call if call >= 0 else None, backward, place, operator, None, None, "none", reason, 0, 0, *[None] * 5
        )
        self.add(row)

    def add(self, row: CheckRow) -> None:
        """Add a row."""
        if self._failed is None:  # else nobody takes them
            with self._lock:
                self._rows.append(row)
        if row.pattern is not None and self._failed is not None:
            self._failed(row)

    def judge(self, found: Found, again: Callable[[], Sequence[Compared]] | None) -> None:
        """Judge a call; `again` computes all of its output, where its inputs are still there."""
        dtype = found.parts[0].dtype
        allowed = self._limit(found, dtype)
        rough = self._precision.roughness(found.operator, dtype, found.device)
        deviations = [deviation(part, rough) for part in found.parts]
        beyond = [one.units / self._limit(found, part.dtype) for one, part in zip(deviations, found.parts)]
        worst = max(range(len(beyond)), key=beyond.__getitem__)
        told: Pattern | None = None
        if beyond[worst] > 1:
            dtype = found.parts[worst].dtype
            allowed = self._limit(found, dtype)
            told = self._examine(found, deviations, allowed, rough, again)
        row = CheckRow(
            found.call if found.call >= 0 else None,
            found.backward,
            found.place,
            found.operator,
            dtype,
            found.device,
            _verified(found.parts),
            None,
            sum(one.elements for one in deviations),
            told.off if told is not None else 0,
            _relative(found.parts, deviations),
            max(one.ulp for one, part in zip(deviations, found.parts) if not part.projected),
            deviations[worst].units,
            allowed,
            json.dumps(plain(told.to_dict())) if told is not None else None,
        )
        self.add(row)

    def _limit(self, found: Found, dtype: str) -> float:
        """Return the limit for an output: that of the coarsest dtype that took part."""
        chip = self._precision.chip(found.device)
        allowed = limit(found.operator, dtype, chip)
        coarser = unit_roundoff(found.coarsest) > unit_roundoff(dtype) > 0
        return max(allowed, limit(found.operator, found.coarsest, chip)) if coarser else allowed

    def _examine(
        self,
        found: Found,
        deviations: Sequence[Deviation],
        allowed: float,
        rough: float,
        again: Callable[[], Sequence[Compared]] | None,
    ) -> Pattern | None:
        seen = self._examined.get(found.operator, 0)
        if again is not None and seen < _EXAMINED:
            self._examined[found.operator] = seen + 1
            parts: Sequence[Any] = again()
            whole = pattern(parts, [deviation(part, rough) for part in parts], allowed)
            if whole is not None:
                return whole
        return pattern(found.parts, deviations, allowed)


def _verified(parts: Sequence[Compared]) -> str:
    if any(part.projected for part in parts):
        return "projection"
    return "exact" if all(part.whole for part in parts) else "sample"


def _relative(parts: Sequence[Compared], deviations: Sequence[Deviation]) -> float:
    """Return the error relative to the norm, of the output of which that is largest."""
    worst = 0.0
    for slot in {part.slot for part in parts}:
        mine = [one for one, part in zip(deviations, parts) if part.slot == slot and not part.projected]
        squared, norm = sum(one.squared for one in mine), sum(one.norm for one in mine)
        if squared:
            worst = max(worst, math.sqrt(squared / norm) if norm else math.inf)
    return worst
