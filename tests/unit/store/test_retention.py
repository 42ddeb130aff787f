"""A long run stays within its limits: the oldest steps go, and what is left is whole."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import numscope as ns
from numscope.core.errors import SettingsError
from numscope.core.settings import CaptureSettings
from numscope.store.rundir import STEPS
from numscope.store.writer import Limits, RunWriter
from tests.unit.store.batches import batch_of

torch = pytest.importorskip("torch")


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def written(path: Path, steps: int, limits: Limits, watch: list[int] | None = None) -> ns.Run:
    rng = np.random.default_rng(0)
    with RunWriter(path, rank=0, manifest={}, limits=limits) as writer:
        for step in range(steps):
            writer.write(batch_of(step, [rng.standard_normal(1000).astype(np.float32), np.ones(7, np.float32)]))
            writer.end_step(step, {})
            if watch is not None:
                writer.flush()
                watch.append(size_of(path))
    return ns.open_run(path)


@pytest.mark.parametrize("last", [1, 2, 7, 20])
def test_the_last_steps_stay(tmp_path: Path, last: int) -> None:
    run = written(tmp_path / "run", 60, Limits(steps=last))
    assert run.steps[-1] == 59
    assert run.steps == list(range(60 - len(run.steps), 60))
    assert last <= len(run.steps) <= last + max(1, last // 8)
    assert set(run.calls["step"].to_pylist()) == set(run.steps)
    for step in run.steps:
        for row in run.step_tables(step, 0).tensors.to_pylist():
            assert run.array(0, row["shard"], row["key"], row["dtype"], tuple(row["shape"])).size
    shards = {row["shard"] for step in run.steps for row in run.step_tables(step, 0).tensors.to_pylist()}
    assert {file.name for file in (tmp_path / "run/rank0").glob("*.safetensors")} == shards
    assert len((tmp_path / "run/rank0" / STEPS).read_bytes().splitlines()) == len(run.steps)


def test_files_stay_below_their_limit(tmp_path: Path) -> None:
    most = 10**6
    sizes: list[int] = []
    run = written(tmp_path / "run", 300, Limits(bytes=most), sizes)
    assert max(sizes) <= most
    assert max(sizes) > most // 2  # and are not thrown away for nothing
    assert run.steps[-1] == 299


def test_a_run_without_limits_keeps_all(tmp_path: Path) -> None:
    assert written(tmp_path / "run", 30, Limits()).steps == list(range(30))


def test_calls_have_their_stacks_though_the_steps_that_named_them_are_gone(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    with ns.capture(tmp_path / "run", model, keep_last=2, on_error="raise") as cap:
        for step in range(12):
            y = model(torch.ones(1, 2))
            if step == 11:
                y = y.relu()
            cap.step()
    run = ns.open_run(tmp_path / "run")
    assert run.steps == [10, 11]
    assert set(run.calls["source_function"].to_pylist()) == {
        "test_calls_have_their_stacks_though_the_steps_that_named_them_are_gone"
    }
    assert len(run.stacks(0)["stack"].to_pylist()) == len(set(run.stacks(0)["stack"].to_pylist()))


def test_steps_that_were_not_to_stay_are_no_lack(tmp_path: Path) -> None:
    def capture(name: str, last: int) -> None:
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 2)
        with ns.capture(tmp_path / name, model, keep_last=last, on_error="raise") as cap:
            for _ in range(6):
                model(torch.ones(1, 2)).sum().backward()
                cap.step()

    capture("few", 2)
    capture("all", 0)
    result = ns.compare(tmp_path / "few", tmp_path / "all")
    assert result.verdict == "identical"
    assert not result.report.coverage["missing"]


def test_sizes_are_read_as_people_write_them() -> None:
    assert CaptureSettings.of(max_bytes="1.5 GB").max_bytes == 1_500_000_000
    assert CaptureSettings.of(max_bytes=12).max_bytes == 12
    for wrong in ("much", "-1", "1 XB"):
        with pytest.raises(SettingsError, match="50GB"):
            CaptureSettings.of(max_bytes=wrong)
    with pytest.raises(SettingsError, match="keep_last"):
        CaptureSettings.of(keep_last=-1)


def test_a_kill_while_steps_are_deleted_leaves_a_run(tmp_path: Path) -> None:
    run = written(tmp_path / "run", 9, Limits(steps=3))
    rank = tmp_path / "run/rank0"
    # Killed between the new list of steps and the deletion: a segment that no line names.
    gone = json.loads((rank / STEPS).read_bytes().splitlines()[0])["segment"]
    lines = (rank / STEPS).read_bytes().splitlines(keepends=True)
    (rank / STEPS).write_bytes(b"".join(lines[1:]))
    facts = json.loads((rank / "rank.json").read_bytes())
    from numscope.store.checksums import sealed

    (rank / "rank.json").write_text(json.dumps(sealed({**facts, "end": "", "steps": 0})))
    again = ns.open_run(tmp_path / "run")
    assert again.steps == run.steps[1:]
    assert gone in again._ranks[0].segments()
    for step in again.steps:
        assert again.step_tables(step, 0).calls.num_rows
