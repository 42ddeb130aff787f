"""A killed job, a run that is still being written, and files that were harmed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from numscope.core.errors import RunError
from numscope.store.reader import open_run
from numscope.store.writer import RunWriter
from tests.unit.store.batches import arrays_of, batch_of, write_run

ROOT = Path(__file__).parents[3]
JOB = """
import sys, time
from numscope.store.writer import RunWriter
from tests.unit.store.batches import arrays_of, batch_of

writer = RunWriter(sys.argv[1], rank=0, manifest={}, segment_bytes=200_000, shard_bytes=100_000)
step = 0
while True:
    writer.write(batch_of(step, arrays_of(step)))
    writer.write(batch_of(step, arrays_of(1000 + step), first=4))
    writer.end_step(step, {})
    step += 1
    time.sleep(float(sys.argv[2]))
"""
HALF = """
import os, signal, sys
from numscope.store.writer import RunWriter
from tests.unit.store.batches import arrays_of, batch_of

writer = RunWriter(sys.argv[1], rank=0, manifest={})
for step in range(3):
    writer.write(batch_of(step, arrays_of(step)))
    writer.end_step(step, {})
writer.write(batch_of(3, arrays_of(3)))
writer.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


def start(code: str, *arguments: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    return subprocess.Popen([sys.executable, "-c", code, *arguments], env=environment)


def wait_for_steps(path: Path, count: int) -> None:
    deadline = time.monotonic() + 60
    file = path / "rank0/steps.jsonl"
    while time.monotonic() < deadline:
        if file.exists() and file.read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.02)
    raise AssertionError("the job wrote too little")


def check_whole(path: Path) -> None:
    """Check that every step that is said to be complete is, with its data."""
    run = open_run(path)
    for step in run.steps:
        tables = run.step_tables(step, 0)
        assert (tables.calls.num_rows, tables.slots.num_rows, tables.tensors.num_rows) == (8, 16, 8)
        for n, array in enumerate([*arrays_of(step), *arrays_of(1000 + step)]):
            np.testing.assert_array_equal(run.tensor(f"Functional.linear.{n}.forward.output.0", step=step), array)
    assert run.calls.num_rows >= 8 * len(run.steps)
    assert run.tensors["name"].null_count == 0


def test_after_sigkill_complete_steps_and_the_written_part_of_the_last_are_readable(tmp_path: Path) -> None:
    job = start(HALF, str(tmp_path / "run"))
    assert job.wait(60) == -signal.SIGKILL
    run = open_run(tmp_path / "run")
    assert run.steps == [0, 1, 2]
    assert run.incomplete == [(0, 3)]
    assert run.calls.num_rows == 16
    assert run.step_tables(3, 0).slots.num_rows == 8
    for step in range(4):
        for n, array in enumerate(arrays_of(step)):
            np.testing.assert_array_equal(run.tensor(f"Functional.linear.{n}.forward.output.0", step=step), array)


@pytest.mark.parametrize("steps", [3, 40, 90])
def test_a_kill_at_any_moment_leaves_every_complete_step_whole(tmp_path: Path, steps: int) -> None:
    job = start(JOB, str(tmp_path / "run"), "0")
    try:
        wait_for_steps(tmp_path / "run", steps)
    finally:
        job.kill()
        job.wait()
    check_whole(tmp_path / "run")


def test_another_process_reads_a_run_while_it_is_written(tmp_path: Path) -> None:
    job = start(JOB, str(tmp_path / "run"), "0.01")
    try:
        seen = []
        wait_for_steps(tmp_path / "run", 1)
        while not seen or seen[-1] < 60:
            check_whole(tmp_path / "run")
            seen.append(len(open_run(tmp_path / "run").steps))
            assert job.poll() is None
    finally:
        job.kill()
        job.wait()
    assert len(set(seen)) > 3


def test_a_reader_keeps_what_it_saw_when_the_writer_closes_the_segment(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", rank=0, manifest={})
    writer.write(batch_of(0, arrays_of(0)))
    writer.end_step(0, {})
    writer.flush()
    run, untouched = open_run(tmp_path / "run"), open_run(tmp_path / "run")
    assert run.calls.num_rows == 4
    writer.close()
    assert run.tensors.num_rows == 8
    assert untouched.tensors.num_rows == 8
    assert run.calls["name"].to_pylist() == untouched.calls["name"].to_pylist()


@pytest.mark.parametrize("deleted", [[], ["calls"], ["calls", "slots", "tensors"]])
def test_a_crash_between_rename_and_delete_changes_nothing(tmp_path: Path, deleted: list[str]) -> None:
    writer = RunWriter(tmp_path / "run", rank=0, manifest={})
    writer.write(batch_of(0, arrays_of(0)))
    writer.end_step(0, {})
    writer.flush()
    saved = tmp_path / "saved"
    shutil.copytree(tmp_path / "run", saved)
    writer.close()
    before = open_run(tmp_path / "run").tensors
    for stream in saved.rglob("*.arrows"):
        if stream.name.split(".")[1] not in deleted:
            shutil.copy(stream, tmp_path / "run/rank0" / stream.name)
    shutil.copytree(tmp_path / "run/rank0/000000", tmp_path / "run/rank0/000001.tmp")
    run = open_run(tmp_path / "run")
    assert run.tensors.equals(before)
    assert run.incomplete == []


def harm_end(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


@pytest.mark.parametrize("table", ["calls", "slots", "tensors"])
@pytest.mark.parametrize("harm", [harm_end, Path.unlink, lambda path: path.write_bytes(b"")])
def test_a_harmed_table_is_named_with_a_cure(tmp_path: Path, table: str, harm: Any) -> None:
    write_run(tmp_path / "run", calls=400)
    harm(tmp_path / f"run/rank0/000000/{table}.parquet")
    run = open_run(tmp_path / "run")
    with pytest.raises(RunError, match=rf"rank0/000000/{table}.parquet is (damaged|missing).*capture again") as caught:
        (run.calls, run.tensors, run.step_tables(1, 0))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("table", ["calls", "slots", "tensors"])
def test_a_changed_byte_is_noticed_or_changes_nothing(tmp_path: Path, table: str) -> None:
    write_run(tmp_path / "run", calls=20, steps=2)
    path = tmp_path / f"run/rank0/000000/{table}.parquet"
    content = path.read_bytes()
    expected = open_run(tmp_path / "run").step_tables(1, 0)
    noticed: list[str] = []
    for at in range(3, len(content), len(content) // 200):
        harmed = bytearray(content)
        harmed[at] ^= 0xFF
        path.write_bytes(harmed)
        try:
            found = open_run(tmp_path / "run").step_tables(1, 0)
        except RunError as error:
            noticed.append(str(error))
        else:
            assert found == expected
    assert len(noticed) > 100
    assert all(f"{table}.parquet is damaged" in line for line in noticed)


@pytest.mark.parametrize("harm", [harm_end, Path.unlink, lambda path: path.write_bytes(b"")])
def test_a_harmed_stream_is_named_where_a_complete_step_needs_it(tmp_path: Path, harm: Any) -> None:
    writer = RunWriter(tmp_path / "run", rank=0, manifest={})
    for step in range(3):
        writer.write(batch_of(step, arrays_of(step)))
        writer.end_step(step, {})
    writer.flush()
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    writer.close()
    harm(tmp_path / "copy/rank0/000000.slots.arrows")
    run = open_run(tmp_path / "copy")
    with pytest.raises(RunError, match=r"000000.slots.arrows is (damaged \(\d+ bytes are cut off\)|missing)"):
        _ = run.tensors


def test_a_cut_line_of_steps_is_an_incomplete_step_where_the_job_was_killed(tmp_path: Path) -> None:
    assert start(HALF, str(tmp_path / "run")).wait(60) == -signal.SIGKILL
    path = tmp_path / "run/rank0/steps.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    run = open_run(tmp_path / "run")
    assert run.steps == [0, 1]
    assert run.incomplete == [(0, 2), (0, 3)]


def test_a_harmed_line_of_steps_is_named(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    path = tmp_path / "run/rank0/steps.jsonl"
    content = path.read_bytes()
    path.write_bytes(content[:-5])
    with pytest.raises(RunError, match=r"steps.jsonl is damaged \(2 of 3 lines are there\)"):
        open_run(tmp_path / "run")
    path.write_bytes(content.replace(b'"segment"', b'"sogment"', 1))
    with pytest.raises(RunError, match=r"steps.jsonl is damaged \(line 1\)"):
        open_run(tmp_path / "run")


def test_fingerprints_are_readable_without_the_shard(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    (tmp_path / "run/rank0/000000.safetensors").unlink()
    run = open_run(tmp_path / "run")
    assert run.tensors["min"].null_count == 0
    with pytest.raises(RunError, match=r"000000.safetensors is missing"):
        run.tensor("Functional.linear.0.forward.output.0")
