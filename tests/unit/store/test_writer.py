from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from numscope.core.errors import RunError
from numscope.store.reader import open_run
from numscope.store.writer import Batch, RunWriter, View
from numscope.store.writing import shard_writer
from numscope.store.writing.rank_files import RankFiles
from tests.unit.store.batches import arrays_of, batch_of, write_run


def names_of(path: Path) -> set[str]:
    return {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}


def test_a_one_step_run_is_a_handful_of_files(tmp_path: Path) -> None:
    write_run(tmp_path / "run", steps=1, calls=200)
    assert names_of(tmp_path / "run") == {
        "manifest.json",
        "rank0/rank.json",
        "rank0/steps.jsonl",
        "rank0/000000.safetensors",
        "rank0/000000/checksums.json",
        "rank0/000000/calls.parquet",
        "rank0/000000/slots.parquet",
        "rank0/000000/tensors.parquet",
        "rank0/000000/stacks.parquet",
    }


def test_a_line_of_steps_tells_where_its_rows_are(tmp_path: Path) -> None:
    write_run(tmp_path / "run", steps=2, calls=4)
    lines = [json.loads(line) for line in (tmp_path / "run/rank0/steps.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1]
    assert lines[1]["rows"] == {"calls": [4, 8], "slots": [8, 16], "tensors": [4, 8], "stacks": [1, 1]}
    assert lines[1]["skipped"] == {"a reason": 1}
    assert lines[1]["seconds"] > 0


def test_segments_close_by_size_and_hold_whole_steps(tmp_path: Path) -> None:
    write_run(tmp_path / "run", steps=6, calls=10, segment_bytes=20_000)
    segments = sorted(path.name for path in (tmp_path / "run/rank0").iterdir() if path.is_dir())
    assert len(segments) > 1
    run = open_run(tmp_path / "run")
    assert run.steps == list(range(6))
    assert run.calls.num_rows == 60
    assert set(run.tensors["name"].to_pylist()) == {
        f"Functional.linear.{n}.forward.{slot}" for n in range(10) for slot in ("input.0", "output.0")
    }


def test_what_was_not_measured_takes_no_space_and_what_was_is_read_back(tmp_path: Path) -> None:
    sizes = {}
    for name in ("measured", "structure"):
        with RunWriter(tmp_path / name, rank=0, manifest={}) as writer:
            for step in range(3):
                batch = batch_of(step, arrays_of(step, 200), keep=False)
                bare = {key: values for key, values in batch.tensors.items() if key != "sketch"}
                writer.write(batch if name == "measured" else Batch(calls=batch.calls, slots=batch.slots, tensors=bare))
                writer.end_step(step, {})
        sizes[name] = (tmp_path / name / "rank0/000000/tensors.parquet").stat().st_size
        sketch = open_run(tmp_path / name).step_tables(1, 0).tensors["sketch"].combine_chunks().values.to_numpy()
        wanted = np.random.default_rng(1).standard_normal((200, 64)).astype(np.float32).ravel()
        assert np.isnan(sketch).all() if name == "structure" else np.array_equal(sketch, wanted)
    assert sizes["structure"] < sizes["measured"] - 0.95 * 3 * 200 * 64 * 4


def test_write_waits_while_the_queue_is_full_and_memory_stays_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    begin = RankFiles.begin
    monkeypatch.setattr(RankFiles, "begin", lambda self, batch: (go.wait(), begin(self, batch))[1])
    array = np.zeros(1 << 16)
    writer = RunWriter(tmp_path / "run", rank=0, manifest={}, queue_bytes=3 * array.nbytes)
    given: list[int] = []

    def give() -> None:
        for step in range(6):
            writer.write(batch_of(step, [array + step]))
            writer.end_step(step, {})
            given.append(step)

    thread = threading.Thread(target=give)
    thread.start()
    end = time.monotonic() + 60
    while len(given) < 2 and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(0.1)  # a third could come now
    assert len(given) == 2  # a third would make more than the budget: batches are a little larger than their arrays
    go.set()
    thread.join()
    writer.close()
    assert open_run(tmp_path / "run").steps == list(range(6))


def test_a_batch_larger_than_the_budget_still_goes_through(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run", rank=0, manifest={}, queue_bytes=10) as writer:
        writer.write(batch_of(0, arrays_of(0)))
        writer.end_step(0, {})
    assert open_run(tmp_path / "run").steps == [0]


def test_a_bad_batch_surfaces_at_the_next_call_is_counted_and_the_rest_is_written(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", rank=0, manifest={})
    writer.write(Batch(calls={"order": [0, 1], "name": ["only one"]}))
    with pytest.raises(RunError, match="could not be written"):
        writer.flush()
    writer.write(batch_of(0, arrays_of(0)))
    writer.end_step(0, {})
    writer.close()
    run = open_run(tmp_path / "run")
    assert run.calls.num_rows == 4
    assert run.skipped() == {"not stored: ValueError": 2}


def test_data_that_cannot_be_stored_leaves_no_reference_to_what_is_not_there(tmp_path: Path) -> None:
    array = np.arange(5.0)
    writer = RunWriter(tmp_path / "run", rank=0, manifest={})
    good = batch_of(0, [array, array + 1])
    writer.write(Batch(good.calls, good.slots, good.tensors, good.stacks, {0: array, 1: np.array([object()])}))
    with pytest.raises(RunError, match="cannot be stored"):
        writer.flush()
    writer.write(batch_of(0, [array]))
    writer.end_step(0, {})
    writer.close()
    np.testing.assert_array_equal(open_run(tmp_path / "run").tensor("Functional.linear.0.forward.output.0"), array)


def test_views_refer_to_what_is_kept_also_of_an_earlier_batch_and_have_no_data_where_that_was_lost(
    tmp_path: Path,
) -> None:
    array = np.arange(6.0).reshape(2, 3)
    base = batch_of(0, [array])
    views = batch_of(0, [array[:1], array.T, array[0]])
    first = 1  # the numbers of tensors go on through a step
    tensors = {**views.tensors, "tensor": np.arange(first, first + 3, dtype=np.int32)}
    slots = {**views.slots, "tensor": [first + n for n in views.slots["tensor"]]}
    with RunWriter(tmp_path / "run", rank=0, manifest={}) as writer:
        writer.write(base)
        data = {1: View(0, 0, (3, 1)), 2: View(0, 0, (1, 3)), 3: View(9, 0, (1,))}
        writer.write(Batch(views.calls, slots, tensors, {}, data))
        writer.end_step(0, {})
    run = open_run(tmp_path / "run")
    rows = run.step_tables(0, 0).tensors.to_pylist()
    for row, wanted in zip(rows[1:3], (array[:1], array.T)):
        found = run.array(0, row["shard"], row["key"], row["dtype"], tuple(row["shape"]))
        np.testing.assert_array_equal(found, wanted)
    assert rows[3]["shard"] is None


def with_a_full_disk(folder: Path, monkeypatch: pytest.MonkeyPatch, function: str) -> RunWriter:
    """Return a writer with one step on disk and a batch on its way, whose function finds no more room."""
    writer = RunWriter(folder / "run", rank=0, manifest={})
    writer.write(batch_of(0, arrays_of(0)))
    writer.end_step(0, {})
    writer.flush()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(function, full)
    writer.write(batch_of(1, arrays_of(1)))
    return writer


def test_a_full_disk_surfaces_and_what_was_written_before_is_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = with_a_full_disk(tmp_path, monkeypatch, "numscope.store.segments.write_all")
    with pytest.raises(RunError, match=r"No space left on device.*make room"):
        writer.flush()
    with pytest.raises(RunError, match="No space left"):
        writer.write(batch_of(2, arrays_of(2)))  # it stays full
    with pytest.raises(RunError, match="No space left"):
        writer.close()
    assert open_run(tmp_path / "run").steps == [0]
    assert open_run(tmp_path / "run").calls.num_rows == 4


def test_data_that_finds_the_disk_full_leaves_no_rows_that_refer_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = with_a_full_disk(tmp_path, monkeypatch, "numscope.store.writing.shard_writer._write")
    with pytest.raises(RunError, match="No space left"):
        writer.flush()
    with pytest.raises(RunError, match="No space left"):
        writer.close()
    run = open_run(tmp_path / "run")
    assert run.steps == [0]
    assert run.incomplete == []
    for n, array in enumerate(arrays_of(0)):
        np.testing.assert_array_equal(run.tensor(f"Functional.linear.{n}.forward.output.0"), array)


def test_rows_follow_their_data_and_a_step_all_of_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go, begun = threading.Event(), threading.Semaphore(0)
    write = shard_writer._write
    monkeypatch.setattr("numscope.store.writing.shard_writer._write", lambda *job: (go.wait(), write(*job))[1])
    begin = RankFiles.begin
    monkeypatch.setattr(RankFiles, "begin", lambda self, batch: (begin(self, batch), begun.release())[0])
    writer = RunWriter(tmp_path / "run", rank=0, manifest={})
    for step in range(2):
        writer.write(batch_of(0, [np.arange(4.0) + step]))
    writer.end_step(0, {})
    for _ in range(2):
        begun.acquire()  # the second is prepared while the data of the first is being written
    run = open_run(tmp_path / "run")
    assert run.steps == []
    assert run.calls.num_rows == 0
    go.set()
    writer.close()
    assert open_run(tmp_path / "run").steps == [0]
    assert open_run(tmp_path / "run").calls.num_rows == 2


def test_a_closed_writer_says_so(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", rank=0, manifest={})
    writer.close()
    writer.close()
    with pytest.raises(RunError, match="is closed"):
        writer.write(Batch())


def test_the_users_own_error_is_not_hidden_by_ours(tmp_path: Path) -> None:
    def job() -> None:
        with RunWriter(tmp_path / "run", rank=0, manifest={}) as writer:
            writer.write(Batch(calls={"order": [0], "nonsense": [1]}))
            raise KeyError("the user's")

    with pytest.raises(KeyError):
        job()


def test_an_empty_run_opens(tmp_path: Path) -> None:
    RunWriter(tmp_path / "run", rank=0, manifest={}).close()
    run = open_run(tmp_path / "run")
    assert (run.steps, run.ranks, run.incomplete) == ([], [0], [])
    assert (run.calls.num_rows, run.tensors.num_rows) == (0, 0)


def test_a_settled_run_is_whole_and_a_step_may_go_on_after_it_in_the_same_segment(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", rank=0, manifest={"ends": True})
    arrays = arrays_of(0, 8)
    writer.write(batch_of(0, arrays[:4]))
    writer.end_step(0, {})
    writer.settle()
    settled = open_run(tmp_path / "run")
    assert settled.step_tables(0, 0).calls.num_rows == 4
    assert settled.ends()[0] == "closed"
    later = batch_of(0, arrays[4:], first=4)
    slots = {**later.slots, "call": [0, *later.slots["call"][1:]], "tensor": [1, *later.slots["tensor"][1:]]}
    writer.write(Batch(later.calls, slots, later.tensors, {}, later.data))
    writer.end_step(0, {})
    writer.close()
    assert [path.parent.name for path in (tmp_path / "run").rglob("calls.parquet")] == ["000000"]
    run = open_run(tmp_path / "run")
    assert run.steps == [0]
    assert run.step_tables(0, 0).calls.num_rows == 8
    assert run.tensors["name"].null_count == 0  # a slot of the second part refers to a call of the first
    assert run.tensors["dtype"].null_count == 0


def test_a_forked_child_does_not_touch_the_parents_run(tmp_path: Path) -> None:
    code = """
import os, sys
from numscope.store.writer import RunWriter, Batch
writer = RunWriter(sys.argv[1], rank=0, manifest={})
if os.fork() == 0:
    try:
        writer.write(Batch())
    except Exception as error:
        sys.exit(7 if "belongs to the process" in str(error) else 8)
status = os.waitstatus_to_exitcode(os.wait()[1])
writer.end_step(0, {})
sys.exit(status)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "run")], timeout=60)
    assert done.returncode == 7
    assert open_run(tmp_path / "run").steps == [0]


def test_a_writer_nobody_closed_is_closed_at_exit(tmp_path: Path) -> None:
    code = """
import sys
from tests.unit.store.batches import arrays_of, batch_of
from numscope.store.writer import RunWriter
writer = RunWriter(sys.argv[1], rank=0, manifest={})
for step in range(20):
    writer.write(batch_of(step, arrays_of(step)))
    writer.end_step(step, {})
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["src", "."])}
    root = Path(__file__).parents[3]
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")], check=True, env=environment, cwd=root)
    assert open_run(tmp_path / "run").steps == list(range(20))
    assert not list((tmp_path / "run").rglob("*.arrows"))


def test_two_threads_may_write(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run", rank=0, manifest={}) as writer:
        threads = [
            threading.Thread(target=lambda first=first: writer.write(batch_of(0, arrays_of(first), first=first)))
            for first in range(0, 40, 4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        writer.end_step(0, {})
    assert sorted(open_run(tmp_path / "run").calls["order"].to_pylist()) == list(range(40))
