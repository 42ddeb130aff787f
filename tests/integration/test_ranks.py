"""Several ranks, in real processes: one run with a rank each, nothing changed, shards with their places."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import numscope as ns


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    out = tmp_path_factory.mktemp("ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = Path(__file__).with_name("ranks.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), str(port), str(out)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return {path.name: ns.open_run(path) for path in out.iterdir()}


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_each_process_is_a_rank_of_one_run(kind, runs):
    run = runs[kind]
    assert run.ranks == [0, 1]
    assert run.steps == [0, 1]
    assert run.manifest["world_size"] == 2


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_the_same_job_twice_is_identical_whatever_its_memory_held(kind, runs):
    assert ns.compare(runs[f"{kind}-again"], runs[kind]).verdict == "identical"


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_operators_of_the_same_job_twice_are_identical_and_a_wrong_one_is_found(kind, runs):
    assert ns.compare(runs[f"{kind}-aten-again"], runs[f"{kind}-aten"]).verdict == "identical"
    wrong = ns.compare(runs[f"{kind}-aten-wrong"], runs[f"{kind}-aten"])
    assert wrong.verdict == "diverged"
    assert wrong.origin.call == "Aten.mul.0.forward"


def test_a_collective_is_one_call_at_the_level_of_operators(runs):
    names = {row["name"].split(".")[1] for row in runs["fsdp2-aten"].calls.to_pylist() if row["kind"] == "collective"}
    assert names == {"all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce"}
    rows = [row for row in runs["ddp-aten"].tensors.to_pylist() if row["name"].startswith("Distributed.allreduce_.")]
    assert {row["note"] for row in rows if row["slot"].startswith("output")} == {"not waited for"}
    assert {row["note"] for row in rows if row["slot"].startswith("input")} == {None}


def test_a_collectives_result_is_as_it_is_after_wait(runs):
    run = runs["ddp"]
    name = "Distributed.all_reduce"
    for step in (0, 1):
        given = [float(run.tensor(f"{name}.0.forward.input.0.0", step=step, rank=rank)) for rank in (0, 1)]
        for rank in (0, 1):
            got = float(run.tensor(f"{name}.0.forward.output.0.0", step=step, rank=rank))
            assert got == pytest.approx(sum(given), rel=1e-6)
            waited = float(run.tensor(f"{name}.1.forward.output.0.0", step=step, rank=rank))
            assert waited == got
    arguments = {
        row["name"]: json.loads(row["arguments"])["kwargs"]
        for row in run.calls.to_pylist()
        if row["kind"] == "collective" and row["rank"] == 0
    }
    assert arguments[f"{name}.0.forward"] == {"group_size": 2, "group_rank": 0, "op": "SUM"}
    assert arguments[f"{name}.1.forward"]["op"] == "MAX"


def test_a_shard_is_recorded_with_its_place_in_the_whole(runs):
    rows = [row for row in runs["fsdp2"].tensors.to_pylist() if row["placement"]]
    assert rows
    for row in rows:
        place = json.loads(row["placement"])
        assert place["placements"] == ["S(0)"]
        assert place["coordinate"] == [row["rank"]]
        assert row["shape"][0] * 2 == place["shape"][0]
    names = runs["fsdp2"].calls.column("name").to_pylist()
    assert any("all_gather" in name for name in names)
    assert any("reduce_scatter" in name for name in names)
