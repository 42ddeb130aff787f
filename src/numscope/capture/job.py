"""A captured job: the script that `numscope run` was given, and the processes that it starts.

The first process runs the script itself. Others start on their own (torch.multiprocessing, torchrun, a launcher) and find
the settings in the environment. They begin to record when they have loaded a framework, and become a rank of the run when
they have something to write; by then their rank is known.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import runpy
import sys
import traceback
import uuid
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from multiprocessing import util
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from numscope.capture import launch
from numscope.capture.frameworks import FRAMEWORKS, NAMES
from numscope.core.errors import NumscopeError
from numscope.core.json_value import Json
from numscope.core.settings import Keywords

if TYPE_CHECKING:
    from numscope.capture.guard import Guard
    from numscope.capture.session import Capture

VARIABLE = "NUMSCOPE_RUN"
FormatWarning = Callable[..., str]


@dataclass(frozen=True)
class Order:
    """The order to record, which all processes of a job find in their environment."""

    out: str
    settings: Keywords
    job: str  # its name
    also: dict[str, Json]  # functions to call besides, with an argument each

    @classmethod
    def from_environment(cls) -> Order:
        """Return the order of the job that started this process."""
        members = json.loads(os.environ[VARIABLE])
        return cls(members["out"], members["settings"], members["job"], members.get("also") or {})


def run_script(command: Sequence[str], out: str, settings: Keywords, also: dict[str, Json] | None = None) -> int:
    """Run a script under capture in this process; return its exit status.

    `also` maps functions ("package.module:function") to an argument each: they are called in every process of the job
    once its capture has begun.
    """
    script = launch.program(command)
    if "guard" not in settings:  # where its place is taken, a guard's record goes beside it
        _check(out, settings)
    order = Order(out, settings, uuid.uuid4().hex, also or {})
    _announce(order)
    capture = _Job(order)
    util.register_after_fork(capture, _forked)
    warnings.formatwarning = _own_in_one_line(warnings.formatwarning)
    try:
        with _ImportWatch(capture.start):
            script.run()
        capture.finish()
    except SystemExit as leaving:
        capture.crashed(leaving)
        return _status(leaving.code)
    except Exception as error:
        if error is capture.refused:  # no fault of the script's
            raise
        capture.crashed(error)
        return _show_like_python(error)
    finally:
        capture.close()
    if "guard" not in settings and not _holds_run_of(order.job, capture.directory()):
        print(f"numscope: nothing was recorded into {out}{capture.why_nothing()}", file=sys.stderr)
    return 0


def _holds_run_of(job: str, out: Path) -> bool:
    """Tell whether a directory holds the run of this job: a run that was to be overwritten may have stayed."""
    from numscope.store import rundir

    return out.is_dir() and any(rundir.job_of(rank) == job for rank in rundir.rank_directories(out).values())


def watch_imports() -> None:
    """Capture this process, which a captured script has started, once it has loaded a framework."""
    if os.environ.get("NUMSCOPE_PID") == str(os.getpid()):
        return  # the process that runs the script is captured already
    job = _Job(Order.from_environment())
    atexit.register(job.close)
    _close_with_process(job)
    _ImportWatch(job.start).__enter__()


def _forked(_: object) -> None:
    """Capture a process that multiprocessing has forked anew: it may be a rank. A data loader's worker writes nothing."""
    from numscope.capture.session import abandon_active

    abandon_active()
    job = _Job(Order.from_environment())
    _close_with_process(job)  # a forked process runs no atexit functions
    job.start()


def _close_with_process(job: _Job) -> None:
    """Close a process of multiprocessing while the exception that ends it is known, before it runs atexit functions."""
    util.Finalize(None, job.close, exitpriority=100)


class _Job:
    """The capture of one process of the job."""

    def __init__(self, order: Order) -> None:
        from numscope.store import rundir

        self._order = order
        self._home = rundir.here()  # the script may have changed the working directory when it loads a framework
        self._capture: Capture | None = None
        self._guard: Guard | None = None  # in place of a capture
        self.refused: NumscopeError | None = None  # the framework that was loaded cannot do as ordered

    def directory(self) -> Path:
        """Return the run's directory."""
        from numscope.store import rundir

        return rundir.located(self._order.out, self._home)

    def start(self) -> None:
        """Begin to record; a framework has just been loaded."""
        try:
            self._start()
        except NumscopeError as error:
            self.refused = error
            raise

    def _start(self) -> None:
        order = self._order
        if self._capture is not None or self._guard is not None:
            return
        if "guard" in order.settings:
            from numscope.capture.guard import Guard
            from numscope.core.settings import GuardSettings

            settings = GuardSettings.of(**order.settings["guard"], record=self.directory())
            self._guard = Guard(None, settings, job=order.job)
            self._guard.start()
        else:
            from numscope.capture.session import Capture
            from numscope.core.settings import CaptureSettings

            self._capture = Capture(self.directory(), None, CaptureSettings.of(**order.settings), job=order.job)
            self._capture.start()
            for name, argument in order.also.items():
                module, _, function = name.partition(":")
                getattr(importlib.import_module(module), function)(argument)

    def why_nothing(self) -> str:
        """Return why nothing was recorded, as the end of a sentence; empty where the user was told already."""
        if self._capture is None:
            return f": the script loaded neither {' nor '.join(NAMES)}"
        return self._capture.why_nothing()

    def finish(self) -> None:
        """End a script that ran to its end: the guard looks at what is still on a device."""
        if self._guard is not None:
            self._guard.stop()

    def crashed(self, error: BaseException) -> None:
        """Tell the capture, or the guard, that the script has ended in an error: it goes into the record."""
        if getattr(error, "code", 1) in (0, None):
            return
        if self._capture is not None:
            self._capture.crashed(error)
        if self._guard is not None:
            self._guard.crashed(error)

    def close(self) -> None:
        """Write the rest of the record, and close it."""
        if self._capture is not None:
            self._capture.close()
        if self._guard is not None:
            self._guard.close()


class _ImportWatch(importlib.abc.MetaPathFinder):
    """Calls back when the first framework has been imported."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._inside = False

    def __enter__(self) -> _ImportWatch:
        if any(framework.is_imported() for framework in FRAMEWORKS):
            self._callback()
        else:
            sys.meta_path.insert(0, self)
        return self

    def __exit__(self, *_: object) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find a framework as Python would without this finder, and call back when it has been loaded."""
        if fullname not in NAMES or self._inside:
            return None
        self._inside = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._inside = False
        if spec is not None and spec.loader is not None:
            loader = spec.loader
            load = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                self.__exit__()
                self._callback()

            loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _check(out: str, settings: Keywords) -> None:
    from numscope.capture import ranks
    from numscope.store import rundir

    rundir.check(Path(out), ranks.current()[0], bool(settings.get("overwrite")))


def _announce(order: Order) -> None:
    """Put the order into the environment of the processes that the script will start."""
    from numscope.capture import bootstrap

    os.environ[VARIABLE] = json.dumps(asdict(replace(order, out=os.path.abspath(order.out))))
    os.environ["NUMSCOPE_PID"] = str(os.getpid())
    here = os.path.dirname(os.path.abspath(bootstrap.__file__))
    ours = os.path.dirname(os.path.dirname(os.path.dirname(here)))  # a child finds numscope where this process did
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = [here, *[item for item in before if item and item != here]]
    if ours not in path and ours in sys.path:
        path.append(ours)
    os.environ["PYTHONPATH"] = os.pathsep.join(path)


def _own_in_one_line(usual: FormatWarning) -> FormatWarning:
    """Return a formatter that shows numscope's own warnings in one line: they are about no line of the user's code."""

    def shown(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        if str(message).startswith("numscope"):
            return f"numscope: {str(message).removeprefix('numscope').lstrip(': ')}\n"
        return usual(message, category, filename, lineno, line)

    return shown


def _show_like_python(error: Exception) -> int:
    """Print the script's own error as Python does, without our frames, and return Python's status for it."""
    own = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
    frames = []
    trace = error.__traceback__
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith((own, runpy.__file__, "<frozen runpy>")):
            frames.append(trace)
        trace = trace.tb_next
    for frame, following in zip(frames, [*frames[1:], None]):
        frame.tb_next = following
    traceback.print_exception(type(error), error, frames[0] if frames else None)
    return 1


def _status(code: object) -> int:
    """Return the exit status of `sys.exit(code)`, and print a code that is a message, as Python does."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    print(code, file=sys.stderr)
    return 1
