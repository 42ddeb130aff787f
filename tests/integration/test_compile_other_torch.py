"""A torch that lacks one of the internals that capture asks of Dynamo: the job runs as without capture, and a line says what is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

JOB = """
import json, sys, types, warnings
import torch, torch._dynamo
from torch._dynamo import compiled_autograd
from torch._dynamo.utils import counters

def without(module, *names):
    other = types.ModuleType(module)
    vars(other).update({name: value for name, value in vars(sys.modules[module]).items() if name not in names})
    sys.modules[module] = other

what, path = sys.argv[1:]
if what in ("no switch", "no switch, no callbacks"):
    without("torch._dynamo.eval_frame", "set_eval_frame", "_maybe_set_eval_frame")
if what in ("no callbacks", "no switch, no callbacks"):
    without("torch._dynamo.callback", "callback_handler")
if what == "no switch in C":
    del torch._C._dynamo.eval_frame.get_eval_frame_callback

def train(around):
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = torch.compile(model, backend="aot_eager")
    losses = []
    with around(model) as capture:
        for _ in range(3):
            loss = (step(torch.ones(2, 4)).sin() * 2).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            if hasattr(capture, "step"):
                capture.step()
    return losses, dict(counters["stats"]), dict(counters["graph_break"])

from contextlib import nullcontext
plain = train(nullcontext)
import numscope as ns
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    seen = train(lambda model: ns.capture(path, model, level="aten"))
run = ns.open_run(path)
print(json.dumps({
    "same": seen == plain,
    "told": [str(one.message) for one in told if "numscope" in str(one.message)],
    "calls": len(run.calls),
    "skipped": run.skipped(),
    "again": train(nullcontext) == plain,
}))
"""


@pytest.mark.parametrize("what", ["no switch", "no switch, no callbacks", "no callbacks", "no switch in C"])
def test_a_job_is_left_alone_where_torch_lacks(tmp_path: Path, what: str) -> None:
    job = subprocess.run(
        [sys.executable, "-c", JOB, what, str(tmp_path / "run")], capture_output=True, text=True, timeout=300
    )
    assert job.returncode == 0, job.stderr[-3000:]
    found = json.loads(job.stdout.splitlines()[-1])
    assert found["same"], found
    assert found["again"], found
    if what.startswith("no switch,") or what == "no switch":
        [line] = found["told"]
        assert "this torch does not tell when a compiled region runs" in line
        assert [why for why in found["skipped"] if why in line]
    else:
        assert found["told"] == []
        assert found["calls"] > 0
        assert "compiled region: its inside is not seen" in found["skipped"]


LATER = """
import json, sys, types, warnings
import torch
import numscope as ns
path, order = sys.argv[1:]
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    with ns.capture(path, None, level="aten") as capture:
        torch.exp(torch.ones(2))
        if order == "loaded before it":
            import torch._dynamo
        double = torch.compile(lambda x: x * 2, backend="eager")
        double(torch.ones(2))
run = ns.open_run(path)
print(json.dumps([[str(one.message) for one in told], run.calls["name"].to_pylist()]))
"""


@pytest.mark.parametrize("order", ["loaded before it", "loaded by it"])
def test_what_ran_before_the_first_compile_is_recorded(tmp_path: Path, order: str) -> None:
    """Under `numscope run`, capture begins before Dynamo is loaded."""
    hide = (
        "import numscope.capture.torch.levels.compiled as levels, types\n"
        "real = levels.sys\n"
        "names = {name: value for name, value in vars(real).items()}\n"
        "class Modules(dict):\n"
        "    def get(self, name, default=None):\n"
        "        return None if name.endswith('eval_frame') else real.modules.get(name, default)\n"
        "    def __contains__(self, name):\n"
        "        return name in real.modules\n"
        "levels.sys = types.SimpleNamespace(**{**names, 'modules': Modules()})\n"
    )
    script = LATER.replace("import numscope as ns\n", "import numscope as ns\n" + hide)
    job = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "run"), order], capture_output=True, text=True, timeout=300
    )
    assert job.returncode == 0, job.stderr[-3000:]
    told, calls = json.loads(job.stdout.splitlines()[-1])
    assert len([line for line in told if "does not tell when a compiled region runs" in line]) == 1
    assert [name for name in calls if "exp" in name]
    assert not [name for name in calls if "mul" in name]
