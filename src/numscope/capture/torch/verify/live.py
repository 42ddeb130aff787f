"""The origin that a guard tells of a call that computes wrongly, while the job runs."""

from __future__ import annotations

import json
import linecache
import sys

from numscope.capture.sites import is_user
from numscope.capture.torch.verify.judging import CheckRow
from numscope.capture.torch.verify.sentences import sentence
from numscope.core.json_value import JsonObject
from numscope.core.report import Origin, Source


def origin_of(row: CheckRow, step: int, rank: int) -> Origin:
    """Return the origin of a row; its line is the innermost of the user's own that runs, if any does."""
    told: JsonObject = json.loads(row.pattern or "{}")
    told = {key: float(value) if value in ("nan", "inf", "-inf") else value for key, value in told.items()}
    which = sentence(row.operator, told, row.dtype or "") if told else "its own error is beyond what rounding explains"
    return Origin(
        call=f"Aten.{row.operator}",
        kind="aten",
        phase="backward" if row.backward else "forward",
        step=step,
        rank=rank,
        reason=f"{row.operator} computes wrongly on {row.device} in {row.dtype}: {which}",
        source=_source(),
        mechanism="device",
        relative=row.own_error,
        details={
            "slot": "output.0",
            "operator": row.operator,
            "dtype": row.dtype,
            "device": row.device,
            "pattern": told,
        },
    )


def _source() -> Source | None:
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if is_user(file):
            code = linecache.getline(file, frame.f_lineno).strip()
            return Source(file, frame.f_lineno, frame.f_code.co_name, code)
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return None
