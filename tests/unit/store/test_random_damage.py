"""Files of a run harmed at random: what is read is what was written, or an error names what is damaged."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from numscope.core.errors import RunError
from numscope.store.reader import Run, open_run
from numscope.store.writer import RunWriter
from tests.harms import Harm, cut, delete, empty, exchange, flip, overwrite
from tests.unit.store.batches import arrays_of, batch_of, write_run

HARMS = int(os.environ.get("DAMAGE_HARMS", "200"))


ALL: list[Harm] = [flip, flip, overwrite, cut, exchange, delete, empty]


def killed_run(path: Path, seed: int) -> None:
    """Leave a run as a job that was killed in its second step leaves it."""
    writer = RunWriter(path.with_name("live"), rank=0, manifest={})
    for step in range(2):
        writer.write(batch_of(step, arrays_of(step + seed)))
        if step == 0:
            writer.end_step(step, {})
    writer.flush()
    shutil.copytree(path.with_name("live"), path)
    writer.close()
    shutil.rmtree(path.with_name("live"))


def ended_run(path: Path, seed: int) -> None:
    with RunWriter(path, rank=0, manifest={"world_size": 1}) as writer:
        for step in range(3):
            writer.write(batch_of(step, arrays_of(step + seed), sample=step == 2))
            writer.end_step(step, {"a reason": 1})


class Content:
    """All that can be read of a run."""

    def __init__(self, path: Path) -> None:
        run = open_run(path)
        self.tables: list[pa.Table] = [run.calls, run.tensors, run.stacks(0)]
        self.facts = (run.manifest, run.steps, run.incomplete, run.skipped(), run.faults(), run.ends())
        self.arrays = [array for step in run.written_steps(0) for array in kept(run, step)]

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Content)
        return (
            self.facts == other.facts
            and all(ours.equals(theirs) for ours, theirs in zip(self.tables, other.tables))
            and len(self.arrays) == len(other.arrays)
            and all(ours.tobytes() == theirs.tobytes() for ours, theirs in zip(self.arrays, other.arrays))
        )


def is_part(read: Content, whole: Content) -> bool:
    """Tell whether all that was read is at the start of the whole, and what is missing is in a step that is not complete."""
    in_steps = [ours.equals(theirs[: len(ours)]) for ours, theirs in zip(read.tables, whole.tables)]
    incomplete = {step for _, step in read.facts[2]}
    return all(in_steps) and {0, 1} - {*read.facts[1]} <= incomplete | ({1} if 0 in read.facts[1] else set())


def kept(run: Run, step: int) -> list[np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    rows = run.step_tables(step, 0).tensors.select(["shard", "key", "dtype", "shape", "sampled"]).to_pylist()
    return [
        run.array(0, row["shard"], row["key"], row["dtype"], None if row["sampled"] else tuple(row["shape"]))
        for row in rows
    ]


@pytest.mark.parametrize("make", [ended_run, killed_run])
def test_nothing_that_is_damaged_is_read_as_numbers(make: Callable[[Path, int], None], tmp_path: Path) -> None:
    make(tmp_path / "run", 0)
    make(tmp_path / "other", 50)
    whole = Content(tmp_path / "run")
    files = sorted(path.relative_to(tmp_path / "run") for path in (tmp_path / "run").rglob("*") if path.is_file())
    chance = random.Random(4)
    noticed = 0
    for n in range(HARMS // 2):
        file, harm = chance.choice(files), chance.choice(ALL)
        shutil.rmtree(tmp_path / "harmed", ignore_errors=True)
        shutil.copytree(tmp_path / "run", tmp_path / "harmed")
        harm(chance, tmp_path / "harmed" / file, tmp_path / "other" / file)
        error = ""
        try:
            read = Content(tmp_path / "harmed")
        except RunError as raised:
            noticed += 1
            error = str(raised)
        if error:
            named = [*file.parts[-2:], file.name.partition(".")[0], "rank0", "manifest.json"]
            assert "\n" not in error, (n, harm, file)
            assert any(part in error for part in named), (n, harm, file, error)
        else:
            # Files that are cut off are what a killed job leaves: of the step that is not complete, less may be there.
            assert read == whole or (make is killed_run and is_part(read, whole)), (n, harm.__name__, file)
    assert noticed > 0.6 * HARMS // 2


def test_runs_without_checksums_still_read(tmp_path: Path) -> None:
    """A run of 0.1.0, made by leaving out what it did not write."""
    write_run(tmp_path / "run")
    whole = Content(tmp_path / "run")
    (tmp_path / "run/rank0/000000/checksums.json").unlink()
    for path in [tmp_path / "run/manifest.json", tmp_path / "run/rank0/rank.json"]:
        facts = json.loads(path.read_text())
        path.write_text(json.dumps({k: v for k, v in facts.items() if k not in ("checksums", "checksum", "id", "run")}))
    lines = (tmp_path / "run/rank0/steps.jsonl").read_text().splitlines()
    stripped = [json.dumps({k: v for k, v in json.loads(line).items() if k != "checksum"}) for line in lines]
    (tmp_path / "run/rank0/steps.jsonl").write_text("".join(f"{line}\n" for line in stripped))
    assert Content(tmp_path / "run").tables == whole.tables
