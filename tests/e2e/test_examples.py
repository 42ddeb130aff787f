"""The examples run as their READMEs say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

# folder: the command in it, the exit status, and what it must say
EXPECTED = {
    "01_capture_and_compare": ("main.py", 0, ["verdict: diverged", "layer_norm", "eps"]),
    "02_unchanged_script": ("run.sh", 1, ["step 1: loss", "layer_norm", "train.py", "dropout"]),
    "03_read_a_run": ("main.py", 0, ["the largest gradient: Functional.linear", "relu's output: float32 (4, 16)"]),
    "04_trainer": ("run.sh", 1, ["DIVERGED", "AdamW"]),
    "05_attention_kernels": ("main.py", 0, ["equivalent"]),
    "06_memory_format": ("main.py", 0, ["equivalent"]),
    "07_experts": ("main.py", 0, ["only the reference has this call", "normalises to one"]),
    "08_cached_decoding": ("main.py", 0, ["step 1: arange"]),
    "09_detection": ("main.py", 0, ["self.centre", "repair: equal to the reference with other=0.5"]),
    "10_two_ranks": ("run.sh", 1, ["EQUIVALENT", "DIVERGED"]),
    "11_torch_and_paddle": ("main.py", 0, ["gelu"]),
    "12_compiled": ("main.py", 0, ["equivalent"]),
    "13_custom_operator": ("main.py", 0, ["backward Tensor.div", "only the target has this call"]),
    "14_converted_checkpoint": ("main.py", 0, ["parameter qkv.weight"]),
    "15_ci": ("run.sh", 0, ["1 passed"]),
    "16_same_weights": ("main.py", 0, ["identical: q_proj, k_proj, v_proj", "diverged: layers.1", "not in the order"]),
}


def test_every_example_is_tested_and_listed() -> None:
    folders = {path.name for path in EXAMPLES.iterdir() if path.is_dir()}
    assert folders == set(EXPECTED)
    index = (EXAMPLES / "README.md").read_text()
    for folder in folders:
        assert folder in index
        assert (EXAMPLES / folder / "README.md").exists()


@pytest.mark.parametrize("folder", sorted(EXPECTED))
def test_the_example_does_what_it_says(folder: str, tmp_path: Path) -> None:
    script, status, said = EXPECTED[folder]
    path = EXAMPLES / folder / script
    command = [sys.executable, str(path)] if script.endswith(".py") else ["sh", str(path)]
    programs = tmp_path / "programs"  # `numscope` and `python`, as an activated environment gives them
    programs.mkdir()
    for name, words in (("numscope", "-m numscope"), ("python", "")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == status, done.stdout + done.stderr
    for words in said:
        assert words in done.stdout, f"{words!r} is not in\n{done.stdout}"
