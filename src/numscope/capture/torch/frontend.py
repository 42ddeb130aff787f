"""PyTorch's frontend: installs what watches, and takes it away again."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from numscope.capture.frontend import Frontend, OpenWriter
from numscope.capture.recording.interned import Strings
from numscope.capture.recording.recorder import Recorder
from numscope.capture.recording.rows import CallRow
from numscope.capture.torch import native, numerics
from numscope.capture.torch.arrangement import arrangement
from numscope.capture.torch.autograd.backward import BackwardCall
from numscope.capture.torch.autograd.bare_hooks import WithoutHandles
from numscope.capture.torch.device_to_host import for_the_writer
from numscope.capture.torch.identity.uninitialized import Reallocations
from numscope.capture.torch.identity.unversioned_writes import (
    ExposedMemory,
    ForeignFunctions,
    GraphReplays,
    SetVersions,
    UnversionedWrites,
)
from numscope.capture.torch.inside.recorded import Inside
from numscope.capture.torch.install import Installed
from numscope.capture.torch.levels.api import ApiMode
from numscope.capture.torch.levels.aten import AtenMode
from numscope.capture.torch.levels.autograd_function import Functions
from numscope.capture.torch.levels.collectives import Collectives
from numscope.capture.torch.levels.modules import Modules
from numscope.capture.torch.levels.optimizer import Optimizers
from numscope.capture.torch.levels.pipelines import PipelineSchedules, PipelineShapes
from numscope.capture.torch.levels.step_hooks import around_steps
from numscope.capture.torch.own_code import OwnCode, OwnComputation
from numscope.capture.torch.patching import together
from numscope.capture.torch.placements import declared_layout
from numscope.capture.torch.slots import Slot
from numscope.capture.torch.thread import Undo
from numscope.capture.torch.watch import Watch
from numscope.core.job_files.layout import Layout
from numscope.core.job_files.program import Program
from numscope.core.json_value import JsonObject
from numscope.core.settings import CaptureSettings


class TorchFrontend(Installed, Frontend):
    """Watches modules, API calls, gradients and optimizers."""

    def __init__(
        self,
        settings: CaptureSettings,
        models: dict[str, torch.nn.Module],
        open_writer: OpenWriter,
        recorder: Recorder | None = None,
    ) -> None:
        self.recorder = recorder or Recorder(open_writer, _measure(settings), for_the_writer, Strings(passes=True))
        watch = Watch(self.recorder, settings)
        below = _verifier(watch, settings)
        super().__init__(watch, models, Modules(watch, models), _mode(watch, settings.level), below)
        self._settings = settings
        self._optimizers = Optimizers(watch, self.modules)
        self._schedules = PipelineSchedules()
        self._parts: list[Any] = [
            self._optimizers,
            Collectives(watch),
            self._schedules,
            PipelineShapes(watch),
            GraphReplays(watch),
            WithoutHandles(),
        ]
        self._inside = Inside(watch, settings.steps is not None) if settings.compiled == "inside" else None
        if self._inside is not None:
            self._parts.append(self._inside)
        if settings.level in ("api", "mix"):
            self._parts += [Functions(watch), SetVersions(watch)]
        elif settings.level == "aten":
            self._parts += [Reallocations(watch), ExposedMemory(watch), ForeignFunctions(watch)]
        else:
            watch.unversioned_writes = UnversionedWrites(watch)
            self._parts.append(watch.unversioned_writes)

    def start(self) -> None:
        """Begin to watch."""
        native.adopt()
        self.install(*self._parts)
        self.watch.forward_on = True
        self.watch.on = not self.regions.gave_way

    def stop(self) -> None:
        """Undo everything that start did; what runs from here on is not seen."""
        super().stop()
        self.watch.tensors.drop_all_carried_over()

    def new_step(self) -> None:
        """Forget the tensors of the step that ended."""
        self.watch.new_step()

    def before_next_call(self, work: Callable[[], None]) -> None:
        """Do the work before the next call that is no optimizer's is recorded."""
        self.watch.before_call = work

    def tick(self, stepped: Callable[[torch.optim.Optimizer], None]) -> Undo:
        """Call back after each optimizer's step, watched or not; return what ends that."""
        hooks = around_steps(
            None, lambda optimizer, args, kwargs: stepped(optimizer), None, lambda optimizer, frame: stepped(optimizer)
        )
        return together([self.regions.install(), hooks])

    def complaint(self) -> str | None:
        """Return what the user should know of the capture's own settings, at its end."""
        return self.watch.scope.nothing_matched()

    def end_forward(self) -> None:
        """Record no further forward call until stop."""
        self.watch.forward_on = False

    def save(self, name: str, value: object, grad: bool) -> None:
        """Record a value of the user's own as a call of kind `save`."""
        watch = self.watch
        if not watch.thread.here.busy:
            with OwnCode(watch, "save"):
                self._save(name, value, grad, sys._getframe(2))

    def _save(self, name: str, value: object, grad: bool, frame: FrameType) -> None:
        watch = self.watch
        recorder = watch.recorder
        series = watch.series(f"Save.{name}")
        number = series.next(recorder.epoch)
        call = series.name(number)
        outputs = watch.flatten_output(value)
        stack = watch.thread.here.stack
        parent = stack[-1] if stack else watch.outside
        order = recorder.order()
        row = watch.call_row(
            order,
            call,
            watch.kinds["save"],
            parent.module,
            parent.module_class,
            watch.forward_phase,
            parent=parent.order,
            stack=watch.site(frame),
        )
        recorder.call(row)
        watch.record(order, outputs, call)
        if grad:
            self._save_gradients(series.name(number, "backward"), order, outputs)

    def _save_gradients(self, name: int, forward: int, outputs: list[Slot]) -> None:
        watch = self.watch
        nowhere = CallRow(forward, name, watch.kinds["save"], watch.no_text, watch.no_text, watch.forward_phase)
        call = BackwardCall(watch, name, nowhere, forward, None)
        for slot, tensor in outputs:
            if not tensor.requires_grad:
                continue

            def seen(gradient: torch.Tensor, slot: int = watch.incoming_slot(slot)) -> None:
                if watch.on and not watch.thread.here.busy:
                    with OwnComputation(watch, "save"):
                        call.record(slot, gradient)

            tensor.register_hook(seen)

    def write_inside(self, folder: Path | None) -> None:
        """Write what was seen inside compiled regions into a rank's folder; None: no more will come."""
        if self._inside is not None and folder is not None:
            self._inside.write(folder)
        elif self._inside is not None:
            self._inside.close()

    def own_code(self) -> OwnCode:
        """Return a context for our own code, of which nothing is recorded."""
        return OwnCode(self.watch)

    def is_helper(self) -> bool:
        """Tell whether this process only feeds another one: a data loader's worker."""
        return torch.utils.data.get_worker_info() is not None

    def description(self) -> dict[str, Any] | None:
        """Return what the captured modules are made of, or None where no replay could use it."""
        if self._settings.level == "api" or not (self._settings.keep == "tensors" or self._settings.tensors):
            return None
        from numscope.capture.torch.module_description import describe

        return describe(self.modules.known(), os.path.abspath(sys.argv[0]) if sys.argv and sys.argv[0] else "")

    def program(self) -> Program | None:
        """Return the source and the plain attributes of what runs, or None where stacks are not wanted."""
        if not self._settings.stacks:
            return None
        from numscope.capture.torch.program import program

        try:
            attributes = self.modules.attributes
            for path, module in self.modules.known().items():
                attributes.add(path, module)
            return program(attributes, self._optimizers.classes, self.recorder.sites.all_frames())
        except Exception as error:  # a user's class may raise anything when it is looked at
            self.recorder.skip(f"the program's source and attributes: {type(error).__name__}")
            return None

    def layout(self) -> Layout | None:
        """Return what libraries declare of how this rank's parameters lie in the whole ones."""
        try:
            return declared_layout(self.modules.known())
        except Exception as error:  # marks of a library may be anything
            self.recorder.skip(f"the layout of the parameters: {type(error).__name__}")
            return None

    def seeds(self) -> dict[str, int]:
        """Return the seed that torch's default generator was last given; reading it changes nothing."""
        return {"torch": torch.initial_seed()}

    def numerics(self) -> dict[str, dict[str, object]]:
        """Return the settings that change numbers, as they are when the first step is written."""
        return numerics.collect()

    def arrangement(self) -> JsonObject:
        """Return how the job's ranks are arranged, as it is when the first step is written."""
        return arrangement(self.modules.known().values(), self._schedules.seen)


def _mode(watch: Watch, level: str) -> ApiMode | AtenMode | None:
    if level == "module":
        return None
    return AtenMode(watch) if level == "aten" else ApiMode(watch)


def _verifier(watch: Watch, settings: CaptureSettings) -> Any:
    """Return the mode that holds operators against exact arithmetic, or None where that is not wanted."""
    if not settings.verify:
        return None
    from numscope.capture.torch.verify.verifier import verifier

    return verifier(watch, settings.verify)


def _measure(settings: CaptureSettings) -> Any:
    if settings.keep == "structure":
        return None
    from numscope.fingerprint.torch_form import TorchBatch

    return TorchBatch()
