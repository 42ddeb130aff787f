"""Compares on a Ray cluster: each step of each rank is aligned and measured by a task of its own.

Every node must be able to read the runs. The history of a rank's earlier steps enters the verdicts of its later ones, so
one more task for each rank judges its steps in order as their measures come in. The result is the same as the local
engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from numscope.compare.align.map_file import Map
from numscope.compare.judge.findings import History
from numscope.compare.steps import Measured, Place, StepResult, judge_step, measure_step
from numscope.compare.thresholds import Thresholds
from numscope.core.errors import MissingExtraError
from numscope.store.reader import Run, open_run


def compare_all(
    runs: tuple[Run, Run],
    noise: list[Run],
    steps: Sequence[Place],
    mapping: Map | None,
    thresholds: Thresholds,
    progress: Callable[[int, int], None] | None,
) -> list[StepResult]:
    """Compare every (step, rank): a task that measures for each, and one that judges for each rank."""
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("ray", "compare --engine ray") from error
    if not ray.is_initialized():
        ray.init(include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    measure, judge = ray.remote(_measure), ray.remote(_judge)
    paths = tuple(str(run.path.absolute()) for run in (*runs, *noise))
    by_rank: dict[int, list[object]] = {}
    for step, rank in steps:
        by_rank.setdefault(rank, []).append(measure.remote(paths, step, rank, mapping))
    # Ray does not resolve references inside a list: a judge begins with the first steps while later ones are measured.
    waiting = [judge.remote(paths[:2], measured, thresholds) for measured in by_rank.values()]
    del by_rank
    results: list[StepResult] = []
    while waiting:
        done, waiting = ray.wait(waiting)
        results += [result for part in ray.get(done) for result in part]
        if progress is not None:
            progress(len(results), len(steps))
    return sorted(results, key=lambda result: (result.step, result.rank))


def _measure(paths: tuple[str, ...], step: int, rank: int, mapping: Map | None) -> Measured:
    target, reference, *noise = (open_run(path) for path in paths)
    return measure_step((target, reference), noise, step, rank, mapping)


def _judge(paths: tuple[str, str], measured: list[object], thresholds: Thresholds) -> list[StepResult]:
    import ray

    target, reference = (open_run(path) for path in paths)
    history, results = History(), []
    while measured:
        results.append(judge_step((target, reference), ray.get(measured.pop(0)), thresholds, history))
    return results
