"""The averaged model is validated with the batch norm statistics it was created with: its buffers are never copied."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.script import run
from bench.zoo.truth import Answer, Truth, missing, parameter

ORIGIN = Truth(
    (
        missing("Tensor.copy_"),
        parameter("bn.running_mean"),
        Answer(r"(.*\.)?running_(mean|var)", kinds=("parameter",), marker=None),
    ),
    ("parameter", "semantic"),
)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.bn = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 4)

    def forward(self, x):
        return self.fc(F.relu(self.bn(self.conv(x))).amax((-2, -1)))


@torch.no_grad()
def update(average, model, variant, decay=0.9):
    for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
        slow.mul_(decay).add_(fast, alpha=1 - decay)
    if variant == "reference":
        for slow, fast in zip(average.buffers(), model.buffers(), strict=True):
            slow.copy_(fast)  # missing


def main(variant):
    torch.manual_seed(0)
    model = Net()
    average = copy.deepcopy(model).eval()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(3):
        x, y = torch.randn(8, 3, 6, 6) + 0.5, torch.randint(0, 4, (8,))
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        update(average, model, variant)
    with torch.no_grad():
        return [average(torch.ones(2, 3, 6, 6)).norm().item()]


if __name__ == "__main__":
    run(main)
