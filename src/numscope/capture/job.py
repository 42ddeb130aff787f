"""A captured job: the script that `numscope run` was given, and the processes that it starts.

The first process runs the script itself. Others start on their own (torch.multiprocessing, torchrun, a launcher) and find
the settings in the environment; they begin to record when they have loaded a framework, and become a rank of the run when
they have something to write. Which process is which rank is known by then.
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
from collections.abc import Sequence
from multiprocessing import util
from pathlib import Path
from types import ModuleType
from typing import Any

from numscope.capture import launch
from numscope.core.errors import NumscopeError

VARIABLE = "NUMSCOPE_RUN"
FRAMEWORKS = ("torch", "paddle")


def run_script(command: Sequence[str], out: str, settings: dict[str, Any], also: dict[str, Any] | None = None) -> int:
    """Run a script under capture in this process; return its exit status.

    `also` maps functions ("package.module:function") to an argument each: they are called in every process of the job
    once its capture has begun.
    """
    script = launch.program(command)
    _check(out, settings)
    capture = _Job(out, settings, _announce(out, settings, also or {}), also or {})
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
    if "guard" not in settings and not _is_of(capture.place()):
        print(f"numscope: nothing was recorded into {out}{capture.why_nothing()}", file=sys.stderr)
    return 0


def _is_of(out: Path) -> bool:
    """Tell whether the run that is there is this job's: one that was to be overwritten may have stayed."""
    from numscope.store import rundir

    job = json.loads(os.environ[VARIABLE])["job"]
    return out.is_dir() and any(rundir.job_of(rank) == job for rank in rundir.rank_directories(out).values())


def watch_imports() -> None:
    """Capture this process, which a captured script has started, once it has loaded a framework."""
    order = json.loads(os.environ[VARIABLE])
    if os.environ.get("NUMSCOPE_PID") == str(os.getpid()):
        return  # the process that runs the script is captured already
    job = _Job(order["out"], order["settings"], order["job"], order.get("also") or {})
    atexit.register(job.close)
    _ImportWatch(job.start).__enter__()


def _forked(_: Any) -> None:
    """Capture a process that multiprocessing has forked anew: it may be a rank. A data loader's worker writes nothing."""
    from numscope.capture.session import abandon_active

    abandon_active()
    order = json.loads(os.environ[VARIABLE])
    job = _Job(order["out"], order["settings"], order["job"], order.get("also") or {})
    util.Finalize(None, job.close, exitpriority=100)  # a forked process runs no atexit functions
    job.start()


class _Job:
    """The capture of one process of the job."""

    def __init__(self, out: str, settings: dict[str, Any], job: str, also: dict[str, Any]) -> None:
        self._order = (out, settings, job)
        from numscope.store import rundir

        self._home = rundir.here()  # the script may have gone elsewhere when it loads a framework
        self._also = also
        self._capture: Any = None
        self._guard: Any = None
        self.refused: NumscopeError | None = None  # what is asked for cannot be done with this framework

    def place(self) -> Path:
        """Return where the run is."""
        from numscope.store import rundir

        return rundir.located(self._order[0], self._home)

    def start(self) -> None:
        """Begin to record; a framework has just been loaded."""
        try:
            self._start()
        except NumscopeError as error:
            self.refused = error
            raise

    def _start(self) -> None:
        if self._capture is None and "guard" in self._order[1]:
            from numscope.capture.guard import Guard, GuardSettings

            _, settings, job = self._order
            watch = GuardSettings.of(**settings["guard"], record=self.place())
            self._capture = self._guard = Guard(None, watch, job=job)
            self._guard.start()
        elif self._capture is None:
            from numscope.capture.session import Capture
            from numscope.core.settings import CaptureSettings

            _, settings, job = self._order
            self._capture = Capture(self.place(), None, CaptureSettings.of(**settings), job=job)
            self._capture.start()
            for place, argument in self._also.items():
                module, _, function = place.partition(":")
                getattr(importlib.import_module(module), function)(argument)

    def why_nothing(self) -> str:
        """Return why nothing was recorded, as the end of a sentence; empty where it was said already."""
        if self._capture is None:
            return f": the script loaded neither {' nor '.join(FRAMEWORKS)}"
        return str(self._capture.why_nothing())

    def finish(self) -> None:
        """The script has ended well: a guard may still find something on a device."""
        if self._guard is not None:
            self._guard.stop()

    def crashed(self, error: BaseException) -> None:
        """The script has ended in an error: a guard writes its record."""
        if self._guard is not None and getattr(error, "code", 1) not in (0, None):
            self._guard.crashed(error)

    def close(self) -> None:
        """Write what was recorded."""
        if self._capture is not None:
            self._capture.close()


class _ImportWatch(importlib.abc.MetaPathFinder):
    """Calls back when the first framework has been imported."""

    def __init__(self, callback: Any) -> None:
        self._callback = callback
        self._inside = False

    def __enter__(self) -> _ImportWatch:
        if any(name in sys.modules for name in FRAMEWORKS):
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
        """Find a framework as it would be found without us, and call back when it has been loaded."""
        if fullname not in FRAMEWORKS or self._inside:
            return None
        self._inside = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._inside = False
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            load = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                self.__exit__()
                self._callback()

            loader.exec_module = exec_module
        return spec


def _check(out: str, settings: dict[str, Any]) -> None:
    from numscope.capture import ranks
    from numscope.store import rundir

    rundir.check(Path(out), ranks.current()[0], bool(settings.get("overwrite")))


def _announce(out: str, settings: dict[str, Any], also: dict[str, Any]) -> str:
    """Tell the processes that the script will start what to record, through their environment; return the job's name."""
    from numscope.capture import bootstrap

    job = uuid.uuid4().hex
    order = {"out": os.path.abspath(out), "settings": settings, "job": job, "also": also}
    os.environ[VARIABLE] = json.dumps(order)
    os.environ["NUMSCOPE_PID"] = str(os.getpid())
    here = os.path.dirname(os.path.abspath(bootstrap.__file__))
    ours = os.path.dirname(os.path.dirname(os.path.dirname(here)))  # so that a child finds numscope where we did
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = [here, *[item for item in known if item and item != here]]
    if ours not in path and ours in sys.path:
        path.append(ours)
    os.environ["PYTHONPATH"] = os.pathsep.join(path)
    return job


def _own_in_one_line(usual: Any) -> Any:
    """Return how warnings are shown: ours, which are about no line of the user's, without a line of code."""

    def shown(message: Any, category: Any, filename: str, lineno: int, line: str | None = None) -> str:
        if str(message).startswith("numscope"):
            return f"numscope: {str(message).removeprefix('numscope').lstrip(': ')}\n"
        return str(usual(message, category, filename, lineno, line))

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


def _status(code: Any) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    print(code, file=sys.stderr)
    return 1
