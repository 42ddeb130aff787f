"""An activation works in place on the tensor that is kept for the skip connection."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra, module

ORIGIN = Truth(
    (
        module("down.1.0", "ReLU"),
        call("Functional.(relu_?)", "down.1.0", marker=None),
        call("Torch.(relu_?)", "down.1.0", marker=None),
        extra("Torch.relu_", "down.1.0", marker=None),
        extra("Functional.relu_", "down.1.0", marker=None),
    ),
    ("semantic",),
    step=0,
    repair=(r"inplace=False",),
)


class UNet(nn.Module):
    def __init__(self, inplace, width=8):
        super().__init__()
        self.down = nn.ModuleList(
            [
                nn.Conv2d(2, width, 3, padding=1),
                nn.Sequential(nn.ReLU(inplace=inplace), nn.MaxPool2d(2), nn.Conv2d(width, 2 * width, 3, padding=1)),
                nn.Sequential(nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(2 * width, 4 * width, 3, padding=1)),
            ]
        )
        self.up = nn.ModuleList(
            [nn.ConvTranspose2d(4 * width, 2 * width, 2, 2), nn.ConvTranspose2d(4 * width, width, 2, 2)]
        )
        self.out = nn.Conv2d(2 * width, 1, 1)

    def forward(self, x):
        skips = []
        for stage in self.down:
            x = stage(x)
            skips.append(x)
        skips.pop()
        for stage in self.up:
            x = torch.cat([stage(x), skips.pop()], 1)
        return self.out(x)


def main(variant):
    torch.manual_seed(0)
    net = UNet(inplace=variant == "target")
    opt = torch.optim.RMSprop(net.parameters(), lr=1e-3)
    values = []
    for _ in range(2):
        image = torch.randn(2, 2, 16, 16)
        mask = (image.sum(1, keepdim=True) > 0).float()
        loss = F.binary_cross_entropy_with_logits(net(image), mask)
        opt.zero_grad()
        loss.backward()
        opt.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
