"""PrecisionDebugger: captures into a hidden run, and writes that run's step as msprobe's files at each stop."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import weakref
from pathlib import Path

from numscope.capture import ranks
from numscope.capture.session import Capture
from numscope.compat.msprobe.choosing import chosen
from numscope.compat.msprobe.options import LEVELS, Options, read
from numscope.core.errors import SettingsError
from numscope.core.settings import CaptureSettings, numbers
from numscope.store.formats.msprobe_export import write_step
from numscope.store.formats.step_calls import StepCall
from numscope.store.reader import open_run


class PrecisionDebugger:
    """Dumps a job's values step by step, between `start` and `stop`."""

    def __init__(
        self,
        config_path: str | Path | None = None,
        task: str | None = None,
        dump_path: str | Path | None = None,
        level: str | None = None,
        model: object = None,
        step: object = None,
    ) -> None:
        self._options: Options = read(config_path, task, dump_path, level, step)
        self._model = model
        self._wants_step = numbers(self._options.steps, "step")
        self._wants_rank = numbers(self._options.ranks, "rank")
        self._step = 0
        self._capture: Capture | None = None
        self._hidden: Path | None = None
        self._overflows = 0
        atexit.register(_close, weakref.ref(self))

    def start(self, model: object = None) -> None:
        """Begin to collect; may be called again after `stop` in the same step."""
        if model is not None:
            self._model = model
        if self._options.level in ("L0", "mix") and self._model is None:
            raise SettingsError(f"level {self._options.level} needs the model: PrecisionDebugger(…, model=model)")
        if not self._wants_step(self._step) or not self._wants_rank(ranks.current()[0]) or self._is_done():
            return
        if self._capture is None:
            self._hidden = Path(tempfile.mkdtemp(prefix="numscope-msprobe-"))
            settings = CaptureSettings.of(
                level=LEVELS[self._options.level], keep=self._options.keep, optimizer=False, overwrite=True
            )
            self._capture = Capture(self._hidden / "run", self._model, settings)
        self._capture.start()

    def stop(self) -> None:
        """Stop collecting and write the calls of this step so far."""
        if self._capture is not None:
            self._capture.stop()
            self._write()

    def forward_backward_dump_end(self) -> None:
        """Collect no calls after this point; the backward of those before it is still collected, up to `stop`."""
        if self._capture is not None:
            self._capture.forward_end()

    def step(self) -> None:
        """End a step."""
        self._close_step()
        self._step += 1

    def save(self, variable: object, name: str, save_backward: bool = True) -> None:
        """Dump a value of the user's own under a name, with its gradient."""
        if self._capture is not None:
            self._capture.save(name, variable, grad=save_backward)

    def _is_done(self) -> bool:
        limit = self._options.overflow_nums
        return self._options.task == "overflow_check" and limit > 0 and self._overflows >= limit

    def _write(self) -> None:
        assert self._hidden is not None
        if not (self._hidden / "run" / "manifest.json").exists():
            return
        options = self._options
        rank, world = ranks.current()
        run = open_run(self._hidden / "run")
        folder = options.dump_path / f"step{self._step}" / (f"rank{rank}" if world > 1 else "rank")
        task = {"overflow_check": "tensor"}.get(options.task, options.task)
        write_step(
            run,
            0,
            rank,
            folder,
            task,
            options.level,
            digest=options.md5,
            data_mode=options.data_mode,
            choose=self._choose,
        )

    def _choose(self, calls: list[StepCall]) -> list[StepCall]:
        found = chosen(self._options, calls)
        if self._options.task == "overflow_check":
            left = self._options.overflow_nums - self._overflows if self._options.overflow_nums > 0 else len(found)
            found = found[: max(left, 0)]
            self._overflows += len(found)
        return found

    def _close_step(self) -> None:
        capture, hidden = self._capture, self._hidden
        self._capture = self._hidden = None
        if capture is None or hidden is None:
            return
        if capture._running:
            capture.stop()
            self._capture, self._hidden = capture, hidden
            self._write()
            self._capture = self._hidden = None
        capture.close()
        shutil.rmtree(hidden, ignore_errors=True)


def _close(reference: weakref.ref[PrecisionDebugger]) -> None:
    debugger = reference()
    if debugger is not None:
        debugger._close_step()
