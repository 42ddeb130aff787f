"""The optimizer is made before the head is replaced: it goes on updating the old head's weights."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.script import run
from bench.zoo.truth import Answer, Truth, optimizer, parameter

ORIGIN = Truth(
    (
        optimizer("SGD"),
        # or, a step later, the weights that did not move
        parameter("head.weight"),
        parameter("head.bias"),
        Answer(r".*head\.(weight|bias)", marker=None),
    ),
    ("semantic", "parameter", "input"),
)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 6, 3, stride=2), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(54, 10)

    def forward(self, x):
        return self.head(self.stem(x))


def main(variant):
    torch.manual_seed(0)
    model = Classifier()
    early = torch.optim.SGD(model.parameters(), lr=0.1)
    model.head = nn.Linear(54, 4)
    late = torch.optim.SGD(model.parameters(), lr=0.1)
    used = early if variant == "target" else late
    values = []
    for _ in range(3):
        loss = F.cross_entropy(model(torch.randn(4, 1, 8, 8)), torch.arange(4))
        used.zero_grad()
        model.zero_grad()
        loss.backward()
        used.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
