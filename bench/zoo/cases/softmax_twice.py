"""The model ends with a softmax, and so does its loss."""

import torch
from torch import nn

from bench.zoo.script import run
from bench.zoo.truth import Answer, Truth, extra

ORIGIN = Truth(
    (
        Answer(r"Functional\.softmax\.\d+\.forward", ("extra",), "4", marker=None),
        Answer(r"Module\.4\.Softmax\.forward\.\d+", ("extra",), marker=None),
        extra("Torch.softmax", "4", marker=None),
    ),
    ("semantic",),
    step=0,
    repair=(r"without Functional\.softmax\.0",),
)


def main(variant):
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 4, 3), nn.Hardtanh(), nn.Flatten(), nn.Linear(64, 6)]
    if variant == "target":
        layers.append(nn.Softmax(dim=1))
    model, criterion = nn.Sequential(*layers), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=0.5)
    values = []
    for _ in range(2):
        loss = criterion(model(torch.randn(6, 1, 6, 6)), torch.arange(6))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
