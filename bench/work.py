"""The base of all parts of the bench: workers in processes of their own, wall times of commands, rows."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

Row = dict[str, Any]

# An installed program has its bytecode: let the first of several runs write it.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


@dataclass(frozen=True)
class Bench:
    """The working folder, the peer's interpreter (None: numscope alone), and whether this run only tries the bench."""

    scratch: Path
    msprobe: Path | None
    quick: bool = False

    def worker(self, python: str | Path, module: str, *words: object, limit: int = 240, compiled: bool = True) -> Row:
        """Return the line of JSON that a worker prints; a worker that fails gives {"error": its last line}."""
        command = [str(python), "-m", f"bench.{module}", *map(str, words)]
        environment = ENVIRONMENT if compiled else {**ENVIRONMENT, "NUMSCOPE_NATIVE": "0"}
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit, env=environment)
        except subprocess.TimeoutExpired:
            return {"error": f"did not end within {limit} s"}
        if done.returncode != 0:
            return {"error": last_line(done.stderr, done.returncode)}
        result: Row = json.loads(done.stdout.strip().splitlines()[-1])
        return result

    def own(self, module: str, *words: object, limit: int = 240, compiled: bool = True) -> Row:
        """Run a worker in numscope's environment, without its compiled functions if asked."""
        return self.worker(sys.executable, module, *words, limit=limit, compiled=compiled)

    def peer(self, model: str, task: str, level: str, steps: int, out: str = "msprobe") -> Row:
        """Run one mode of msprobe; its dump stays in the folder until the next."""
        if self.msprobe is None:
            return {}
        say(f"msprobe: {model}, {task} {level}")
        words = (model, task, level, "--steps", steps, "--out", self.folder(out))
        return self.worker(self.msprobe, "peer_worker", *words)

    def folder(self, name: str) -> Path:
        path = self.scratch / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        return path


def merged(results: list[Row]) -> Row:
    """Join several measurements of one thing: the median of every number, at any depth; errors go last."""
    right = [result for result in results if "error" not in result]
    if not right:
        return results[0] if results else {}
    merged_row: Row = {}
    for key, value in right[0].items():
        values = [result[key] for result in right if key in result]
        if isinstance(value, dict):
            merged_row[key] = merged(values)
        elif isinstance(value, float):
            merged_row[key] = median(values)
        else:
            merged_row[key] = value
    return merged_row


def timed(command: list[str], repeats: int, answers: tuple[int, ...] = (0,), limit: int = 600) -> Row:
    """Return wall time (median and least), processor time (least) and peak memory of a command that must not fail."""
    walls, processor, memory = [], [], 0
    for _ in range(repeats):
        begin = time.perf_counter()
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
        assert child.stderr is not None
        killer = _Killer(child, begin + limit)
        text = child.stderr.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        killer.cancel()
        walls.append(time.perf_counter() - begin)
        processor.append(usage.ru_utime + usage.ru_stime)
        memory = max(memory, usage.ru_maxrss)
        if child.returncode not in answers or "Traceback" in text:
            return {"error": last_line(text, child.returncode)}
    return {
        "seconds": median(walls),
        "least": min(walls),
        "processor": min(processor),
        "memory_mb": memory / 1024,
    }


class _Killer:
    """End a command that takes too long."""

    def __init__(self, child: subprocess.Popen[str], deadline: float) -> None:
        import threading

        self._timer = threading.Timer(max(0.0, deadline - time.perf_counter()), child.kill)
        self._timer.daemon = True
        self._timer.start()

    def cancel(self) -> None:
        self._timer.cancel()


def last_line(text: str, status: int) -> str:
    """Return the last words of a failed process, without the folders of this machine."""
    lines = text.strip().splitlines() or [f"exit status {status}"]
    return re.sub(r"(?<![\w.])/\S*/", "", lines[-1])


def numscope(*words: object) -> list[str]:
    """Return the program's command line."""
    return [sys.executable, "-m", "numscope", *map(str, words)]


def say(what: str) -> None:
    print(f"  {what} …", file=sys.stderr, flush=True)
