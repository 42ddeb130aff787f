"""A compiled model against the eager one: what the compiler fuses and reorders is rounding, and the comparison knows it."""

import torch
from torch import nn

import numscope as ns


def run(path: str, compiled: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4))
    job = torch.compile(model, backend="aot_eager") if compiled else model
    with ns.capture(path, job, overwrite=True):
        job(torch.randn(8, 16)).square().mean().backward()


run("runs/eager", compiled=False)
run("runs/compiled", compiled=True)
comparison = ns.compare("runs/compiled", "runs/eager")
print(comparison.verdict)
print(comparison.report.reason)
