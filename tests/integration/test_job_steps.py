"""The steps of a job that was not changed for us: its optimizers end them, and each begins to count anew."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import numscope as ns

FIRST = {
    "a function": "x = torch.randint(0, 9, (2, 4)).float()",
    "the model": "x = ones",
}
SCRIPT = """
import torch
torch.manual_seed(0)
model, ones = torch.nn.Linear(4, 2), torch.ones(2, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    {first}
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("level", ["mix", "aten"])
@pytest.mark.parametrize("first", list(FIRST))
def test_a_call_has_the_same_name_in_every_step_and_whichever_steps_are_recorded(
    first: str, level: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(first=FIRST[first]))
    names = {}
    for steps in ("0-2", "2"):
        line = [sys.executable, "-m", "numscope", "run", "--level", level, "--steps", steps]
        line += ["--out", str(tmp_path / steps), "--", "train.py"]
        subprocess.run(line, check=True, cwd=tmp_path)
        for row in ns.open_run(tmp_path / steps).calls.to_pylist():
            names.setdefault((steps, row["step"]), []).append(row["name"])
    assert names["0-2", 1] == names["0-2", 2] == names["2", 2]
    assert all(".0." in name or name.endswith(".0") for name in names["0-2", 1] if "randint" in name or "Data" in name)
