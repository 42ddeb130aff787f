"""Compares on a Ray cluster: a task for each rank, which sends back what it found as the files of a part.

Every node must be able to read the runs. What a rank's earlier steps show enters the verdicts of its later ones, so a rank
is judged in order by one task; where there are fewer ranks than processors, its steps are aligned and measured by tasks of
their own before. The result is the same as the local engine's.
"""

from __future__ import annotations

import tempfile
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from numscope.compare.judge.findings import History
from numscope.compare.parts.results import Files, Results, packed, unpacked
from numscope.compare.steps import Measured, Place, judge_step, measure_step
from numscope.compare.thresholds import Thresholds
from numscope.core.errors import MissingExtraError
from numscope.store.reader import Run, open_run

if TYPE_CHECKING:
    from numscope.compare.align.map_file import Map

_AHEAD = 2  # ranks that are under way, for each processor


def compare_all(
    runs: tuple[Run, Run],
    noise: list[Run],
    places: Sequence[Place],
    mapping: Map | None,
    thresholds: Thresholds,
    progress: Callable[[int, int], None] | None,
    results: Results,
) -> None:
    """Compare every (step, rank): a task for each rank; where there are few, one for each of its steps too."""
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("ray", "compare --engine ray") from error
    if not ray.is_initialized():
        ray.init(include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    steps: dict[int, list[int]] = {}
    for step, rank in sorted(places):
        steps.setdefault(rank, []).append(step)
    most = max(int(_AHEAD * ray.cluster_resources().get("CPU", 1)), 1)
    whole, measure, judge = (ray.remote(one) for one in (_whole, _measure, _judge))
    work = ray.put(
        _Work(uuid.uuid4().hex, tuple(str(run.path.absolute()) for run in (*runs, *noise)), mapping, thresholds)
    )
    left, waiting = deque(steps), dict[object, int]()
    done = 0
    while left or waiting:
        while left and len(waiting) < most:
            rank = left.popleft()
            if len(steps) >= most:
                waiting[whole.remote(work, rank, steps[rank])] = rank
                continue
            # Ray does not resolve references inside a list: a judge begins while later steps are measured.
            waiting[judge.remote(work, [measure.remote(work, step, rank) for step in steps[rank]])] = rank
        (ready,), _ = ray.wait(list(waiting))
        rank = waiting.pop(ready)
        folder = results.folder() / f"rank{rank}"
        unpacked(ray.get(ready), folder)
        results.attach(folder)
        del ready
        done += len(steps[rank])
        if progress is not None:
            progress(done, len(places))


@dataclass(frozen=True)
class _Work:
    """The comparison that a task is a part of."""

    name: str
    paths: tuple[str, ...]
    mapping: Map | None
    thresholds: Thresholds

    def opened(self) -> tuple[tuple[Run, Run], list[Run]]:
        """Return the runs, which a worker opens once."""
        target, reference, *noise = _opened(self.name, self.paths)
        return (target, reference), noise


@lru_cache(maxsize=1)
def _opened(name: str, paths: tuple[str, ...]) -> list[Run]:
    return [open_run(path) for path in paths]


def _whole(work: _Work, rank: int, steps: list[int]) -> Files:
    runs, noise = work.opened()
    found = _packed(runs, (measure_step(runs, noise, step, rank, work.mapping) for step in steps), work.thresholds)
    for run in (*runs, *noise):
        run.forget(rank)
    return found


def _measure(work: _Work, step: int, rank: int) -> Measured:
    runs, noise = work.opened()
    return measure_step(runs, noise, step, rank, work.mapping)


def _judge(work: _Work, measured: list[object]) -> Files:
    import ray

    runs, _ = work.opened()
    return _packed(runs, (ray.get(measured.pop(0)) for _ in range(len(measured))), work.thresholds)


def _packed(runs: tuple[Run, Run], steps: Iterable[Measured], thresholds: Thresholds) -> Files:
    """Judge the steps of a rank, and return the files of what was found."""
    history = History()
    with tempfile.TemporaryDirectory(prefix="numscope-") as name:
        results = Results(Path(name))
        for measured in steps:
            results.add(judge_step(runs, measured, thresholds, history))
        results.write({})
        return packed(Path(name))
