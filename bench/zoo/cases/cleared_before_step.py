"""In the second stage of training the gradients are cleared between backward and step: nothing is learned there."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.script import run
from bench.zoo.truth import Answer, Truth, extra, optimizer

ORIGIN = Truth(
    (
        optimizer("AdamW"),
        Answer(r".*zero_grad.*", ("extra",), marker=None),
        extra("Tensor.zero_"),
        Answer(r"Torch\._foreach_zero_\.\d+\.forward", ("extra",)),
    ),
    ("input", "semantic"),
    step=1,
)


def main(variant):
    torch.manual_seed(0)
    net = nn.ModuleList([nn.Linear(6, 10), nn.Linear(10, 10), nn.Linear(10, 2)])
    optimizer_ = torch.optim.AdamW(net.parameters(), lr=1e-2)
    values = []
    for number in range(3):
        x = torch.randn(7, 6)
        h = x
        for layer in net[:-1]:
            h = F.relu(layer(h))
        loss = F.mse_loss(net[-1](h), x[:, :2])
        optimizer_.zero_grad(set_to_none=False)
        loss.backward()
        if number > 0 and variant == "target":
            optimizer_.zero_grad(set_to_none=False)  # origin
        optimizer_.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
