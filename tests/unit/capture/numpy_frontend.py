"""The least that a front end is: functions of numpy, each a call with its inputs, its result and the user's line."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numscope.capture.frontend import Frontend, OpenWriter
from numscope.capture.recording.interned import Series
from numscope.capture.recording.recorder import Recorder
from numscope.capture.recording.rows import CallRow, SlotRow
from numscope.core.settings import CaptureSettings
from numscope.fingerprint.numpy_form import NumpyBatch

FUNCTIONS = ("matmul", "exp", "tanh", "sum", "add", "multiply")
Array = NDArray[np.generic]


class NumpyFrontend(Frontend):
    """Watches functions of numpy."""

    name = "numpy"

    def __init__(self, settings: CaptureSettings, models: dict[str, Any], open_writer: OpenWriter) -> None:
        self.recorder = Recorder(open_writer, NumpyBatch(), lambda array: array)
        self._plain: dict[str, Any] = {}
        self._forward = True
        self._series = {
            name: Series(self.recorder.strings, f"Numpy.{name}", "{head}.{n}.{phase}") for name in FUNCTIONS
        }
        self._before: Callable[[], None] | None = None
        self._here = threading.local()  # `own`: our own code runs in this thread
        self._here.own = False  # in the job's thread; the writer's thread has no such attribute

    def start(self) -> None:
        """Replace the functions."""
        self._forward = True
        for name in FUNCTIONS:
            self._plain[name] = getattr(np, name)
            setattr(np, name, self._watched(name, self._plain[name]))

    def stop(self) -> None:
        """Put the functions back."""
        while self._plain:
            setattr(np, *self._plain.popitem())

    def _watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if getattr(self._here, "own", True) or not self._forward:
                return function(*args, **kwargs)
            with self.own_code():
                if self._before is not None:
                    work, self._before = self._before, None
                    work()
                order = self.recorder.order()
                given = [(f"input.{n}", value) for n, value in enumerate(args) if isinstance(value, np.ndarray)]
                self._slots(order, given)
            result = function(*args, **kwargs)
            with self.own_code():
                self._slots(order, [("output.0", np.asarray(result))])
                self._record(name, order, kwargs, sys._getframe(1))
            return result

        return call

    def _record(self, name: str, order: int, settings: dict[str, Any], frame: Any) -> None:
        text, series = self.recorder.strings.id, self._series[name]
        row = CallRow(
            order,
            series.name(series.next(self.recorder.epoch)),
            kind=text("api"),
            module=text(""),
            module_class=text(""),
            phase=text("forward"),
            arguments=text(json.dumps({"kwargs": settings})) if settings else -1,
            stack=self.recorder.sites.intern(frame, -1),
        )
        self.recorder.call(row)

    def _slots(self, order: int, values: Iterable[tuple[str, Array]]) -> None:
        recorder = self.recorder
        text = recorder.strings.id
        for slot, array in values:
            number = recorder.tensor(array, text(str(array.dtype)), recorder.shape(array.shape), text("cpu"))
            recorder.slot(SlotRow(order, text(slot), number))

    @contextmanager
    def own_code(self) -> Iterator[None]:
        """Return a context for our own code, which calls numpy too."""
        before, self._here.own = getattr(self._here, "own", True), True
        try:
            yield
        finally:
            self._here.own = before

    def new_step(self) -> None:
        """Forget nothing: each array is measured each time."""

    def end_forward(self) -> None:
        """Record no further call."""
        self._forward = False

    def save(self, name: str, value: object, grad: bool) -> None:
        """Record a value as the input of a call."""
        order, text = self.recorder.order(), self.recorder.strings.id
        with self.own_code():
            self._slots(order, [("output.0", np.asarray(value))])
        row = CallRow(order, text(f"Save.{name}.0.forward"), text("save"), text(""), text(""), text("forward"))
        self.recorder.call(row)

    def before_next_call(self, work: Callable[[], None]) -> None:
        """Do the work when the next function is called."""
        self._before = work

    def tick(self, stepped: Callable[[object], None]) -> Callable[[], None]:
        """Return what ends nothing: numpy has no optimizers."""
        return partial(bool)
