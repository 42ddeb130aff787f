"""The residual is a second name of a tensor that is then added to in place: the stream goes in twice."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra, missing

ORIGIN = Truth(
    (
        call("Tensor.(iadd|add|add_)", "1"),
        extra("Tensor.(iadd|add_)", "1"),
        missing("Tensor.add", "1"),
    ),
    ("semantic", "input"),
    step=0,
    repair=(r"inplace=False",),
)


class Conformer(nn.Module):
    def __init__(self, variant, size=12):
        super().__init__()
        self.variant = variant
        self.pointwise = nn.Conv1d(size, 2 * size, 1)
        self.depthwise = nn.Conv1d(size, size, 3, padding=1, groups=size)
        self.feed = nn.Linear(size, size)

    def forward(self, x):
        residual = x
        h = F.glu(self.pointwise(x), dim=1)
        if self.variant == "target":
            h += residual
            residual = h
            h += self.depthwise(h)  # origin
        else:
            h = h + residual
            residual = h
            h = h + self.depthwise(h)  # missing
        return residual + self.feed(h.mT).mT


@torch.inference_mode()
def main(variant):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(4, 12, 3), Conformer(variant), nn.AdaptiveAvgPool1d(1), nn.Flatten()).eval()
    return model(torch.randn(2, 4, 10)).flatten().tolist()


if __name__ == "__main__":
    run(main)
