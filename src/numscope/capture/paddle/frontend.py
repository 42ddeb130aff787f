"""Paddle's frontend: installs the watches of each level, and removes them again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import paddle

from numscope.capture.frontend import Frontend, OpenWriter
from numscope.capture.paddle.api import Functions
from numscope.capture.paddle.gradients import BackwardCall, Gradients
from numscope.capture.paddle.layers import Layers
from numscope.capture.paddle.optimizer import Optimizers, tick
from numscope.capture.paddle.own_code import OwnCode
from numscope.capture.paddle.static import pause_in_static
from numscope.capture.paddle.watch import Undo, Watch
from numscope.capture.recording.interned import Strings
from numscope.capture.recording.recorder import Recorder
from numscope.core.errors import SettingsError
from numscope.core.settings import CaptureSettings


class PaddleFrontend(Frontend):
    """Watches layers, functions, gradients and optimizers."""

    name = "paddle"

    def __init__(
        self,
        settings: CaptureSettings,
        models: dict[str, paddle.nn.Layer],
        open_writer: OpenWriter,
    ) -> None:
        if settings.level == "aten":
            raise SettingsError("level='aten' is torch's: for Paddle there are module, api and mix")
        measure = None
        if settings.keep != "structure":
            from numscope.fingerprint.numpy_form import NumpyBatch

            measure = NumpyBatch()
        self.recorder = Recorder(open_writer, measure, lambda array: array, Strings(passes=True))
        self.watch = Watch(self.recorder, settings)
        self._settings = settings
        self._models = models
        self._gradients = Gradients(self.watch)
        self.layers = Layers(self.watch, self._gradients, models)
        self._optimizers = Optimizers(self.watch, self.layers)
        self._undo: list[Undo] = []
        self._calls: list[Undo] = []

    def start(self) -> None:
        """Begin to watch."""
        self._undo = [self._optimizers.install(), pause_in_static(self._pause, self._resume)]
        self._resume()
        self.watch.forward_on = True
        self.watch.on = True

    def _resume(self) -> None:
        records = self._settings.level != "module"
        self._calls = [self.layers.install()]
        if records or self.watch.record_backward:
            functions = Functions(self.watch, self._gradients, records)
            self._calls.append(functions.install())
            self.layers.meet(functions.in_layer)

    def _pause(self) -> None:
        self.layers.met = None
        while self._calls:
            self._calls.pop()()

    def stop(self) -> None:
        """Undo everything that start did."""
        self.watch.on = False
        self._pause()
        while self._undo:
            self._undo.pop()()

    def new_step(self) -> None:
        """Forget the tensors of the step that ended."""
        self.watch.new_step()
        self._gradients.forget()

    def before_next_call(self, work: Callable[[], None]) -> None:
        """Call `work` before the next call outside an optimizer is recorded."""
        self.watch.before_call = work

    def tick(self, stepped: Callable[[object], None]) -> Undo:
        """Call back after each optimizer's step, watched or not; return a function that ends this."""
        return tick(stepped)

    def complaint(self) -> str | None:
        """Return a complaint about the capture's settings, to show at its end; None where there is none."""
        return self.watch.scope.nothing_matched()

    def end_forward(self) -> None:
        """Record no further forward call until stop."""
        self.watch.forward_on = False

    def save(self, name: str, value: object, grad: bool) -> None:
        """Record a value of the user's own as a call of kind `save`."""
        watch = self.watch
        if watch.thread.busy:
            return
        with OwnCode(watch, "save"):
            if watch.begins():
                self._save(name, value, grad, sys._getframe(2))

    def _save(self, name: str, value: object, grad: bool, frame: FrameType) -> None:
        watch = self.watch
        recorder = watch.recorder
        series = watch.series(f"Save.{name}")
        number = series.next(recorder.epoch)
        call = series.name(number)
        outputs = watch.outputs(value)
        top = watch.thread.stack[-1] if watch.thread.stack else None
        place = top.place if top else watch.no_place
        order = recorder.order()
        site = watch.site(frame)
        watch.call(order, call, "save", "forward", place, parent=top.order if top else -1, site=site)
        watch.slots(order, watch.measure(outputs, call))
        if grad:
            backward = BackwardCall(watch, series.name(number, "backward"), "save", place, order, -1, None)
            self._gradients.attach(backward, [], {}, outputs, makes=False)

    def own_code(self) -> OwnCode:
        """Return a context for our own code, of which nothing is recorded."""
        return OwnCode(self.watch)

    def is_helper(self) -> bool:
        """Tell whether this process is no rank, but a data loader's worker."""
        return paddle.io.get_worker_info() is not None

    def seeds(self) -> dict[str, int]:
        """Return the seed that Paddle's default generator was last given; reading it changes nothing."""
        try:
            return {"paddle": int(paddle.base.core.default_cpu_generator().initial_seed())}
        except Exception:
            return {}

    def numerics(self) -> dict[str, dict[str, object]]:
        """Return the settings that change numbers, and Paddle's version."""
        settings: dict[str, object] = {"paddle.get_default_dtype()": paddle.get_default_dtype()}
        return {"settings": settings, "versions": {"paddle": paddle.__version__}, "hardware": {}}

    def devices(self) -> list[str]:
        """Return the device that Paddle computes on."""
        return [str(paddle.device.get_device())]
