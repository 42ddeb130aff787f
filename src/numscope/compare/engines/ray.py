"""Compares on a Ray cluster: each rank's steps are a task of their own.

The runs must lie where every node can read them. Steps of one rank stay together and in order, because what a rank's
earlier steps showed counts for its later ones; the result is the same as the local engine's.
"""

from __future__ import annotations

from typing import Any

from numscope.compare.engines.local import compare_all as compare_here
from numscope.compare.steps import StepResult
from numscope.compare.thresholds import Thresholds
from numscope.core.errors import MissingExtraError
from numscope.store.reader import Run, open_run


def compare_all(
    runs: tuple[Run, Run],
    noise: list[Run],
    places: list[tuple[int, int]],
    mapping: Any,
    thresholds: Thresholds,
    progress: Any,
) -> list[StepResult]:
    """Compare every (step, rank), a task for each rank."""
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("ray", "ray", "compare --engine ray") from error
    if not ray.is_initialized():
        ray.init(include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    task = ray.remote(_compare_rank)
    by_rank: dict[int, list[tuple[int, int]]] = {}
    for place in places:
        by_rank.setdefault(place[1], []).append(place)
    paths = tuple(str(run.path.absolute()) for run in (*runs, *noise))
    waiting = [task.remote(paths, mine, mapping, thresholds) for mine in by_rank.values()]
    results: list[StepResult] = []
    while waiting:
        done, waiting = ray.wait(waiting)
        results += [result for part in ray.get(done) for result in part]
        if progress is not None:
            progress(len(results), len(places))
    return sorted(results, key=lambda result: (result.step, result.rank))


def _compare_rank(
    paths: tuple[str, ...], places: list[tuple[int, int]], mapping: Any, thresholds: Thresholds
) -> list[StepResult]:
    target, reference, *noise = (open_run(path) for path in paths)
    return list(compare_here((target, reference), noise, places, mapping, thresholds, None))
