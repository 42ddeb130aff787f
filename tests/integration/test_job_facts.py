"""A run says of its job how many ranks it has, how they are arranged, and how each of them ended."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import numscope as ns
from numscope.__main__ import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("job")
    script = Path(__file__).with_name("job_facts.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), str(out)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return out


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["show", *words]) == 0
    return capsys.readouterr().out


def test_the_manifest_has_the_mesh_and_show_prints_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arranged = ns.open_run(folder / "mesh").manifest["arrangement"]
    assert arranged["backend"] == "gloo"
    assert arranged["mesh"] == [{"names": ["shard"], "shape": [2], "ranks": [0, 1]}]
    assert "job           2 ranks by gloo; mesh shard 2\n" in shown(capsys, str(folder / "mesh"))


def test_the_manifest_has_the_schedule_of_a_pipeline(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schedule = ns.open_run(folder / "pipeline").manifest["arrangement"]["schedule"]
    assert schedule == {"name": "ScheduleGPipe", "micro_batches": 4, "stages": 2}
    text = shown(capsys, str(folder / "pipeline"))
    assert "2 ranks by gloo; ScheduleGPipe, 4 micro-batches, 2 stages" in text
    assert "ended" not in text


def test_show_says_which_ranks_ended_how_and_which_were_not_recorded(
    folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = shown(capsys, str(folder / "ending"))
    assert "rank 1 with RuntimeError in or after step 1; 1 rank at their end" in text
    job = json.loads(shown(capsys, str(folder / "ending"), "--json"))["job"]
    assert job["world_size"] == 2
    assert job["ends"] == {"0": {"end": "closed", "step": 1}, "1": {"end": "RuntimeError", "step": 1}}
    shutil.copytree(folder / "ending", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "rank1")
    assert "missing       1 of 2\n" in shown(capsys, str(tmp_path / "run"))


def test_a_run_of_one_process_has_no_job_to_tell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    with ns.capture(tmp_path / "run", model := torch.nn.Linear(2, 2)):
        model(torch.ones(1, 2))
    assert ns.open_run(tmp_path / "run").manifest["arrangement"] == {}
    assert "  job  " not in shown(capsys, str(tmp_path / "run"))
