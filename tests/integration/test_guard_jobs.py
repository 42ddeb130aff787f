"""The guard around whole jobs: scripts under `numscope run --guard`, and several ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import numscope as ns


def test_numscope_run_guard_watches_a_script(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nfrom torch import nn\nm = nn.Linear(2, 2)\nx = m(torch.ones(1, 2))\ntorch.log(x * 0)\n"
    )
    command = [sys.executable, "-m", "numscope", "run", "--guard", "--", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "NonFiniteError" in done.stderr
    assert "train.py:5" in done.stderr
    assert ns.open_run(tmp_path / "numscope-guard").manifest["guard"]["origin"]["source"]["line"] == 5


def test_numscope_run_guard_is_silent_on_a_sound_script(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\nprint(torch.ones(2).log().sum().item())\n")
    command = [sys.executable, "-m", "numscope", "run", "--guard", "--out", str(tmp_path / "run"), "--", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "0.0\n")
    assert not (tmp_path / "run").exists()


def test_numscope_run_guard_twice_leaves_two_records(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\ntorch.log(torch.zeros(2))\n")
    for place in ("numscope-guard", "numscope-guard-2"):
        command = [sys.executable, "-m", "numscope", "run", "--guard", "--", str(script)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 1, done.stderr
        assert f"the record is in {place}:" in done.stderr
        assert ns.open_run(tmp_path / place).manifest["guard"]["origin"]["call"] == "Torch.log.0.forward"


SHARDED = """
import sys, warnings, torch, torch.distributed as dist, numscope as ns
from torch import nn
from torch.distributed.fsdp import fully_shard

rank, level, deferred = int(sys.argv[1]), sys.argv[3], sys.argv[4] == "deferred"
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
fully_shard(model[0]), fully_shard(model[2]), fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
warnings.simplefilter("ignore")
with ns.guard(model, action="warn", max_hits=9, record=None, level=level, deferred=deferred) as guard:
    for step in range(3):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).sum()
        if rank == 1 and step == 1:
            loss = torch.sqrt(loss * 0)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
print([(o.call, o.rank, o.step) for o in guard.origins])
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("level", "late", "call"),
    [
        ("module", "deferred", "Module.FSDPSequential.backward.0"),
        ("mix", "at once", "Torch.sqrt.0.backward"),
        ("mix", "deferred", "Torch.sqrt.0.backward"),
    ],
)
def test_one_ranks_gradient_in_a_sharded_model_is_that_ranks_alone(
    level: str, late: str, call: str, tmp_path: Path
) -> None:
    script = tmp_path / "sharded.py"
    script.write_text(SHARDED)
    words = [str(tmp_path / "store"), level, late]
    jobs = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]
    told = [job.communicate(timeout=120) for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], told
    assert [out.strip() for out, _ in told] == ["[]", str([(call, 1, 1)])], told


RANKS = """
import sys, warnings, torch, torch.distributed as dist, numscope as ns
from torch import nn

rank, deferred, wrapped = int(sys.argv[1]), sys.argv[4] == "deferred", sys.argv[5] == "ddp"
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
torch.manual_seed(0)
model = nn.Linear(4, 1)
if wrapped:
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
warnings.simplefilter("always")
with ns.guard(model, action="warn", record=sys.argv[3], deferred=deferred) as guard:
    for step in range(2):
        loss = model(torch.ones(2, 4))
        if rank == 1:
            loss = torch.sqrt(loss * 0)  # origin
        loss.sum().backward()
        for parameter in model.parameters():
            if not wrapped:
                dist.all_reduce(parameter.grad)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
print([(o.call, o.rank, o.source.line) for o in guard.origins])
dist.destroy_process_group()
"""


@pytest.mark.parametrize("late", ["at once", "deferred"])
@pytest.mark.parametrize("wrapped", ["by hand", "ddp"])
def test_one_ranks_gradient_spread_by_all_reduce_is_inherited_by_the_others(
    wrapped: str, late: str, tmp_path: Path
) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    line = next(n for n, text in enumerate(RANKS.splitlines(), 1) if "# origin" in text)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    jobs = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(tmp_path / "store"), str(tmp_path / "run"), late, wrapped],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(2)
    ]
    told = [job.communicate(timeout=120) for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], told
    assert told[0][0].strip() == "[]", told
    through = "Torch._foreach_norm.0.forward" if wrapped == "ddp" else "Distributed.all_reduce.0.forward"
    assert f"came in from another rank through {through}" in told[0][1], told[0]
    assert told[1][0].strip() == str([("Torch.sqrt.0.backward", 1, line)]), told


SCALED = """
import sys, warnings, torch, torch.distributed as dist, numscope as ns
from torch import nn

rank, late = int(sys.argv[1]), sys.argv[3] == "deferred"
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120)
warnings.simplefilter("error")
with ns.guard(model, record=None, deferred=late) as guard:
    for _ in range(3):
        optimizer.zero_grad()
        loss = (model(torch.ones(2, 4)) * (1e5 if rank else 1.0)).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
print(guard.origins, guard.skipped_steps)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("late", ["at once", "deferred"])
def test_an_overflow_on_one_rank_under_a_scaler_is_a_skipped_step_on_both(late: str, tmp_path: Path) -> None:
    script = tmp_path / "scaled.py"
    script.write_text(SCALED)
    jobs = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(tmp_path / "store"), late],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]
    told = [job.communicate(timeout=120) for job in jobs]
    assert [out.strip() for out, _ in told] == ["[] [0, 1, 2]"] * 2, told
