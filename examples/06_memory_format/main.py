"""A residual network in channels_last against the usual layout: other kernels, the same network."""

import torch
from torch import nn

import numscope as ns


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(x + self.norm2(self.conv2(inner)))


def run(path: str, layout: torch.memory_format) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), Block(8), Block(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    )
    model, images = model.to(memory_format=layout), torch.randn(4, 3, 12, 12).to(memory_format=layout)
    with ns.capture(path, model, overwrite=True):
        nn.functional.cross_entropy(model(images), torch.tensor([0, 1, 2, 3])).backward()


run("runs/contiguous", torch.contiguous_format)
run("runs/channels_last", torch.channels_last)
comparison = ns.compare("runs/channels_last", "runs/contiguous")
print(comparison.verdict)
print(comparison.report.reason)
