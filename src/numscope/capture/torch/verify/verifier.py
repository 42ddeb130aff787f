"""The parts of verifying put together for a capture: the mode, the judge, and the rows that the recorder hands over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from numscope.capture.torch.verify.judging import CheckRow, Judge
from numscope.capture.torch.verify.mode import VerifyMode
from numscope.capture.torch.verify.precision import Machine
from numscope.capture.torch.verify.replay import ReplayMode
from numscope.capture.torch.watch import Watch


def verifier(watch: Watch, verify: bool | float | str, failed: Callable[[CheckRow], None] | None = None) -> VerifyMode:
    """Return the mode that verifies a share of the calls, whose rows the recorder takes."""
    judge = Judge(Machine(), failed)

    def taken() -> Mapping[str, Any]:
        rows = judge.take()
        return dict(zip(CheckRow._fields, map(list, zip(*rows)))) if rows else {}

    if failed is None:
        watch.recorder.checks = taken
    return ReplayMode(watch, judge, 1.0) if isinstance(verify, str) else VerifyMode(watch, judge, float(verify))
