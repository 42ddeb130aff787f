"""Inductor reads memory that nobody has written: a norm in eval mode, then a padding that cuts (pytorch issue 195582)."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.script import run
from bench.zoo.truth import Truth, compiled

OPTIONS = ("--compiled", "inside")
ORIGIN = Truth((compiled(),), ("device",))


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 50, (2, 2))
        self.bn = nn.BatchNorm2d(50)
        self.fc = nn.Linear(50, 10)

    def forward(self, x):
        x = self.bn(self.conv(x))  # origin
        x = x.view(x.shape[0], -1)
        x = F.pad(x, (0, 50 - x.shape[-1]))  # origin
        return self.fc(x)


def main(variant):
    torch.manual_seed(420)
    model = Head().eval()
    step = torch.compile(model) if variant == "target" else model
    with torch.no_grad():
        return [step(torch.randn(3, 1, 4, 4)).square().mean().item() for _ in range(2)]


if __name__ == "__main__":
    run(main)
