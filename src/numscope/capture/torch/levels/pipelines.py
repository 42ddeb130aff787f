"""Pipelines: which schedule runs them, and the step that a stage runs on uninitialised memory to infer shapes.

That step is no part of the job: its numbers are whatever lay in that memory, and its calls would take the numbers of the first
ones of the job.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable

from numscope.capture.torch.patching import replace, together
from numscope.capture.torch.thread import Undo
from numscope.capture.torch.watch import Watch
from numscope.core.json_value import JsonObject

# Methods of a pipeline's stage that run such a step.
_INFERENCE = ("_shape_inference", "_forward_metadata_inference", "_backward_metadata_inference")


class PipelineSchedules:
    """Notes which schedule runs a pipeline's micro-batches."""

    def __init__(self) -> None:
        self.seen: JsonObject = {}

    def install(self) -> Undo:
        """Replace the methods that run a step of a schedule, where pipelines are loaded; return what puts them back."""
        module = sys.modules.get("torch.distributed.pipelining.schedules")
        classes = [getattr(module, name, None) for name in ("PipelineScheduleSingle", "PipelineScheduleMulti")]
        own = [(one, vars(one)["step"]) for one in classes if one is not None and "step" in vars(one)]
        return together([replace(one, "step", self._noted(method)) for one, method in own])

    def _noted(self, method: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(method)
        def step(schedule: object, *args: object, **kwargs: object) -> object:
            self.seen = {
                "name": type(schedule).__name__,
                "micro_batches": getattr(schedule, "_n_microbatches", None),
                "stages": getattr(schedule, "_num_stages", None),
            }
            return method(schedule, *args, **kwargs)

        return step


class PipelineShapes:
    """Records nothing while a pipeline infers shapes."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def install(self) -> Undo:
        """Replace the methods that do so, where pipelines are loaded; return what puts them back."""
        stage = getattr(sys.modules.get("torch.distributed.pipelining.stage"), "PipelineStage", None)
        own = {name: method for name in _INFERENCE if (method := vars(stage or object).get(name)) is not None}
        return together([replace(stage, name, self._unwatched(method)) for name, method in own.items()])

    def _unwatched(self, method: Callable[..., object]) -> Callable[..., object]:
        watch = self._watch

        @functools.wraps(method)
        def infer(*args: object, **kwargs: object) -> object:
            on, watch.on = watch.on, False
            try:
                return method(*args, **kwargs)
            finally:
                watch.on = on

        return infer
