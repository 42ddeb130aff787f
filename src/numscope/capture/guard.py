"""The guard: overflow and NaN, caught where they are born.

    with ns.guard(model):
        for batch in loader:
            train_step(batch)

    numscope.NonFiniteError: Functional.linear.3.forward turned finite inputs into 12 +inf of 8,192 elements
      module blocks.0.mlp.down, slot output.0, step 3, rank 0
      model.py:41 in forward
        x = self.down(F.relu(self.up(x)))
      the record is in numscope-guard: numscope check numscope-guard

docs/howto/guard.md shows the ways to use it; docs/explanation/non-finite.md what counts as an origin.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn, Protocol

from numscope.capture import ranks
from numscope.capture.session import models_of
from numscope.capture.sites import is_user
from numscope.core.errors import InexactError, NonFiniteError, SettingsError
from numscope.core.report import Origin
from numscope.core.settings import GUARD_RECORD, GuardSettings
from numscope.store import manifest, rundir
from numscope.store.writer import RunWriter

_RUNNING: weakref.WeakSet[Guard] = weakref.WeakSet()


class _Watch(Protocol):
    """The hooks and modes that see the job's calls."""

    on: bool


class _Frontend(Protocol):
    """A framework's side of the guard."""

    name: str

    @property
    def watch(self) -> _Watch:
        """The hooks and modes that see the job's calls."""

    @property
    def arrived_through(self) -> list[str]:
        """The calls through which another rank's values came in."""

    def start(self) -> None:
        """Begin to watch."""

    def stop(self) -> None:
        """Undo everything that start did."""

    def finish(self) -> None:
        """Judge all that is still on a device."""

    def new_step(self, step: int) -> None:
        """End a step, and begin the one of this number."""

    def write_last_calls(self) -> int:
        """Write a record without an origin."""

    def devices(self) -> list[str]:
        """Return the devices of the models' parameters."""


def guard(model: object = None, max_hits: int = 1, **settings: Any) -> Guard:
    """Return a watch for NaN and infinity: a context manager; see GuardSettings for the rest of the arguments."""
    return Guard(model, GuardSettings.of(max_hits=max_hits, **settings))


class Guard:
    """Watches every call, forward and backward, and acts at the `max_hits`-th origin."""

    def __init__(self, model: object, settings: GuardSettings, *, job: str = "") -> None:
        self.settings = settings
        self.origins: list[Origin] = []
        self.skipped_steps: list[int] = []  # steps that a loss scaler skipped
        self._home = rundir.here()  # from which the record's relative path is meant
        self.path: Path | None = None  # the record, once it is written
        self._step = 0
        self._counted = False  # the optimizer has ended this step already
        self._running = False
        self._tripped = False
        self._job = job
        self._error: BaseException | None = None
        self._status: str | int | None = None  # with which sys.exit was called
        self._told = False  # that another rank's values came in
        self._missing = 0  # tensors of the origin that are not in the record
        self._failed = ""  # why there is no record
        self._reason = ""  # of the record
        self._restore: list[Callable[[], object]] = []
        self._frontend = _frontend(self, models_of(model))

    # The user's side ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to watch."""
        if self._running or self._tripped:
            return
        self._running = True
        _RUNNING.add(self)
        self._frontend.start()
        self._catch_exits()

    def stop(self) -> None:
        """Judge what is still on a device, and undo everything."""
        if not self._running:
            return
        try:
            if not self._tripped:
                self._frontend.finish()
                self._tell_of_other_ranks()
        finally:
            self._leave()

    def step(self) -> None:
        """End one step; not needed where an optimizer steps once in each."""
        if self._counted:
            self._counted = False
        elif self._running:
            self._next_step()

    def __enter__(self) -> Guard:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or _ends_well(error):
            self.stop()
        else:
            self.crashed(error)
            self._leave()

    # Ours -----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Undo everything; what is still on a device is not judged."""
        if self._running:
            self._leave()

    def crashed(self, error: BaseException | None, why: str = "") -> None:
        """Write the record of a job that ends in an error: first what the device still knows."""
        if (
            not self._running
            or self.path is not None
            or isinstance(error, (NonFiniteError, InexactError))
            or _ends_well(error)
        ):
            return
        self._error = error
        with contextlib.suppress(Exception):
            self._frontend.finish()
        if self.path is None:
            self._write(self._frontend.write_last_calls, why or f"{type(error).__name__}: {error}")
            if self._failed:  # nothing else will tell
                _warn(f"numscope could not write the guard's record: {self._failed}")

    def found(self, origin: Origin, write_record: Callable[[], int]) -> None:
        """Take an origin; act if it is the last one that may be.

        `write_record` returns how many of the origin's tensors had to be let go before.
        """
        if self._tripped:
            return
        self.origins.append(origin)
        last = len(self.origins) >= self.settings.max_hits
        if last or self.settings.action == "warn":
            self._write(write_record, origin.reason)
        if not last or self.settings.action == "warn":
            _warn(self._message(origin, line=False), origin)
        if not last:
            return
        self._tripped = True
        self._frontend.watch.on = False
        if self.settings.action == "raise" and self._error is None:
            kind = InexactError if origin.mechanism == "device" else NonFiniteError
            raise kind(self._message(origin), origin.to_dict())
        if self.settings.action == "raise":  # the job ends already
            _warn(self._message(origin, line=False), origin)
        if self.settings.action == "stop":
            _warn(f"{self._message(origin, line=False)}\n  the guard stops here", origin)

    def open_writer(self) -> RunWriter:
        """Open the record's directory."""
        rank, world = ranks.current()
        facts = manifest.collect(
            framework=self._frontend.name,
            devices=self._frontend.devices(),
            settings={"level": self.settings.level, "keep": "stats", "guard": True},
            world_size=world,
        )
        told = {
            "origin": self.origins[-1].to_dict() if self.origins else None,
            "reason": self._reason,
            "skipped_steps": self.skipped_steps,
        }
        path = _free(rundir.located(self.settings.record or GUARD_RECORD, self._home), rank)
        writer = RunWriter(path, rank=rank, manifest={**facts, "job": self._job, "guard": told})
        self.path = path
        return writer

    def optimizer_stepped(self) -> None:
        """End the step with its optimizer."""
        self._next_step()
        self._counted = True

    def skipped(self) -> None:
        """End a step that a loss scaler has skipped."""
        self.skipped_steps.append(self._step)
        self._next_step()
        self._counted = True

    def _next_step(self) -> None:
        self._step += 1
        self._frontend.new_step(self._step)
        self._tell_of_other_ranks()

    def _tell_of_other_ranks(self) -> None:
        """Say once that another rank's values came in: that rank knows where they were made."""
        calls = self._frontend.arrived_through
        if calls and not self._told:
            self._told = True
            _warn(
                f"values that are not finite came in from another rank through {calls[0]}: its guard names their origin"
            )

    def _message(self, origin: Origin, line: bool = True) -> str:
        """Say it all; a warning shows the line by itself."""
        where = f"module {origin.module}, " if origin.module else ""
        text = f"{origin.reason}\n  {where}slot {origin.details['slot']}, step {origin.step}, rank {origin.rank}"
        if origin.source and line:
            text += (
                f"\n  {origin.source.file}:{origin.source.line} in {origin.source.function}\n    {origin.source.code}"
            )
        if self.path is None:
            return f"{text}\n  the record could not be written: {self._failed}" if self._failed else text
        hint = ", without all of its tensors, which latency=1 would keep" if self._missing else ""
        return f"{text}\n  the record is in {self.path}{hint}: numscope check {self.path}"

    def _write(self, write_record: Callable[[], int], reason: str) -> None:
        """Write the record; a fault of ours must not hide the origin."""
        if self.settings.record is None or self.path is not None:
            return
        self._reason, self._failed = reason, ""
        on, self._frontend.watch.on = self._frontend.watch.on, False
        try:
            self._missing = write_record()
        except Exception as error:
            self.path, self._failed = None, str(error) or type(error).__name__
        finally:
            self._frontend.watch.on = on

    def forked(self) -> None:
        """Watch no longer: this is a child process, such as a data loader's worker, and its parent's concern."""
        self._running = self._frontend.watch.on = False

    def _leave(self) -> None:
        self._running = False
        _RUNNING.discard(self)
        self._frontend.stop()
        while self._restore:
            self._restore.pop()()

    def _catch_exits(self) -> None:
        """Write the record when the job ends in an error that no `with` block sees, or is told to end."""
        hook = sys.excepthook

        def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            self.crashed(error)
            hook(kind, error, trace)

        sys.excepthook = excepthook
        self._restore.append(lambda: setattr(sys, "excepthook", hook) if sys.excepthook is excepthook else None)
        leave = sys.exit

        def exit_(status: str | int | None = None, /) -> NoReturn:
            self._status = status  # nobody else is told of it, where there is no `with`
            leave(status)

        sys.exit = exit_
        self._restore.append(lambda: setattr(sys, "exit", leave) if sys.exit is exit_ else None)
        atexit.register(self._at_exit)
        self._restore.append(lambda: atexit.unregister(self._at_exit))
        if threading.current_thread() is threading.main_thread():
            for name in ("SIGTERM", "SIGHUP"):
                if hasattr(signal, name):
                    self._catch(signal.Signals[name])

    def _at_exit(self) -> None:
        """Write the record, or judge what is still on a device: the job ends and nobody has stopped the guard."""
        self.crashed(SystemExit(self._status))
        self._error = SystemExit()
        with contextlib.suppress(Exception):
            self.stop()

    def _catch(self, number: signal.Signals) -> None:
        before = signal.getsignal(number)
        if before == signal.SIG_IGN:
            return  # it does not end the job

        def terminated(received: int, frame: FrameType | None) -> None:
            self.crashed(None, f"the job was told to end ({signal.Signals(received).name})")
            if not callable(before):
                self._leave()
                os.kill(os.getpid(), received)
                return
            before(received, frame)  # the user's own, which may let the job go on
            self.path, self._error = None, None

        signal.signal(number, terminated)

        def restore() -> None:
            if signal.getsignal(number) is terminated:
                signal.signal(number, before if before is not None else signal.SIG_DFL)

        self._restore.append(restore)


def _ends_well(error: BaseException | None) -> bool:
    return isinstance(error, SystemExit) and error.code in (0, None)


def _frontend(owner: Guard, models: dict[str, Any]) -> _Frontend:
    torch = sys.modules.get("torch")
    if torch is not None and all(isinstance(item, torch.nn.Module) for item in models.values()):
        from numscope.capture.torch.guard.frontend import TorchGuard

        return TorchGuard(
            owner.settings, models, owner.found, owner.open_writer, owner.optimizer_stepped, owner.skipped
        )
    paddle = sys.modules.get("paddle")
    if paddle is not None and (torch is None or any(isinstance(item, paddle.nn.Layer) for item in models.values())):
        raise SettingsError("the guard watches torch alone: for Paddle capture a run, and ask `numscope check RUN`")
    raise SettingsError("cannot tell what to guard: pass an nn.Module, or import torch before ns.guard")


def _warn(text: str, origin: Origin | None = None) -> None:
    """Warn at the origin's line, or at the user's line that runs now."""
    if origin is not None and origin.source is not None:
        warnings.warn_explicit(text, RuntimeWarning, origin.source.file, origin.source.line)
        return
    frame = sys._getframe()
    while frame.f_back is not None and not is_user(frame.f_code.co_filename):
        frame = frame.f_back
    warnings.warn_explicit(text, RuntimeWarning, frame.f_code.co_filename, frame.f_lineno)


def _free(path: Path, rank: int) -> Path:
    """Return the path, or the first of path-2, path-3 … that is nobody else's, and at which this rank has no record."""
    names: Iterable[Path] = (path if n == 1 else path.with_name(f"{path.name}-{n}") for n in range(1, 10_000))
    return next(item for item in names if not ((item / f"rank{rank}").exists() or _is_taken(item)))


def _is_taken(path: Path) -> bool:
    """Tell whether a path is a file, or a directory with something in it that is no run's."""
    if not path.is_dir():
        return path.exists()
    found = [item.name for item in path.iterdir()]
    return bool(found) and not any(name.startswith(("manifest.json", ".manifest.json", "rank")) for name in found)


def _after_fork() -> None:
    for item in list(_RUNNING):
        item.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
