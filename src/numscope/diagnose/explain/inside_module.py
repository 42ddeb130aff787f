"""Looks inside a module that was replayed as a unit: both sides once more, under capture, and diagnosed like two runs.

So a run of modules alone still ends with the call at fault and the change that repairs it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path

import torch

from numscope.core.errors import NumscopeError
from numscope.core.report import Origin, Report
from numscope.diagnose.recorded.invocation import CannotReplay
from numscope.diagnose.recorded.step_graph import NotKept
from numscope.diagnose.replay.module_unit import Unit, UnitFigures, Values

_looking: ContextVar[bool] = ContextVar("_looking", default=False)


def look_inside(figures: UnitFigures) -> Origin | None:
    """Return the origin of the difference inside two units, diagnosed; None where it can't be had."""
    from numscope.diagnose.diagnosis import diagnose

    if _looking.get():  # the inside was recorded call by call: there is nothing more to see in it
        return None
    token = _looking.set(True)
    try:
        return _origin_inside(figures, diagnose)
    finally:
        _looking.reset(token)


def _origin_inside(figures: UnitFigures, diagnose: Callable[..., Report]) -> Origin | None:
    with tempfile.TemporaryDirectory(prefix="numscope-inside-") as folder:
        target, reference = Path(folder) / "target", Path(folder) / "reference"
        try:
            _record(figures.target, figures.shared, target)
            _record(figures.reference, figures.reference_values, reference)
            report = diagnose(target, reference)
        except (NumscopeError, CannotReplay, NotKept, RuntimeError):
            return None
    return report.origin if report.verdict == "diverged" else None


def _record(unit: Unit, values: Values, path: Path) -> None:
    """Call a unit's module under capture."""
    from numscope.capture.session import capture

    def fetch(number: int) -> torch.Tensor:
        found = values[number] if number in values else unit.record.data(number)
        found = found.detach().clone()
        return found.requires_grad_() if unit.call.is_gradient and found.is_floating_point() else found

    args, kwargs = unit.arguments(fetch)
    module = unit.module(lambda number: fetch(number).detach())
    recording = capture(path, {unit.forward.module: module}, keep="tensors", on_error="raise")
    with torch.set_grad_enabled(unit.call.is_gradient), unit.device(None), recording:
        result = module(*args, **kwargs)
        if unit.call.is_gradient:
            outputs, gradients = unit.incoming(result, fetch)
            torch.autograd.backward(outputs, gradients)
