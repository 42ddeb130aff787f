"""The parts of `make bench`: each runs its workers as processes of their own and gives rows for one results file.

A row has at least `what` and `numscope`, and `msprobe` where the peer was measured beside it; times are seconds.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.timing import written

Row = dict[str, Any]

# numscope's mode, and the peer's that records the same calls
PEER_MODE = {
    "module stats": ("statistics", "L0"),
    "api stats": ("statistics", "L1"),
    "mix stats": ("statistics", "mix"),
    "mix tensors": ("tensor", "mix"),
}
# model: (numscope's modes, rounds, steps in each, steps of the peer)
CAPTURE: dict[str, tuple[list[str], int, int, int]] = {
    "TinyLM, 2 layers": (
        ["module stats", "api stats", "mix stats", "aten stats", "mix structure", "mix tensors"],
        *(6, 10, 12),
    ),
    "TinyLM, 12 layers": (["module stats", "mix stats", "aten stats", "mix tensors"], 4, 5, 5),
    "Medium": (["module stats", "mix stats", "aten stats", "mix tensors"], 3, 4, 3),
}
IDLE_ROUNDS = {"TinyLM, 2 layers": 30, "Medium": 4}
PEER_ON_ALL = {"mix stats", "mix tensors"}  # the other modes of the peer only on the first model
COMPARE = [
    ("TinyLM, 12 layers", "stats"),
    ("TinyLM, 12 layers", "tensors"),
    ("Medium", "tensors"),
    ("TinyLM, 56 layers", "stats"),
]


@dataclass(frozen=True)
class Bench:
    """Where to work, the peer's interpreter (None: numscope alone), and whether this only tries the bench itself."""

    scratch: Path
    msprobe: Path | None
    quick: bool = False

    def worker(self, python: str | Path, module: str, *words: object) -> Row:
        """The line of JSON that a worker prints; a worker that fails gives {"error": its last line}."""
        command = [str(python), "-m", f"bench.{module}", *map(str, words)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=180)
        except subprocess.TimeoutExpired:
            return {"error": "did not end within 180 s"}
        if done.returncode != 0:
            return {"error": last_line(done)}
        result: Row = json.loads(done.stdout.strip().splitlines()[-1])
        return result

    def folder(self, name: str) -> Path:
        path = self.scratch / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        return path


def capture(bench: Bench) -> list[Row]:
    """The captured step over the plain step, and what it writes."""
    rows: list[Row] = []
    for model, (modes, rounds, steps, peer_steps) in CAPTURE.items():
        if bench.quick and rows:
            break
        if bench.quick:
            rounds, steps, peer_steps = 1, 2, 1
        say(f"capture: {model}")
        ours = bench.worker(
            *(sys.executable, "capture_worker", model, json.dumps([mode.split() for mode in modes])),
            *("--rounds", rounds, "--steps", steps, "--idle", 1 if bench.quick else IDLE_ROUNDS.get(model, 0)),
            *("--out", bench.folder("numscope")),
        )
        first = not rows
        for mode in modes:
            row: Row = {"what": f"{model}: {mode}", "model": model, "mode": mode}
            row["numscope"] = ours.get("modes", {}).get(mode, {"error": ours.get("error", "not measured")})
            if bench.msprobe and mode in PEER_MODE and (first or mode in PEER_ON_ALL):
                task, level = PEER_MODE[mode]
                say(f"capture: {model}, msprobe {task} {level}")
                out = bench.folder("msprobe")
                row["msprobe"] = bench.worker(
                    bench.msprobe, "peer_worker", model, task, level, "--steps", peer_steps, "--out", out
                )
            rows.append(row)
        for what, ratio in ours.get("idle", {}).items():
            rows.append({"what": f"{model}: {what}", "model": model, "mode": what, "numscope": {"ratio": ratio}})
            peer = next((r["msprobe"] for r in rows if r["model"] == model and r["mode"] == "mix stats"), {})
            if what in peer:
                rows[-1]["msprobe"] = {"ratio": peer[what] / peer["plain"]}
    return rows


def compare(bench: Bench) -> list[Row]:
    """Two runs of one step, compared from the command line: wall time, start of the program included."""
    rows: list[Row] = []
    for model, keep in COMPARE[:1] if bench.quick else COMPARE:
        say(f"compare: {model}, {keep}")
        out = bench.folder("compare")
        made = bench.worker(sys.executable, "keep_worker", model, keep, "--out", out)
        row: Row = {"what": f"compare {model}: {keep}", "model": model, "mode": keep}
        row["numscope"] = made
        if "error" not in made:
            command = [sys.executable, "-m", "numscope", "compare", str(out / "target"), str(out / "reference")]
            row["numscope"] = {**made, **timed(command, 3, answers=(0, 1)), "bytes": written(out)["bytes"]}
        if bench.msprobe and model != "TinyLM, 56 layers":
            out = bench.folder("msprobe")
            task = "tensor" if keep == "tensors" else "statistics"
            dumped = bench.worker(bench.msprobe, "peer_worker", model, task, "mix", "--steps", 1, "--out", out)
            row["msprobe"] = dumped
            if "error" not in dumped:
                program = str(bench.msprobe.with_name("msprobe"))
                paths = ["--target_path", str(out / "step1"), "--golden_path", str(out / "step0")]
                result = str(bench.folder("msprobe-result"))
                row["msprobe"] = timed([program, "compare", *paths, "--output_path", result], 1)
        rows.append(row)
    return rows


def start(bench: Bench) -> list[Row]:
    """What the program and the import cost before any work."""
    say("start of the program")
    bare = timed([sys.executable, "-c", "pass"], 9)["seconds"]
    rows: list[Row] = []
    for what, words in (
        ("numscope --help", ["-m", "numscope", "--help"]),
        ("import numscope", ["-c", "import numscope"]),
    ):
        row: Row = {"what": what, "model": "", "mode": what, "numscope": {**timed([sys.executable, *words], 9)}}
        row["numscope"]["bare interpreter"] = bare
        if bench.msprobe and what.endswith("--help"):
            row["msprobe"] = timed([str(bench.msprobe.with_name("msprobe")), "--help"], 3)
        rows.append(row)
    return rows


def growth(bench: Bench) -> list[Row]:
    """The cost of a call as steps grow."""
    say("growth")
    found = bench.worker(sys.executable, "growth_worker", "--out", bench.folder("growth"))
    return [{"what": "growth", "model": "", "mode": "growth", "numscope": found}]


def guard(bench: Bench) -> list[Row]:
    """The step under the guard over the plain step; the peer's statistics of all calls beside it."""
    model = "TinyLM, 2 layers"
    say("guard")
    ours = bench.worker(sys.executable, "guard", model)
    rows: list[Row] = []
    for level in ("mix", "module"):
        found = ours.get(level, {"error": ours.get("error", "not measured")})
        rows.append({"what": f"{model}: guard, {level}", "model": model, "mode": f"guard {level}", "numscope": found})
    if bench.msprobe:
        say("guard: msprobe statistics mix")
        out = bench.folder("msprobe")
        rows[0]["msprobe"] = bench.worker(
            bench.msprobe, "peer_worker", model, "statistics", "mix", "--steps", 12, "--out", out
        )
    return rows


PARTS = {"start": start, "capture": capture, "guard": guard, "compare": compare, "growth": growth}


def timed(command: list[str], repeats: int, answers: tuple[int, ...] = (0,)) -> Row:
    """The median wall time of a command; a status that is no answer, or a traceback, is an error."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True)
        times.append(time.perf_counter() - begin)
        if done.returncode not in answers or "Traceback" in done.stderr:
            return {"error": last_line(done)}
    return {"seconds": median(times)}


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """What a failed process said last, without the folders of this machine."""
    lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    return re.sub(r"(?<![\w.])/\S*/", "", lines[-1])


def say(what: str) -> None:
    print(f"  {what} …", file=sys.stderr, flush=True)
