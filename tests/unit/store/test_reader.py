from __future__ import annotations

import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pyarrow as pa
import pytest

from numscope.core.errors import NotKeptError, RunError
from numscope.store.reader import open_run
from numscope.store.writer import Batch, RunWriter
from tests.unit.store.batches import arrays_of, batch_of, content_hash, write_run

CALLS = [
    "step",
    "rank",
    "order",
    "name",
    "kind",
    "module",
    "phase",
    "parent",
    "arguments",
    "source_file",
    "source_line",
]
TENSORS = [
    "step",
    "rank",
    "call",
    "slot",
    "name",
    "dtype",
    "shape",
    "min",
    "max",
    "mean",
    "l2",
    "nan",
    "inf",
    "zero",
    "hash",
    "sketch",
    "kept",
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_run(tmp_path / "run")
    return tmp_path / "run"


def test_calls_are_a_row_each_with_the_users_own_frame(path: Path) -> None:
    calls = open_run(path).calls
    assert calls.column_names[: len(CALLS)] == CALLS
    more = ["module_class", "forward", "stack", "recompute", "error", "thread", "autocast"]
    more += ["source_function", "source_code", "own_error", "own_ulp", "verified"]
    assert set(calls.column_names) == {*CALLS, *more}
    row = calls.to_pylist()[5]
    assert (row["step"], row["rank"], row["order"], row["name"]) == (1, 0, 1, "Functional.linear.1.forward")
    assert (row["source_file"], row["source_line"], row["source_function"]) == ("model.py", 41, "forward")
    assert row["source_code"] == "return F.linear(x, w)"


def test_tensors_are_a_row_per_slot_with_the_fingerprint_of_its_tensor(path: Path) -> None:
    tensors = open_run(path).tensors
    assert tensors.column_names[: len(TENSORS)] == TENSORS
    more = ["posinf", "neginf", "elements", "device", "sampled", "placement", "tensor", "note"]
    assert set(tensors.column_names) == {*TENSORS, *more}
    rows = {(row["step"], row["name"]): row for row in tensors.to_pylist()}
    assert len(rows) == 3 * 8
    array = arrays_of(1)[2]
    for name in ("Functional.linear.2.forward.output.0", "Functional.linear.3.forward.input.0"):
        row = rows[1, name]
        assert (row["dtype"], row["shape"], row["hash"]) == ("float32", [2, 3], content_hash(array))
        assert (row["min"], row["max"]) == (array.min(), array.max())
        assert (row["inf"], row["kept"], row["sampled"]) == (0, True, False)
        expected = np.random.default_rng(1).standard_normal((4, 64))[2].astype(np.float32)
        np.testing.assert_array_equal(row["sketch"], expected)


def test_a_slot_that_was_not_measured_keeps_its_row_and_its_reason(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run", rank=0, manifest={}) as writer:
        writer.write(
            Batch(
                calls={"step": [0], "order": [0], "name": ["Functional.relu.0.forward"]},
                slots={"step": [0], "call": [0], "slot": ["input.0"], "tensor": [None], "note": ["on the meta device"]},
            )
        )
        writer.end_step(0, {})
    run = open_run(tmp_path / "run")
    (row,) = run.tensors.to_pylist()
    assert (row["name"], row["note"], row["kept"], row["sketch"], row["dtype"]) == (
        "Functional.relu.0.forward.input.0",
        "on the meta device",
        False,
        None,
        None,
    )
    with pytest.raises(NotKeptError):
        run.tensor("Functional.relu.0.forward.input.0")


def test_a_tensor_comes_back_by_its_name(path: Path) -> None:
    run = open_run(path)
    np.testing.assert_array_equal(run.tensor("Functional.linear.2.forward.output.0"), arrays_of(0)[2])
    np.testing.assert_array_equal(run.tensor("Functional.linear.3.forward.input.0", step=2, rank=0), arrays_of(2)[2])


def test_the_first_step_and_rank_that_have_a_tensor_are_taken(tmp_path: Path) -> None:
    for rank in (0, 1):
        with RunWriter(tmp_path / "run", rank=rank, manifest={}) as writer:
            for step in range(3):
                writer.write(batch_of(step, arrays_of(10 * rank + step), keep=rank == 1 and step == 2))
                writer.end_step(step, {})
    run = open_run(tmp_path / "run")
    np.testing.assert_array_equal(run.tensor("Functional.linear.0.forward.output.0"), arrays_of(12)[0])
    with pytest.raises(NotKeptError, match=r"capture again with tensors=\['Functional.linear.0\*'\]"):
        run.tensor("Functional.linear.0.forward.output.0", step=1)


def test_what_was_not_kept_says_how_to_keep_it(tmp_path: Path) -> None:
    write_run(tmp_path / "run", keep=False)
    with pytest.raises(NotKeptError, match=r"tensors=\['Functional.linear.3\*'\]") as caught:
        open_run(tmp_path / "run").tensor("Functional.linear.3.forward.input.0")
    assert isinstance(caught.value, RunError)


def test_an_unknown_tensor_names_the_nearest_or_the_step_that_has_it(path: Path) -> None:
    run = open_run(path)
    with pytest.raises(RunError, match=r"no tensor Functional.liner.1.forward.output.0 \(nearest: Functional.linear.1"):
        run.tensor("Functional.liner.1.forward.output.0")
    with pytest.raises(RunError, match="has no step 9 in rank 0: it has 0, 1, 2"):
        run.tensor("Functional.linear.1.forward.output.0", step=9)
    with pytest.raises(RunError, match="has no rank 3: it has 0"):
        run.tensor("Functional.linear.1.forward.output.0", rank=3)


def test_a_sample_is_given_by_sample_and_a_whole_by_tensor(tmp_path: Path) -> None:
    head = np.arange(3, dtype=ml_dtypes.bfloat16)
    with RunWriter(tmp_path / "run", rank=0, manifest={}) as writer:
        batch = batch_of(0, [head], sample=True)
        writer.write(Batch(batch.calls, batch.slots, {**batch.tensors, "shape": [[1000]]}, {}, batch.data))
        writer.write(batch_of(0, [np.ones(2)], first=1))
        writer.end_step(0, {})
    run = open_run(tmp_path / "run")
    assert run.sample("Functional.linear.0.forward.output.0").tolist() == head.tolist()
    with pytest.raises(NotKeptError, match=r"run.sample\(\) gives the sample"):
        run.tensor("Functional.linear.0.forward.output.0")
    with pytest.raises(NotKeptError, match=r"run.tensor\(\) gives the whole"):
        run.sample("Functional.linear.1.forward.output.0")
    row = run.tensors.to_pylist()[0]
    assert (row["kept"], row["sampled"]) == (False, True)


def test_step_tables_are_those_on_disk(path: Path) -> None:
    tables = open_run(path).step_tables(1, 0)
    assert tables.calls["step"].unique().to_pylist() == [1]
    assert (tables.calls.num_rows, tables.slots.num_rows, tables.tensors.num_rows) == (4, 8, 4)
    assert tables.tensors.schema.field("sketch").type == pa.list_(pa.float32(), 64)
    with pytest.raises(RunError, match="has no step 7"):
        open_run(path).step_tables(7, 0)


def test_skipped_calls_are_counted_by_reason(path: Path) -> None:
    run = open_run(path)
    assert run.skipped() == {"a reason": 3}
    assert run.skipped(step=1, rank=0) == {"a reason": 1}
    assert run.skipped(rank=5) == {}


def test_equal_tensors_of_different_steps_share_their_data(tmp_path: Path) -> None:
    same = np.arange(1000.0)
    with RunWriter(tmp_path / "run", rank=0, manifest={}) as writer:
        for step in range(5):
            writer.write(batch_of(step, [same, same + step]))
            writer.end_step(step, {})
    run = open_run(tmp_path / "run")
    places = {
        tuple(row.values())
        for s in range(5)
        for row in run.step_tables(s, 0).tensors.select(["shard", "key"]).to_pylist()
    }
    assert len(places) == 5  # `same` is also step 0's second tensor
    np.testing.assert_array_equal(run.tensor("Functional.linear.1.forward.output.0", step=4), same + 4)


def test_an_open_run_sees_a_shard_that_grew(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", rank=0, manifest={})
    writer.write(batch_of(0, [np.arange(3.0)]))
    writer.end_step(0, {})
    writer.flush()
    run = open_run(tmp_path / "run")
    run.tensor("Functional.linear.0.forward.output.0")
    shards = dict(run._shards)
    writer.write(batch_of(1, [np.arange(9.0)]))
    writer.end_step(1, {})
    writer.close()
    later = open_run(tmp_path / "run")
    later._shards.update(shards)
    assert later.tensor("Functional.linear.0.forward.output.0", step=1).size == 9


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6).astype(ml_dtypes.bfloat16).reshape(2, 3),
        np.arange(6).astype(ml_dtypes.float8_e4m3fn),
        np.arange(6).astype(ml_dtypes.float8_e5m2fnuz),
        np.array([1 + 2j, complex(np.nan, -np.inf)], np.complex64),
        np.array([[True, False]]),
        np.array(-0.0),
        np.array(3, np.complex128),
        np.zeros((0, 4), np.float16),
        np.array([2**63, 1], np.uint64),
    ],
    ids=lambda array: f"{array.dtype.name}{list(array.shape)}",
)
def test_shape_dtype_and_bits_come_back_exactly(tmp_path: Path, array: np.ndarray) -> None:
    with RunWriter(tmp_path / "run", rank=0, manifest={}) as writer:
        writer.write(batch_of(0, [np.ones(3, np.uint8), array]))  # three bytes before it: not aligned in the file
        writer.end_step(0, {})
    run = open_run(tmp_path / "run")
    back = run.tensor("Functional.linear.1.forward.output.0")
    assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, array.shape, array.tobytes())
    row = run.tensors.slice(3, 1).to_pylist()[0]
    assert (row["dtype"], row["shape"]) == (array.dtype.name, list(array.shape))


def test_a_run_can_be_moved(path: Path, tmp_path: Path) -> None:
    shutil.move(path, tmp_path / "elsewhere")
    run = open_run(tmp_path / "elsewhere")
    assert run.tensor("Functional.linear.0.forward.output.0").shape == (2, 3)


def test_joins_are_whole_columns_at_a_time(tmp_path: Path) -> None:
    """A hundred thousand slots, numbered out of order, joined in well under a second."""
    import time

    count = 50_000
    order = np.random.default_rng(0).permutation(count).astype(np.int32)
    with RunWriter(tmp_path / "run", rank=0, manifest={}) as writer:
        writer.write(
            Batch(
                calls={
                    "step": np.zeros(count, np.int32),
                    "order": order,
                    "name": [f"Torch.exp.{n}.forward" for n in order],
                },
                slots={
                    "step": np.zeros(2 * count, np.int32),
                    "call": np.repeat(np.arange(count, dtype=np.int32), 2),
                    "slot": pa.array(["input.0", "output.0"] * count),
                    "tensor": np.tile(np.arange(count, dtype=np.int32), 2),
                },
                tensors={"step": np.zeros(count, np.int32), "tensor": order, "min": order.astype(np.float64)},
            )
        )
        writer.end_step(0, {})
    run = open_run(tmp_path / "run")
    began = time.process_time()
    tensors = run.tensors
    assert time.process_time() - began < 4
    row = tensors.slice(77_777, 1).to_pylist()[0]
    assert row["name"] == f"Torch.exp.{77_777 // 2}.forward.output.0"
    assert row["min"] == 77_777 - count
