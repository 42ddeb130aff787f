"""`bisect --axis compile` looks into compiled regions by itself, and names the line. Slow: `make compiled` runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bench import compiled_pairs

pytestmark = pytest.mark.skipif(not os.environ.get("COMPILED_JOBS"), reason="make compiled runs it")

SCRIPT = """
import os
import torch, torch.nn.functional as F
from torch import nn

@torch.library.custom_op("job::scaled", mutates_args=())
def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * (1.52 if os.environ["FAULT"] == "operator" else 1.5)

scaled.register_fake(torch.empty_like)
scaled.register_autograd(lambda ctx, gradient: gradient * 1.5)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)
        self.register_buffer("memory", torch.zeros(32))
    def forward(self, x):
        h = self.up(self.norm(x))
        h = scaled(h) if torch.compiler.is_compiling() else h * 1.5  # operator
        if float(h.detach().abs().max()) > 1e6:
            h = h * 0.5
        memory = F.dropout(self.memory, 0.0, training=self.training) if os.environ["FAULT"] == "write" else self.memory
        memory.mul_(0.5).add_(h.detach().mean(0))  # write
        return x + self.down(F.silu(h)) + memory.mean()

torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
step = torch.compile(model)
for _ in range(2):
    step(torch.randn(4, 16)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("fault", ["operator", "write", "none"])
def test_bisect_names_the_line_inside_a_compiled_region(tmp_path: Path, fault: str) -> None:
    script, out = tmp_path / "train.py", tmp_path / "out"
    script.write_text(SCRIPT)
    environment = {**os.environ, "FAULT": fault, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    command = ["bisect", "--target", f"python {script}", "--axis", "compile", "--out", out, "--no-check"]
    done = subprocess.run(
        [sys.executable, "-m", "numscope", *map(str, command)], env=environment, capture_output=True, text=True
    )
    report = json.loads((out / "report.json").read_text())
    if fault == "none":
        assert (done.returncode, report["verdict"]) == (0, "equivalent"), done.stderr
        return
    assert done.returncode == 1, done.stderr
    [line] = [number for number, text in enumerate(SCRIPT.splitlines(), 1) if text.endswith(f"# {fault}")]
    assert report["origin"]["source"]["line"] == line, report["origin"]
    assert report["origin"]["mechanism"] == "device"


@pytest.mark.parametrize("dtype", compiled_pairs.DTYPES)
@pytest.mark.parametrize("name", ["opt", "vit", "t5", "llama"])
def test_clean_models_are_equivalent_compiled_and_eager(tmp_path: Path, name: str, dtype: str) -> None:
    assert compiled_pairs.run(name, dtype, "cpu", tmp_path).is_clean
    torch._dynamo.reset()
