"""A mixture of experts whose router forgot to normalise the weights of the chosen experts."""

import torch
import torch.nn.functional as F
from torch import nn

import numscope as ns


class Experts(nn.Module):
    def __init__(self, width: int, count: int, normalise: bool) -> None:
        super().__init__()
        self.gate = nn.Linear(width, count, bias=False)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(count))
        self.normalise = normalise

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = F.softmax(self.gate(x), -1).topk(2, -1)
        if self.normalise:
            weights = weights / weights.sum(-1, keepdim=True)
        result = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, slot = torch.where(chosen == number)
            result = result.index_add(0, rows, expert(x[rows]) * weights[rows, slot].unsqueeze(-1))
        return result


def run(path: str, normalise: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), Experts(16, 4, normalise), nn.Linear(16, 4))
    with ns.capture(path, model, keep="tensors", overwrite=True):
        model(torch.randn(12, 8)).square().mean().backward()


run("runs/reference", normalise=True)
run("runs/target", normalise=False)
report = ns.diagnose("runs/target", "runs/reference")
print(report.origin.reason)
print(report.origin.repair)
