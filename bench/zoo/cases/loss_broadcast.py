"""Predictions (n, 1) minus labels (n): every prediction is compared with every label."""

import torch
from torch import nn

from bench.zoo.script import run
from bench.zoo.truth import Truth, call, missing

ORIGIN = Truth(
    (call("Tensor.sub"), missing("Tensor.squeeze")),
    ("semantic",),
    step=0,
    repair=(r"missing: Tensor\.squeeze\.0\.forward \(-1\)",),
)


def main(variant):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 10), nn.Tanh(), nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    values = []
    for _ in range(3):
        x = torch.randn(8, 3)
        y = x.sum(1)
        prediction = model(x)
        if variant == "reference":
            prediction = prediction.squeeze(-1)  # missing
        loss = (prediction - y).abs().mean()  # origin
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
