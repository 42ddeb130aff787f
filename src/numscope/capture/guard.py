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
import difflib
import os
import signal
import sys
import threading
import warnings
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from numscope.capture import ranks
from numscope.capture.session import models_of
from numscope.capture.sites import is_user
from numscope.core.errors import NonFiniteError, SettingsError
from numscope.core.report import Origin
from numscope.store import manifest, rundir
from numscope.store.writer import RunWriter

RECORD = "numscope-guard"
_RUNNING: weakref.WeakSet[Guard] = weakref.WeakSet()


@dataclass(frozen=True)
class GuardSettings:
    """Every field is an argument of `ns.guard`."""

    max_hits: int = 1  # the origin at which the guard acts; those before it are warnings
    action: str = "raise"  # "raise", "warn": go on, "stop": take the guard away and go on
    level: str = "mix"  # "module": looks at modules alone, and at less; "api" and "mix" at every call
    latency: int | None = None  # on a device: wait for the flags after so many calls; None: read them as they come
    allow: tuple[str, ...] = ()  # calls or modules whose non-finite results are meant, by name or pattern
    record: str | os.PathLike[str] | None = RECORD  # the run to write when it strikes; None: write nothing
    calls: int = 64  # how many calls the record holds
    memory: int | None = None  # bytes that the record may keep alive; None: 256 MiB, on a device 5 % of it at most
    deferred: bool = False  # read the host's flags late too, as a device's
    scaled: bool = False  # a loss scale of the user's own: gradients count when an optimizer takes them

    def __post_init__(self) -> None:
        if self.action not in ("raise", "warn", "stop"):
            raise SettingsError(f"action={self.action!r} is not valid: one of raise, warn, stop")
        if self.level not in ("module", "api", "mix"):
            raise SettingsError(f"level={self.level!r} is not valid for a guard: one of module, api, mix")
        if self.max_hits < 1 or self.calls < 1:
            raise SettingsError("max_hits and calls must be 1 or more")
        if self.latency is not None and self.latency < 0:
            raise SettingsError(f"latency={self.latency}: give a number of calls, 0 or more, or None")

    @classmethod
    def of(cls, **values: Any) -> GuardSettings:
        """Return settings from keyword values; an unknown key is an error that names the nearest valid one."""
        known = {field.name for field in fields(cls)}
        for key in values:
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                hint = f": did you mean {near[0]!r}?" if near else f": valid are {', '.join(sorted(known))}"
                raise SettingsError(f"unknown guard setting {key!r}{hint}")
        allow = values.get("allow", ())
        values["allow"] = (allow,) if isinstance(allow, str) else tuple(allow or ())
        return cls(**values)


def guard(model: Any = None, max_hits: int = 1, **settings: Any) -> Guard:
    """Return a watch for NaN and infinity: a context manager; see GuardSettings for the rest of the arguments."""
    return Guard(model, GuardSettings.of(max_hits=max_hits, **settings))


class Guard:
    """Watches every call, forward and backward, and acts at the `max_hits`-th origin."""

    def __init__(self, model: Any, settings: GuardSettings, *, job: str = "") -> None:
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
        self._status: Any = None  # with which sys.exit was called
        self._told = 0
        self._missing = 0  # tensors of the origin that are not in the record
        self._failed = ""  # why there is no record
        self._restore: list[Any] = []
        self._frontend = _frontend(self, models_of(model))

    # The user's side ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to watch."""
        if self._running or self._tripped:
            return
        self._running = True
        _RUNNING.add(self)
        self._frontend.judge.rank, self._frontend.judge.world = ranks.current()
        self._frontend.judge.scaled = self._frontend.judge.always_scaled = self.settings.scaled
        self._frontend.start()
        self._catch_exits()

    def stop(self) -> None:
        """Judge what is still on a device, and undo everything."""
        if not self._running:
            return
        try:
            if not self._tripped:
                self._frontend.finish()
                self._tell_inherited()
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
        if not self._running or self.path is not None or isinstance(error, NonFiniteError) or _ends_well(error):
            return
        self._error = error
        with contextlib.suppress(Exception):
            self._frontend.finish()
        if self.path is None:
            self._write(None, why or f"{type(error).__name__}: {error}")

    def found(self, strike: Any) -> None:
        """Take an origin; act if it is the last one that may be."""
        origin: Origin = strike.origin
        if self._tripped:
            return
        self.origins.append(origin)
        last = len(self.origins) >= self.settings.max_hits
        if last or self.settings.action == "warn":
            self._write(strike, origin.reason)
        if not last or self.settings.action == "warn":
            _warn(self._message(origin, line=False), origin)
        if not last:
            return
        self._tripped = True
        self._frontend.watch.on = False
        if self.settings.action == "raise" and self._error is None:
            raise NonFiniteError(self._message(origin), origin.to_dict())
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
        told: dict[str, Any] = {"origin": self.origins[-1].to_dict() if self.origins else None, "reason": self._reason}
        told["skipped_steps"] = self.skipped_steps
        path = _free(rundir.located(self.settings.record or RECORD, self._home), rank)
        writer = RunWriter(path, rank=rank, manifest={**facts, "job": self._job, "guard": told})
        self.path = path
        return writer

    def optimizer_stepped(self) -> None:
        """End the step with its optimizer."""
        self._next_step()
        self._counted = True

    def skipped(self) -> None:
        """A loss scaler has skipped a step."""
        self.skipped_steps.append(self._step)
        self._next_step()
        self._counted = True

    def _next_step(self) -> None:
        self._step += 1
        self._frontend.new_step(self._step)
        self._tell_inherited()

    def _tell_inherited(self) -> None:
        """Say once that another rank's values came in: that rank knows where they were born."""
        calls = self._frontend.judge.inherited_ranks
        if len(calls) > self._told == 0:
            self._told = len(calls)
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

    def _write(self, strike: Any, reason: str) -> None:
        """Write the record; a fault of ours must not hide the origin."""
        if self.settings.record is None or self.path is not None:
            return
        self._reason = reason
        on, self._frontend.watch.on = self._frontend.watch.on, False
        try:
            self._missing = self._frontend.write(strike)
        except Exception as error:
            self.path, self._failed = None, str(error)
            if strike is None:  # nothing else will tell
                _warn(f"numscope could not write the guard's record: {error}")
        finally:
            self._frontend.watch.on = on

    def forked(self) -> None:
        """This is a child process, a data loader's worker: what it does is its parent's concern."""
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

        def excepthook(kind: Any, error: Any, trace: Any) -> None:
            self.crashed(error)
            hook(kind, error, trace)

        sys.excepthook = excepthook
        self._restore.append(lambda: setattr(sys, "excepthook", hook) if sys.excepthook is excepthook else None)
        leave = sys.exit

        def exit_(status: Any = None, /) -> NoReturn:
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
        """The job ends and nobody has stopped the guard: write the record, or judge what is still on a device."""
        self.crashed(SystemExit(self._status))
        self._error = SystemExit()
        with contextlib.suppress(Exception):
            self.stop()

    def _catch(self, number: signal.Signals) -> None:
        before = signal.getsignal(number)
        if before == signal.SIG_IGN:
            return  # it does not end the job

        def terminated(received: int, frame: Any) -> None:
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


def _frontend(owner: Guard, models: dict[str, Any]) -> Any:
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
