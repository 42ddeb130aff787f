"""Real msprobe, from PyPI, in an environment of its own: we read its dumps, and it reads our exports."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import numscope as ns
from numscope.__main__ import main
from tests.integration.msprobe_net import Net

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("MSPROBE_PYTHON") or ROOT / ".venv-msprobe" / "bin" / "python")
PEER = Path(__file__).with_name("msprobe_peer.py")

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason=f"no msprobe: {PYTHON} is missing (make test installs it)")


def peer(job: str, target: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run([PYTHON, PEER, job, target], capture_output=True, text=True, env=environment, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-2000:]


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dumps")
    peer("dump", out)
    for task in ("statistics", "tensor", "md5"):
        assert main(["import", str(out / task), str(out / f"run_{task}")]) == 0
    return out


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The same net with the same seed, captured by numscope."""
    torch.manual_seed(0)
    net = Net()
    path = tmp_path_factory.mktemp("ours") / "run"
    with ns.capture(path, net, keep="tensors", on_error="raise") as cap:
        for _ in range(2):
            net(torch.randn(10, 8)).sum().backward()
            cap.step()
    return ns.open_run(path)


def rows(run: Any, step: int = 0) -> dict[str, dict[str, Any]]:
    table = run.tensors.drop_columns(["sketch"]).to_pylist()
    return {row["name"]: row for row in table if row["step"] == step}


def test_its_tensors_are_ours_bit_for_bit(dumps: Path, ours: Any) -> None:
    theirs, mine = rows(ns.open_run(dumps / "run_tensor")), rows(ours)
    shared = set(theirs) & set(mine)
    assert {"Functional.relu.0.forward.output.0", "Module.linear_2.Linear.backward.0.parameters_grad.weight"} <= shared
    assert {"Functional.linear.1.backward.output.1", "Functional.linear.1.backward.output.2"} <= shared
    assert not set(theirs) - set(mine)
    for name in shared:
        assert theirs[name]["hash"] == mine[name]["hash"], name


def test_its_statistics_are_read_and_nothing_else_is_claimed(dumps: Path, ours: Any) -> None:
    theirs, mine = rows(ns.open_run(dumps / "run_statistics"), 1), rows(ours, 1)
    name = "Functional.relu.0.forward.output.0"
    assert theirs[name]["hash"] is None
    assert theirs[name]["nan"] is None
    for column in ("min", "max", "mean", "l2"):
        assert theirs[name][column] == pytest.approx(mine[name][column], rel=1e-5)


def test_its_checksums_fill_the_hash_and_the_manifest_says_so(dumps: Path, ours: Any) -> None:
    run = ns.open_run(dumps / "run_md5")
    name = "Functional.relu.0.forward.output.0"
    assert rows(run)[name]["hash"] == zlib.crc32(np.ascontiguousarray(ours.tensor(name)).tobytes())
    assert run.manifest["hash"] == "msprobe"


def test_it_compares_and_draws_what_we_export(ours: Any, tmp_path: Path) -> None:
    dest = tmp_path / "export"
    assert main(["export", str(ours.path), str(dest), "--format", "msprobe"]) == 0
    folder = str(dest / "step0" / "rank")
    for name in ("compared", "stats", "drawn"):
        (tmp_path / name).mkdir()
    commands = [
        ["compare", "-tp", f"{folder}/dump.json", "-gp", f"{folder}/dump.json", "-o", str(tmp_path / "compared")],
        ["graph_visualize", "-tp", folder, "-gp", folder, "-o", str(tmp_path / "drawn")],
    ]
    (tmp_path / "commands.json").write_text(json.dumps(commands))
    peer("run", tmp_path / "commands.json")
    (table,) = (tmp_path / "compared").glob("compare_result_*.csv")
    with table.open(newline="") as stream:
        lines = list(csv.DictReader(stream))
    byname = {line["NPU Name"]: line for line in lines}
    relu = byname["Functional.relu.0.forward.output.0"]
    assert float(relu["Cosine"]) == 1.0
    assert float(relu["MaxAbsErr"]) == 0.0
    assert relu["Result"] == "pass"
    assert "test_msprobe" in relu["NPU_Stack_Info"] or "msprobe_net" in str(lines)
    assert {line["Result"] for line in lines} == {"pass"}
    assert list((tmp_path / "drawn").glob("compare_*.vis.db"))


class Twice(nn.Module):
    """A model whose names msprobe has no trouble with, one step without gradients."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.exp(x) + x


def test_it_compares_statistics_alone(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.LayerNorm(3), Twice())
    with ns.capture(tmp_path / "run", model) as cap:
        # A list among the arguments, gradients of named ones, a slice, an infinity.
        model(torch.randn(2, 3)).masked_fill(torch.zeros(2, 3).bool(), float("-inf"))[:, 1:].sum().backward()
        cap.step()
    main(["export", str(tmp_path / "run"), str(tmp_path / "export"), "--format", "msprobe"])
    (tmp_path / "out").mkdir()
    folder = str(tmp_path / "export" / "step0" / "rank" / "dump.json")
    (tmp_path / "commands.json").write_text(
        json.dumps([["compare", "-tp", folder, "-gp", folder, "-o", str(tmp_path / "out")]])
    )
    peer("run", tmp_path / "commands.json")
    assert list((tmp_path / "out").glob("compare_result_*.csv"))
