"""Run a script, plainly or under `numscope run`, in a child that is forked after torch was imported.

Importing torch takes longer than any case runs. The child calls the same `main` that the command does. Cases that start
ranks of their own are started as real commands, because their workers import the script again.
"""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.zoo.catalogue import Case

ROOT = Path(__file__).parents[2]


class ScriptError(Exception):
    """A script failed; the message has the end of its output."""


def plain(case: Case, variant: str, log: Path) -> list[float]:
    """Run one variant without numscope and return the values it printed."""
    arguments = [str(case.script), "--variant", variant]
    if case.ranks:
        _spawn([sys.executable, *arguments], log)
    else:
        _fork(lambda: _as_script(arguments), log)
    return _values(log)


def captured(case: Case, variant: str, run: Path, options: Sequence[str], log: Path) -> list[float]:
    """Capture one variant into a run and return the values it printed."""
    arguments = ["run", *options, "--out", str(run), "--", str(case.script), "--variant", variant]
    caches = log.with_suffix(".inductor")  # a graph that comes from a cache cannot be looked into
    shutil.rmtree(caches, ignore_errors=True)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(caches)
    if case.ranks:
        _spawn([sys.executable, "-m", "numscope", *arguments], log)
    else:
        _fork(lambda: _as_command(arguments), log)
    return _values(log)


def _as_script(arguments: list[str]) -> int:
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name="__main__")
    return 0


def _as_command(arguments: list[str]) -> int:
    from numscope.__main__ import main

    sys.argv = ["numscope", *arguments]
    return main(arguments)


def environment() -> dict[str, str]:
    """Return the environment of a script: the repository's packages, and one thread."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def _spawn(command: list[str], log: Path) -> None:
    with log.open("wb") as out, log.with_suffix(".err").open("wb") as err:
        status = subprocess.run(command, stdout=out, stderr=err, env=environment(), check=False).returncode
    _check(status, log)


def _fork(job: Callable[[], int], log: Path) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        status = 70
        try:
            for stream, path in ((1, log), (2, log.with_suffix(".err"))):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
            os.environ.update(environment())
            status = job()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    _check(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), log)


def _check(status: int, log: Path) -> None:
    if status:
        text = log.with_suffix(".err").read_text(errors="replace")
        raise ScriptError(f"{log.stem} ended with status {status}: {text[-1500:]}")


def _values(log: Path) -> list[float]:
    for line in reversed(log.read_text(errors="replace").splitlines()):
        if line.startswith("["):
            return [float(value) for value in json.loads(line)]
    raise ScriptError(f"{log.stem} printed no values")


def in_parallel(jobs: int, tasks: Sequence[Callable[[], dict[str, Any]]], folder: Path) -> Iterator[dict[str, Any]]:
    """Run each task in a process of its own, a few at a time, and yield the results as they come."""
    waiting, running = list(enumerate(tasks)), dict[int, Path]()
    while waiting or running:
        while waiting and len(running) < jobs:
            number, task = waiting.pop(0)
            path = folder / f"task{number}.json"
            running[_start(task, path)] = path
        child, status = os.wait()
        path = running.pop(child)
        if status:
            raise ScriptError(f"{path}: a task ended with status {os.waitstatus_to_exitcode(status)}")
        yield json.loads(path.read_text())


def _start(task: Callable[[], dict[str, Any]], path: Path) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            path.write_text(json.dumps(task()))
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    return child
