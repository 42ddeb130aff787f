"""A checkpoint is loaded leniently, and the head, whose name has changed, silently stays as it was made."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.script import run
from bench.zoo.truth import Answer, Truth, missing, parameter

ORIGIN = Truth(
    (
        parameter("classifier.weight"),
        parameter("classifier.bias"),
        missing("Tensor.copy_"),
        Answer(r"Functional\.linear\.\d+\.forward", module="classifier", marker=None),
    ),
    ("parameter", "input"),
)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv1d(2, 8, 3), nn.ReLU(), nn.Conv1d(8, 8, 3), nn.ReLU())
        self.classifier = nn.Linear(8, 5)

    def forward(self, x):
        return self.classifier(self.features(x).mean(-1))


def main(variant):
    torch.manual_seed(7)
    saved = Net().state_dict()
    if variant == "target":
        saved = {name.replace("classifier", "fc"): value for name, value in saved.items()}
    torch.manual_seed(0)
    model = Net()
    model.load_state_dict(saved, strict=False)  # missing
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    values = []
    for _ in range(2):
        loss = F.cross_entropy(model(torch.randn(4, 2, 12)), torch.tensor([0, 1, 2, 3]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
