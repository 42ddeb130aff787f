"""Parameters that another rank updates."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from numscope.compare.judge.other_ranks import OtherRanks
from numscope.store.reader import Run, open_run
from numscope.store.writer import RunWriter
from tests.unit.compare.scripted import Script


def written(path: Path, *ranks: str, world_size: int = 2) -> Run:
    """Write a run in which the optimizer of each rank updates the parameter of that name."""
    for rank, parameter in enumerate(ranks):
        script = Script()
        given = {f"parameters.{parameter}": np.ones(4, np.float32)}
        script.call("Optimizer.SGD.step.0", given, {f"output.{parameter}": np.zeros(4, np.float32)})
        with RunWriter(path, rank=rank, manifest={"world_size": world_size}) as writer:
            writer.write(script.batch())
            writer.end_step(0, {})
    return open_run(path)


def test_a_parameter_that_another_rank_of_the_other_side_updates(tmp_path: Path) -> None:
    """A parameter that only one side updates on this rank is no fault where another rank of the other side does (experts,
    stages of a pipeline)"""
    target, reference = written(tmp_path / "a", "up", "up"), written(tmp_path / "b", "up", "down")
    ranks = OtherRanks((target, reference), 0, 0)
    assert ranks.update(1, "down")
    assert not ranks.update(0, "down")
    assert not ranks.update(1, "left")


def test_a_parameter_that_only_changed_its_name(tmp_path: Path) -> None:
    run = written(tmp_path / "a", "up", "_fsdp_wrapped_module.down")
    assert OtherRanks((run, run), 0, 0).update(0, "down")


def test_a_rank_that_was_not_recorded_is_believed_in_a_job_of_another_size(tmp_path: Path) -> None:
    few = written(tmp_path / "a", "up", world_size=8)
    alone = written(tmp_path / "b", "up", world_size=1)
    assert OtherRanks((few, alone), 0, 0).update(0, "down")
    assert not OtherRanks((few, few), 0, 0).update(0, "down")
