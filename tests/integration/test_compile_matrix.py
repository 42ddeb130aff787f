"""Compiled jobs are left alone: the same bits and the same counts of torch's own as without capture. `make compiled` runs all."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import numscope as ns
from bench import compiled

CPU = torch.device("cpu")
ROOT = Path(compiled.__file__).parents[1]

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler"),
    pytest.mark.filterwarnings("ignore"),  # Dynamo's own
]


@pytest.fixture(scope="module")
def plain() -> Iterator[compiled.Plain]:
    """The results of jobs without capture, and the caches that they have filled."""
    with compiled.cache():
        yield compiled.Plain(CPU)


@pytest.mark.parametrize(
    ("job", "level", "twins", "order"),
    [
        ("graph_breaks", "mix", True, "before"),
        ("graph_breaks", "aten", False, "between"),
        ("graph_breaks", "module", True, "after"),
        ("optimizer_function", "aten", True, "before"),
        ("optimizer_function", "module", False, "between"),
        ("checkpoint_outside", "api", True, "before"),
        ("checkpoint_outside", "aten", True, "after"),
        ("compiled_autograd_eager", "mix", True, "before"),
        ("compiled_autograd_eager", "aten", False, "between"),
        ("compiled_autograd_eager", "module", True, "after"),
    ],
)
def test_a_compiled_job_does_the_same_as_without_capture(
    plain: compiled.Plain, tmp_path: Path, job: str, level: str, twins: bool, order: str
) -> None:
    expected = plain(job)  # which fills the caches
    assert compiled.captured(job, CPU, tmp_path / "run", level, twins, order).differences(expected) == []


def test_the_matrix_sees_a_job_that_is_disturbed(
    plain: compiled.Plain, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from numscope.capture.torch.levels.compiled import CompiledRegions

    monkeypatch.setattr(CompiledRegions, "install", lambda regions: lambda: None)
    try:
        seen = compiled.captured("graph_breaks", CPU, tmp_path / "run", "mix", True, "before")
    finally:
        torch._dynamo.reset()
    assert len(seen.differences(plain("graph_breaks"))) > 1


def test_numscope_run_leaves_a_script_alone_that_loads_dynamo_later(tmp_path: Path) -> None:
    """Capture begins when torch is loaded: nothing of Dynamo's is there yet."""
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    found = []
    for name in ("cold", "warm", "captured"):
        script = [f"{ROOT}/bench/compiled.py", "--observe", "llama_blocks", "--out", str(tmp_path / f"{name}.json")]
        command = [sys.executable, *script]
        if name == "captured":
            order = ["-m", "numscope", "run", "--level", "mix", "--out", str(tmp_path / "run"), "--"]
            command = [sys.executable, *order, *script]
        subprocess.run(command, env=environment, check=True, capture_output=True)
        found.append(compiled.Seen(**json.loads((tmp_path / f"{name}.json").read_text())))
    assert found[0].bits == found[1].bits
    assert found[2].differences(found[1]) == []
    run = ns.open_run(tmp_path / "run")
    assert run.steps[: compiled.STEPS] == list(range(compiled.STEPS))
    assert run.skipped()["compiled region: its inside is not seen"] >= compiled.STEPS
