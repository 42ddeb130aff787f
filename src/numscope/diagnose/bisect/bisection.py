"""Bisect: fingerprints of everything, then the tensors of the suspects alone, then the diagnosis, in one command.

DIR/target, DIR/reference                 first pass: fingerprints
DIR/target-again, DIR/reference-again     does each command repeat itself?
DIR/target-tensors, DIR/reference-tensors second pass: the suspects' tensors, in the step where they are
DIR/target-lockstep, DIR/reference-lockstep where no fault shows, but could hide in rounding: all tensors of a step
DIR/target-on-cpu, DIR/target-float64     the proof: the target with the origin's operator elsewhere
DIR/report.json, DIR/test_origin.py       the answer, and a test that shows it
DIR/bisect.json                           the passes that are done: a second call goes on from there
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path

import pyarrow.compute as pc

from numscope.compare.comparison import Comparison, compare
from numscope.core.errors import CaptureError, SettingsError
from numscope.core.report import Origin, Report
from numscope.diagnose.bisect.axes import JobEnvironment
from numscope.diagnose.diagnosis import SUSPECTS, diagnose
from numscope.diagnose.explain.calls import MOST_TENSORS
from numscope.diagnose.intervene.proof import Proof, prove, reroutes, with_proofs
from numscope.diagnose.lockstep import Lockstep, results
from numscope.diagnose.recorded.differing_tensors import differing_tensors
from numscope.diagnose.recorded.paired_step import PairedStep, pair_step
from numscope.diagnose.recorded.shared_inputs import subgraphs_of
from numscope.diagnose.recorded.step_graph import StepGraph
from numscope.diagnose.recorded.subgraph import Subgraph
from numscope.diagnose.sharpened import is_coarse
from numscope.store import rundir

Tell = Callable[[str], None]
_MOST_NAMES = 4000
WINDOW_ON_DISK = 8 << 30  # bytes of both runs' tensors that lockstep keeps at once
_TO_PROVE = ("device", "precision", "unknown")  # a program that computes something else does so on the CPU too


@dataclass(frozen=True)
class Job:
    """One of the two commands."""

    name: str  # "target" or "reference"
    command: tuple[str, ...]  # the script and its arguments
    changes: JobEnvironment = field(default_factory=JobEnvironment)


def job(name: str, command: str, changes: JobEnvironment | None = None) -> Job:
    """Return a job from a command line, with or without `python` in front of the script."""
    words = shlex.split(command)
    if words and Path(words[0]).name.startswith("python"):
        words = words[1:]
    if not words:
        raise SettingsError(f"--{name} needs a command: --{name} 'train.py --steps 2'")
    return Job(name, tuple(words), changes or JobEnvironment())


class Bisection:
    """Runs each pass once, and records in DIR/bisect.json which are done."""

    def __init__(self, target: Job, reference: Job, out: Path, tell: Tell, options: tuple[str, ...] = ()) -> None:
        self._jobs = (target, reference)
        self._out = out
        self._tell = tell
        self._options = options
        self._seconds: list[float] = []
        self._passes = self._begun = 0
        out.mkdir(parents=True, exist_ok=True)
        self._state = self._load()

    def run(self, check: bool = True) -> tuple[Report, Comparison]:
        """Run the passes that are not done yet; return the diagnosed report and its comparison."""
        self._passes = 2 + 2 * check + 2
        for item in self._jobs:
            self._pass(item, item.name, ("--keep", "stats"), "fingerprints of everything")
        if check:
            for item in self._jobs:
                self._pass(item, f"{item.name}-again", ("--keep", "stats"), "does it repeat itself?")
                self._tell(f"     {self.repeats(item)}")
        coarse = compare(self._out / "target", self._out / "reference")
        if coarse.report.origin is None and is_coarse(coarse.report):
            return self._in_lockstep(coarse)
        if coarse.report.origin is None:
            told = coarse.report.reason if coarse.verdict in ("incomplete", "incomparable") else "nothing to look into"
            self._tell(f"     the two runs are {coarse.verdict}: {told}")
            return coarse.report, coarse
        origin = coarse.report.origin
        self._tell(f"     diverged at {origin.call}, step {origin.step}: now its tensors, and those around it")
        names = wanted_tensors(coarse)
        for item, wanted in zip(self._jobs, names):
            options = ["--keep", "stats", *(f"--tensors={name}" for name in wanted)]
            if not origin.call.startswith("Optimizer."):  # an optimizer's state is rebuilt from the steps before
                options += ["--steps", ",".join(map(str, sorted({s.step for s in _suspects(coarse)})))]
            if item.changes.inside:  # a graph that comes from a cache cannot be looked into
                options += ["--compiled", "inside"]
                caches = {"TORCHINDUCTOR_CACHE_DIR": str(self._out / "inductor")}
                shutil.rmtree(self._out / "inductor", ignore_errors=True)
                item = replace(item, changes=replace(item.changes, environment={**item.changes.environment, **caches}))
            self._pass(item, f"{item.name}-tensors", tuple(options), f"{len(wanted)} tensors of the suspects")
        fine = compare(self._out / "target-tensors", self._out / "reference-tensors")
        if fine.report.origin is None:
            fine = coarse  # the second run does not show the fault: the report says what could not be replayed
        self._tell("     replaying the suspects")
        return self._proven(diagnose(fine), coarse), fine

    def _in_lockstep(self, coarse: Comparison) -> tuple[Report, Comparison]:
        """Feed each call of the target the reference's inputs, a window of the first step after the other."""
        largest = coarse.report.resolution["largest"] if coarse.report.resolution else 0.0
        self._tell(f"     {coarse.verdict}, but a fault below {largest:.1g} could hide: now lockstep, call by call")
        row = coarse.calls.slice(0, 1).to_pylist()[0]
        windows = list(lockstep_windows(pair_step(coarse, row["step"], row["rank"])))
        self._passes += 2 * len(windows) - 2
        report, fine = coarse.report, coarse
        for number, window in enumerate(windows):
            folders = []
            for item, names in zip(self._jobs, window):
                keep = ("--keep", "tensors") if len(windows) == 1 else ("--keep", "stats")
                options = [*keep, *(f"--tensors={name}" for name in names if len(windows) > 1)]
                folder = f"{item.name}-lockstep{f'-{number}' if len(windows) > 1 else ''}"
                what = f"tensors of step {row['step']}, window {number + 1} of {len(windows)}"
                self._pass(item, folder, (*options, "--steps", str(row["step"])), what)
                folders.append(self._out / folder)
            fine = compare(*folders, allow_incomplete=True)
            report = diagnose(fine)
            if report.verdict == "diverged":
                break
            if len(windows) > 1:  # the disk holds one window at a time
                for path in folders:
                    shutil.rmtree(path, ignore_errors=True)
                    self._state.pop(path.name, None)
        if report.verdict == "diverged":
            return report, fine
        self._tell(f"     {(report.resolution or {}).get('sentence', 'no tensor was kept')}")
        return replace(
            coarse.report, resolution=report.resolution, details={**coarse.report.details, **report.details}
        ), fine

    def _proven(self, report: Report, coarse: Comparison) -> Report:
        """Return the report with what the target gives when the origin runs elsewhere, where that can prove it."""
        origin = report.origin
        if origin is None or origin.mechanism not in _TO_PROVE:
            return report
        try:
            ways = reroutes(coarse, origin)
        except SettingsError:  # no function and no module
            return report
        self._passes += len(ways)
        target, _ = self._jobs
        proofs: list[Proof] = []
        for way in ways:
            try:
                self._pass(target, way.folder, ("--keep", "stats", *way.options), f"proof: {way.where}")
            except CaptureError as why:
                self._tell(f"     no proof with {way.where}: {why}")
                continue
            rerouted = compare(self._out / way.folder, self._out / "reference", allow_incomplete=True)
            proofs.append(prove(coarse, origin, rerouted, way))
        return with_proofs(report, proofs)

    def repeats(self, item: Job) -> str:
        """Return in words whether a command repeats itself, with the first call that does not."""
        again = compare(self._out / f"{item.name}-again", self._out / item.name, allow_incomplete=True)
        moved = again.calls.filter(pc.greater(pc.fill_null(again.calls["error_out"], 0.0), 0.0))
        if again.verdict == "identical" or not moved.num_rows:
            return f"the {item.name} repeats itself to the bit"
        row = moved.slice(0, 1).to_pylist()[0]
        first = f"{row['target_name'] or row['reference_name']} in step {row['step']}"
        if again.verdict == "equivalent":
            return f"the {item.name} repeats itself but for rounding, first at {first}"
        return (
            f"WARNING: the {item.name} does not repeat itself, first at {first}: "
            "seed it with ns.seed_all(1234, deterministic=True), or what follows may show chance"
        )

    def disk(self) -> dict[str, int]:
        """Return how many bytes each run takes."""
        return {path.name: _size(path) for path in sorted(self._out.iterdir()) if path.is_dir()}

    def _pass(self, item: Job, folder: str, options: tuple[str, ...], what: str) -> None:
        self._begun += 1
        place = f"{self._begun}/{self._passes}"
        order = [*options, *self._options, "--", *item.command, json.dumps(item.changes.environment), _edition(item)]
        if self._state.get(folder) == order and (self._out / folder / "manifest.json").exists():
            self._tell(f"{place}  {folder}: done already (remove {self._out / folder} to run it again)")
            return
        left = self._passes - self._begun + 1
        estimate = (
            f", about {spoken_time(left * sum(self._seconds) / len(self._seconds))} left" if self._seconds else ""
        )
        self._tell(f"{place}  {folder}: {what} ({shlex.join(item.command)}{estimate})")
        # Refuses a folder of that name that is not a run: it is the user's.
        rundir.check(self._out / folder, 0, overwrite=True)
        shutil.rmtree(self._out / folder, ignore_errors=True)
        also = (
            ["--also", f"numscope.diagnose.bisect.axes:install={item.changes.install}"] if item.changes.install else []
        )
        line = [sys.executable, "-m", "numscope", "run", *options, *self._options, *also]
        line += ["--out", str(self._out / folder), "--", *item.command]
        began = time.monotonic()
        log = self._out / f"{folder}.log"
        with log.open("wb") as stream:
            environment = {**os.environ, **item.changes.environment}
            status = subprocess.run(line, stdout=stream, stderr=subprocess.STDOUT, env=environment).returncode
        if status:
            tail = log.read_text(errors="replace").strip().splitlines()[-1:]
            why = tail[0] if tail else "it wrote nothing there; is the disk full?"
            raise CaptureError(f"the {item.name} ended with status {status} (see {log}): {why}")
        self._seconds.append(time.monotonic() - began)
        self._state[folder] = order
        (self._out / "bisect.json").write_text(json.dumps(self._state, indent=1))

    def _load(self) -> dict[str, list[str]]:
        """Return the passes that are done: the folder of each, and the options and command that it was run with."""
        try:
            done: dict[str, list[str]] = json.loads((self._out / "bisect.json").read_text())
        except (OSError, ValueError):  # the first bisection in this folder, or one that was killed while it wrote
            return {}
        return done


def spoken_time(seconds: float) -> str:
    """Return a time in words: `40 s`, `3 min`, `2 h 10 min`."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def _suspects(comparison: Comparison) -> list[Origin]:
    found = [comparison.report.origin, *comparison.report.suspects[:SUSPECTS]]
    return [origin for origin in found if origin is not None]


def wanted_tensors(comparison: Comparison) -> tuple[list[str], list[str]]:
    """Return the names of the tensors, in each run, that the diagnosis of the suspects needs."""
    target: dict[str, None] = {}
    reference: dict[str, None] = {}
    paired = cache(partial(pair_step, comparison))
    for origin in _suspects(comparison):
        pairs = paired(origin.step, origin.rank)
        for tensor in differing_tensors(pairs, origin)[:MOST_TENSORS]:
            for subgraph, names in zip(subgraphs_of(pairs, tensor), (target, reference)):
                names.update(dict.fromkeys(_names(subgraph)))
        pair = pairs.call(origin.call, origin.kind)
        if pair is not None and pair.target_order is not None:
            target.update(dict.fromkeys(_around(pairs.target, pair.target_order)))
        if pair is not None and pair.reference_order is not None:
            reference.update(dict.fromkeys(_around(pairs.reference, pair.reference_order)))
    return list(target)[:_MOST_NAMES], list(reference)[:_MOST_NAMES]


def lockstep_windows(pairs: PairedStep) -> Iterator[tuple[list[str], list[str]]]:
    """Yield windows of the names of the tensors, in each run, from which lockstep judges: so many bytes at once.

    A step that fits into one window is kept as a whole.
    """
    sides = (pairs.target, pairs.reference)
    whole = sum(_bytes(side, number) for side in sides for number in side.tensors)
    if whole <= WINDOW_ON_DISK:
        yield [], []
        return
    window: tuple[set[int], set[int]] = (set(), set())
    size = 0
    for result in results(pairs, Lockstep()):
        for side, held, needed in zip(sides, window, result.needs()):
            size += sum(_bytes(side, number) for number in set(needed) - held)
            held.update(needed)
        if size > WINDOW_ON_DISK or max(map(len, window)) > _MOST_NAMES:
            yield _window(pairs, window)
            window, size = (set(), set()), 0
    if any(window):
        yield _window(pairs, window)


def _window(pairs: PairedStep, numbers: tuple[set[int], set[int]]) -> tuple[list[str], list[str]]:
    target, reference = numbers
    return list(_slots_of(pairs.target, target)), list(_slots_of(pairs.reference, reference))


def _bytes(graph: StepGraph, number: int) -> int:
    tensor = graph.tensors[number]
    bits = re.search(r"\d+", tensor.dtype)  # bool has one byte
    return math.prod(tensor.shape) * (int(bits[0]) // 8 if bits else 1)


def _names(subgraph: Subgraph) -> Iterable[str]:
    """Return every name of the tensors that go into a subgraph, and of its outputs."""
    numbers = {*subgraph.inputs, subgraph.output}
    for call in subgraph.calls:
        numbers |= set(subgraph.graph.outputs(call.order).values())
    yield from _slots_of(subgraph.graph, numbers)


def _around(graph: StepGraph, order: int) -> Iterable[str]:
    """Return the names of all tensors of a call, and of its forward call."""
    call = graph.calls[order]
    near = {order} if call.forward is None else {order, call.forward}
    yield from _slots_of(graph, {n for item in near for n in graph.slots(item).values() if n is not None})


def _slots_of(graph: StepGraph, numbers: set[int]) -> Iterable[str]:
    """Yield the name of the first slot that holds each tensor: a capture keeps a tensor's data there."""
    waiting = set(numbers)
    for order, call in graph.calls.items():
        for slot, number in graph.slots(order).items():
            if number in waiting:
                waiting.discard(number)
                yield f"{call.name}.{slot}"


def _edition(item: Job) -> str:
    """Return a hash of the script's text: a pass of another text must be run again."""
    try:
        return hashlib.sha256(Path(item.command[0]).read_bytes()).hexdigest()[:16]
    except OSError:
        return ""  # a module, or a command on the PATH


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def require(target: str | None, reference: str | None, axis: str | None) -> None:
    """Raise unless there is a target, and either a reference or an axis that derives it."""
    if not target:
        raise SettingsError("give the command that is wrong: --target 'train.py …'")
    if bool(reference) == bool(axis):
        raise SettingsError(
            "give the command that is right, --reference CMD, or an --axis that derives it; one of them"
        )
