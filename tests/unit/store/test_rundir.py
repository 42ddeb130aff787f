from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from numscope.core.errors import RunError
from numscope.store.reader import open_run
from numscope.store.writer import RunWriter
from tests.unit.store.batches import write_run


def test_an_existing_run_is_an_error_unless_overwritten(tmp_path: Path) -> None:
    write_run(tmp_path / "run", steps=3)
    with pytest.raises(RunError, match=r"already holds a run: choose another.*overwrite=True \(--overwrite\)"):
        RunWriter(tmp_path / "run", rank=0, manifest={})
    write_run(tmp_path / "run", steps=1, overwrite=True, manifest={"framework": "paddle"})
    run = open_run(tmp_path / "run")
    assert run.steps == [0]
    assert run.manifest["framework"] == "paddle"


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_directory_that_is_no_run_is_never_touched(tmp_path: Path, overwrite: bool) -> None:
    precious = tmp_path / "results/rank0/thesis.txt"
    precious.parent.mkdir(parents=True)
    precious.write_text("years of work")
    with pytest.raises(RunError, match=r"not empty and not a numscope run \(found: rank0/\)"):
        RunWriter(tmp_path / "results", rank=0, manifest={}, overwrite=overwrite)
    assert precious.read_text() == "years of work"


def test_an_empty_directory_may_be_used_and_a_file_may_not(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    write_run(tmp_path / "run")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="is a file"):
        RunWriter(tmp_path / "file", rank=0, manifest={})


def test_a_directory_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"cannot write a run to .*: choose another directory"):
        RunWriter(tmp_path / "file" / "run", rank=0, manifest={})


def test_ranks_share_the_manifest_of_whoever_is_first(tmp_path: Path) -> None:
    write_run(tmp_path / "run", rank=1, manifest={"world_size": 2, "framework": "first", "devices": ["cuda:1"]})
    write_run(tmp_path / "run", rank=0, manifest={"world_size": 2, "framework": "second", "devices": ["cuda:0"]})
    run = open_run(tmp_path / "run")
    assert run.ranks == [0, 1]
    assert run.manifest["framework"] == "first"
    facts = [json.loads((tmp_path / f"run/rank{rank}/rank.json").read_text()) for rank in (0, 1)]
    assert [(fact["rank"], fact["devices"]) for fact in facts] == [(0, ["cuda:0"]), (1, ["cuda:1"])]
    assert facts[0]["pid"] > 0


def test_overwriting_removes_ranks_of_a_larger_world(tmp_path: Path) -> None:
    for rank in range(4):
        write_run(tmp_path / "run", rank=rank, manifest={"world_size": 4})
    for rank in (1, 0):
        write_run(tmp_path / "run", rank=rank, manifest={"world_size": 2}, steps=1, overwrite=True)
    run = open_run(tmp_path / "run")
    assert run.ranks == [0, 1]
    assert run.steps == [0]
    assert run.manifest["world_size"] == 2


def test_no_temporary_file_stays(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    assert not [path for path in (tmp_path / "run").rglob("*") if "tmp" in path.name]


def test_what_is_not_a_run_is_said_with_what_was_found(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="does not exist: give the directory that capture wrote"):
        open_run(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match="is empty"):
        open_run(tmp_path / "empty")
    (tmp_path / "file.json").write_text("{}")
    with pytest.raises(RunError, match="is a file"):
        open_run(tmp_path / "file.json")
    (tmp_path / "other/data").mkdir(parents=True)
    with pytest.raises(RunError, match=r"other has no manifest.json: is it a numscope run\? \(found: data/\)"):
        open_run(tmp_path / "other")
    (tmp_path / "dump/step0/rank0").mkdir(parents=True)
    (tmp_path / "dump/step0/rank0/dump.json").write_text("{}")
    with pytest.raises(RunError, match=r"\(found: step0/ — msprobe's layout; try `numscope import`\)"):
        open_run(tmp_path / "dump")


def test_a_part_of_a_run_or_a_folder_of_runs_names_the_run(tmp_path: Path) -> None:
    write_run(tmp_path / "runs/a")
    write_run(tmp_path / "runs/b")
    with pytest.raises(RunError, match=r"is one rank of a run: give .*runs/a$"):
        open_run(tmp_path / "runs/a/rank0")
    with pytest.raises(RunError, match=r"holds runs, it is not one: give .*runs/a \(or b\)"):
        open_run(tmp_path / "runs")


def test_another_format_version_is_refused_by_name(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    path = tmp_path / "run/manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": "numscope.run/9"}))
    with pytest.raises(RunError, match=r"format numscope.run/9, this numscope reads numscope.run/1: upgrade"):
        open_run(tmp_path / "run")
    path.write_text("{")
    with pytest.raises(RunError, match="not a numscope manifest"):
        open_run(tmp_path / "run")


@pytest.mark.parametrize("overwrite", [False, True])
def test_ranks_may_start_at_the_same_moment(tmp_path: Path, overwrite: bool) -> None:
    if overwrite:
        for rank in range(6):
            write_run(tmp_path / "run", rank=rank, steps=1, manifest={"world_size": 6})
    code = """
import sys, time
from numscope.store.writer import RunWriter
rank, begin = int(sys.argv[2]), float(sys.argv[3])
time.sleep(max(0, begin - time.time()))
with RunWriter(sys.argv[1], rank=rank, manifest={"world_size": 4}, overwrite=sys.argv[4] == "True") as writer:
    writer.end_step(7, {})
"""
    begin = str(time.time() + 1.5)
    jobs = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "run"), str(rank), begin, str(overwrite)])
        for rank in range(4)
    ]
    assert [job.wait(60) for job in jobs] == [0, 0, 0, 0]
    run = open_run(tmp_path / "run")
    assert (run.ranks, run.steps, run.manifest["world_size"]) == ([0, 1, 2, 3], [7], 4)
