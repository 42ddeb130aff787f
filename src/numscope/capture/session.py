"""A capture: the public object that records one run.

with ns.capture("runs/gpu", model, level="mix", keep="stats") as cap:
    for batch in loader:
        train_step(batch)
        cap.step()
"""

from __future__ import annotations

import atexit
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from numscope.capture import ranks
from numscope.capture.control import ControlFile
from numscope.capture.frameworks import FRAMEWORKS, NAMES
from numscope.capture.frontend import Frontend, OpenWriter
from numscope.capture.recording.unwritten import UnwrittenLimit
from numscope.core import grafts
from numscope.core.errors import CaptureError, NumscopeError, RunError, SettingsError
from numscope.core.job_files.layout import FILE as LAYOUT
from numscope.core.job_files.modules import FILE as MODULES
from numscope.core.job_files.program import FILE as PROGRAM
from numscope.core.settings import CaptureSettings, numbers
from numscope.store import manifest, rundir
from numscope.store.rundir import CLOSED
from numscope.store.writer import QUEUE_BYTES, Limits, RunWriter

_OWN = str(Path(__file__).parents[1]) + os.sep
_TABLES = 64 << 20  # bytes of rows that may wait to be written, where no data is kept
_active: Capture | None = None


def abandon_active() -> None:
    """Give up the capture that this forked process has inherited."""
    if _active is not None:
        _active.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=abandon_active)


def capture(path: str | os.PathLike[str], model: object = None, **settings: Any) -> Capture:
    """Return a capture that records a run of `model` into the directory `path`; see CaptureSettings for the rest.

    `config` names a settings file with the same keys; an argument overrides the file.
    """
    return Capture(path, model, CaptureSettings.of(**settings))


class Capture:
    """Records one run: `start`, `step` after each step, `stop`; or a `with` block."""

    def __init__(
        self, path: str | os.PathLike[str], model: object, settings: CaptureSettings, *, job: str = ""
    ) -> None:
        self.path = Path(path)
        self._home = rundir.here()  # the folder that a relative path starts from
        self.settings = settings
        steps = settings.steps if settings.steps is not None or settings.control is None else []
        self._wants_step = numbers(steps, "steps")
        self._control = ControlFile(settings.control) if settings.control else None
        self._tick_off: Callable[[], None] | None = None
        self._wants_rank = numbers(settings.ranks, "ranks")
        self._job = job  # the job of `numscope run` that this process belongs to; steps are told by the optimizer there
        if not job:
            rundir.check(self.path, ranks.current()[0], settings.overwrite)
        self._frontend: Frontend = _frontend(self, model)
        self._recorder = self._frontend.recorder
        self._unwritten = UnwrittenLimit(self._recorder, self._may_open)
        self._step = 0
        self._running = False  # between start and stop
        self._watching = False  # the frontend is installed: running, and this step is wanted
        self._begun = -1  # the step that the recorder numbers
        self._touched = False  # that step has been watched since it was last ended
        self._closed = False
        self._first_graft: int = grafts.first()  # of those that this capture may see
        self._grafts_told: list[dict[str, object]] = []  # in the manifest
        self._described = False  # modules.json is written
        self._dead = False  # the writer failed; nothing more is recorded
        self._told = False  # why something was not recorded
        self._watched = False  # in at least one step
        self._end = CLOSED  # or the class of the exception that ended the run
        self._handled = 0  # id of an exception that was being handled when the capture began: it ends nothing

    # The user's side ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to record, where this step and this rank are wanted."""
        global _active
        if _active is not None and _active is not self:
            raise CaptureError(f"a capture into {_active.path} is active already: stop it before you start another")
        if self._closed:
            raise CaptureError(f"the capture into {self.path} is closed: make another with ns.capture")
        if self._running:
            return
        _active = self
        self._running = True
        self._end, self._handled = CLOSED, id(sys.exc_info()[1])
        if not self._recorder.opened:
            self._first_graft = grafts.first()
            atexit.register(self._at_exit)
        if self._job:
            self._tick_off = self._frontend.tick(self._optimizer_stepped)
        self._watch_if_wanted()

    def stop(self) -> None:
        """Undo everything and write the records; a later start goes on with the same run."""
        global _active
        if not self._running:
            return
        self._running = False
        self._unwritten.stop()
        if _active is self:
            _active = None
        if self._tick_off is not None:
            self._tick_off()
        self._unwatch()
        self._end_step()
        self.crashed(sys.exc_info()[1])
        if (complaint := self._frontend.complaint()) is not None:
            self._told = True
            warnings.warn(f"numscope: {complaint}", stacklevel=_users_level())
        if self._recorder.opened and not self._closed:
            self._guarded(lambda: self._recorder.settle(self._end))

    def step(self) -> None:
        """End one step and begin the next."""
        self._end_step()
        self._step += 1
        if self._running:
            self._watch_if_wanted()

    def close(self) -> None:
        """Stop, and close the run for good."""
        self.stop()
        if not (self._watched or self._told or self._closed or self._job or self._control is not None):
            self._tell_nothing()
        atexit.unregister(self._at_exit)  # it would hold all names and stacks of the run until the job ends
        if self._recorder.opened and not self._closed:
            self._closed = True
            self._guarded(lambda: self._recorder.close(self._end))
            self._guarded(lambda: self._frontend.write_inside(None))
            if not self._dead and (seen := grafts.since(self._first_graft)) != self._grafts_told:
                self._guarded(lambda: rundir.add_to_manifest(rundir.located(self.path, self._home), {"grafts": seen}))

    def save(self, name: str, tensor: Any, grad: bool = False) -> None:
        """Record a tensor (or a structure of them) under a name of the user's own; its gradient too with grad=True."""
        if self._watching:
            self._frontend.save(name, tensor, grad)

    def forward_end(self) -> None:
        """Record no calls after this one, up to stop(); their backward part neither."""
        if self._watching:
            self._frontend.end_forward()

    def __enter__(self) -> Capture:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.crashed(error)
        self.close()

    def crashed(self, error: BaseException | None) -> None:
        """Remember the exception that ends the run, for the run to tell; leaving with status 0 is none."""
        if error is None or id(error) == self._handled or self._end != CLOSED or isinstance(error, GeneratorExit):
            return
        if isinstance(error, SystemExit):
            if error.code in (0, None):
                return
            error = error.__context__ or error  # `except ValueError: sys.exit(1)`
        self._end = type(error).__name__

    def _at_exit(self) -> None:
        """Close the run with the process, which an exception may have ended."""
        if self._running and not hasattr(sys, "ps1"):  # in a notebook, one that ended a cell
            self.crashed(getattr(sys, "last_value", None))
        self.close()

    def why_nothing(self) -> str:
        """Return why the run may have stayed empty; an empty text where the user was told already."""
        if self._told:
            return ""
        if not self._watched:
            return ": no step that ran was asked for (steps, ranks, control)"
        return f": no call of {self._frontend.name} was seen"

    def _tell_nothing(self) -> None:
        """Say why nothing was recorded; a rank that was left out says so only where there is no other."""
        rank, world = ranks.current()
        why = ""
        if self._wants_rank(rank):
            if self.settings.steps is not None:
                why = f"steps={self.settings.steps!r}, and {self._step} steps ran; cap.step() ends a step"
        elif world == 1:
            why = f"ranks={self.settings.ranks!r}, and this job has rank {rank} alone"
        if why:
            self._told = True
            warnings.warn(f"numscope: nothing was recorded into {self.path}: {why}", stacklevel=_users_level())

    # Ours -----------------------------------------------------------------------------------------------------------

    def _optimizer_stepped(self, optimizer: object) -> None:
        """End the step of a job, where optimizers mark the steps: optimizers that step one after the other end one step."""
        if not self._running:
            return
        if self._watching:
            self._frontend.before_next_call(self.step)
        else:
            self.step()

    def open_writer(self) -> RunWriter:
        """Open the run's directory; called when the first batch is ready, by which time the job knows its rank."""
        rank, world = ranks.current()
        facts = manifest.collect(
            framework=self._frontend.name,
            devices=self._frontend.devices(),
            seeds=self._frontend.seeds(),
            numerics=self._frontend.numerics(),
            settings=self.settings.to_dict(),
            world_size=world,
            arrangement=self._frontend.arrangement(),
        )
        self._grafts_told = grafts.since(self._first_graft)
        seen = {"grafts": self._grafts_told} if self._grafts_told else {}
        keeps = self.settings.keep in ("sample", "tensors") or bool(self.settings.tensors)
        writer = RunWriter(
            rundir.located(self.path, self._home),
            rank=rank,
            manifest={**facts, "job": self._job, "ends": True, **seen},
            yields=bool(self._job) and ranks.is_first(),
            overwrite=self.settings.overwrite,
            queue_bytes=QUEUE_BYTES if keeps else _TABLES,
            limits=Limits(self.settings.keep_last, self.settings.max_bytes),
        )
        atexit.unregister(self._at_exit)
        atexit.register(self._at_exit)  # registered after the writer's own, so that it runs before it
        return writer

    def abandon(self) -> None:
        """Give up this capture in a forked process: it belongs to the process that began it."""
        global _active
        self._dead = self._closed = True
        self._running = False
        self._unwritten.stop(wait=False)  # a forked process does not have the thread
        self._unwatch()
        atexit.unregister(self._at_exit)
        if _active is self:
            _active = None

    def _watch_if_wanted(self) -> None:
        chosen = self._wants_step(self._step) or (self._control is not None and self._control.asks())
        wanted = not self._dead and chosen and self._wants_rank(ranks.current()[0])
        if not wanted:
            self._unwatch()
            return
        if self._begun != self._step:
            self._begun = self._step
            self._recorder.begin_step(self._step)
        self._touched = self._watched = True
        if not self._watching:
            self._frontend.start()
            self._watching = True
        self._unwritten.start()

    def _unwatch(self) -> None:
        if self._watching:
            self._frontend.stop()
            self._watching = False

    def _end_step(self) -> None:
        if not self._touched:
            return
        if (error := self._unwritten.take_error()) is not None and not self._dead and self._is_ours():
            self._guarded(lambda: _raise(error))
        if not self._dead and self._recorder.has_content and self._is_ours():
            self._guarded(self._recorder.end_step)
            if not self._described and not self._dead:
                self._described = True
                self._guarded(self._describe)
            if not self._dead and self.settings.compiled == "inside":
                self._guarded(lambda: self._frontend.write_inside(self._folder()))
        self._frontend.new_step()
        self._touched = False

    def _describe(self) -> None:
        """Write what describes the modules, the program and the layout, once a run."""
        folder = self._folder()
        documents = {
            MODULES: self._frontend.description(),
            PROGRAM: self._frontend.program(),
            LAYOUT: self._frontend.layout(),
        }
        for name, document in documents.items():
            if document is not None:
                rundir.write_document(folder, name, document)

    def _folder(self) -> Path:
        """Return the rank's folder, which is there once the writer is open."""
        return rundir.located(self.path, self._home) / f"rank{self._recorder.writer.rank}"

    def _is_ours(self) -> bool:
        """Tell whether this process writes a rank; abandon the capture where it does not."""
        if self._job and (self._frontend.is_helper() or self._only_started_others()):
            self.abandon()
            if self._recorder.opened:
                with suppress(RunError):  # the run is another process's
                    self._recorder.close()
            return False
        return True

    def _only_started_others(self) -> bool:
        """Tell whether this process made no step of its own, and a process that it started has taken its rank."""
        holder = rundir.holder_of(rundir.located(self.path, self._home) / f"rank{ranks.current()[0]}")
        if holder is None or holder.job != self._job or holder.pid == os.getpid():
            return False
        return self._step == 0 and ranks.is_first()

    def _may_open(self) -> bool:
        """Tell whether the run may be opened before the first step has ended, so that a killed job leaves some of it.

        A process that gives its rank to one that it starts loses what it wrote: see `rundir.create`.
        """
        if self._dead or self._frontend.is_helper():
            return False
        return not self._job or ranks.is_first() or ranks.is_told()

    def _guarded(self, work: Callable[[], object]) -> None:
        """Do work of ours that must not stop training."""
        try:
            with self._frontend.own_code():
                work()
        except Exception as error:
            if self.settings.on_error == "raise":
                raise
            was_dead, self._dead = self._dead, True
            self._end = type(error).__name__
            self._unwatch()
            if was_dead:
                return  # a later failure, at the end, has the same cause
            self._told = True
            text = str(error) if isinstance(error, NumscopeError) else f"{type(error).__name__}: {error}"
            warnings.warn(
                f"numscope stopped recording into {self.path}: {text}; training goes on", stacklevel=_users_level()
            )


def _raise(error: Exception) -> None:
    raise error


def _users_level() -> int:
    """Return the `stacklevel` with which a warning of the caller names the user's line that led to it."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN):
        level, frame = level + 1, frame.f_back
    return level


def _torch(settings: CaptureSettings, models: dict[str, Any], open_writer: OpenWriter) -> Frontend:
    from numscope.capture.torch.frontend import TorchFrontend

    return TorchFrontend(settings, models, open_writer)


def _paddle(settings: CaptureSettings, models: dict[str, Any], open_writer: OpenWriter) -> Frontend:
    from numscope.capture.paddle.frontend import PaddleFrontend

    return PaddleFrontend(settings, models, open_writer)


_FRONTENDS = {"torch": _torch, "paddle": _paddle}


def _frontend(session: Capture, model: object) -> Frontend:
    """Return the frontend for the models' framework, or for the first that is imported where there is no model."""
    models = models_of(model)
    for framework in FRAMEWORKS:
        if framework.has_made(models.values()):
            return _FRONTENDS[framework.name](session.settings, models, session.open_writer)
    packages = {type(item).__module__.partition(".")[0] for item in models.values()}
    wrong = ", ".join(sorted(packages)) or "no framework"
    raise SettingsError(
        f"cannot tell what to capture (found {wrong}): pass an nn.Module or a paddle Layer, or import "
        f"{' or '.join(NAMES)} before ns.capture"
    )


def models_of(model: object) -> dict[str, object]:
    """Return the models by name: the name of a single model is empty."""
    if model is None:
        return {}
    if isinstance(model, dict):
        return {str(name): item for name, item in model.items()}
    if isinstance(model, (list, tuple)):
        return {str(index): item for index, item in enumerate(model)}
    return {"": model}
