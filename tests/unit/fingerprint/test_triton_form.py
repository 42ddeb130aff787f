"""Triton's form, as far as it can be seen without a GPU; bench/gpu_fingerprint.py does the same on one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[3]


def test_the_interpreted_kernels_agree_with_the_definition() -> None:
    pytest.importorskip("triton")
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.unit.fingerprint.interpreted"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.endswith("agree\n")


def test_tensors_are_shared_among_programs_in_multiples_of_61() -> None:
    pytest.importorskip("triton")
    from numscope.fingerprint.triton_form import MOST_PROGRAMS, MOST_TILES, TUNING, programs_for

    assert programs_for(1) == 1
    assert programs_for(TUNING.programs) == TUNING.programs
    for tiles in (TUNING.programs + 1, 10 * TUNING.programs, 61 * 2000, MOST_PROGRAMS * MOST_TILES):
        assert programs_for(tiles) % 61 == 0
        assert -(-tiles // programs_for(tiles)) <= MOST_TILES


def test_dimensions_that_follow_one_another_are_taken_as_one() -> None:
    pytest.importorskip("triton")
    from numscope.fingerprint.triton_form import collapsed

    heads = torch.empty(2, 8, 4, 16).transpose(1, 2)
    assert collapsed(heads, 1) == [16, 8, 4, 2, 1, 64, 16, 512, 0, 5]
    assert collapsed(torch.empty(6, 1, 5)[:, :, :3], 1) == [3, 6, 1, 1, 1, 5, 0, 0, 0, 3]
    assert collapsed(torch.empty(1).expand(4, 5), 1) == [20, 1, 1, 1, 0, 0, 0, 0, 0, 3]
    assert collapsed(torch.empty(4096, 4096).T, 1) is None
    assert collapsed(torch.empty(2, 2, 2, 2, 2, 2).permute(5, 4, 3, 2, 1, 0), 1) is None
