"""Kernels from a framework with (height, width, in, out) are turned to (in, out, …) instead of (out, in, …)."""

import numpy as np
import torch
from torch import nn

from bench.zoo.script import run
from bench.zoo.truth import Answer, Truth, call, parameter

ORIGIN = Truth(
    (
        parameter("2.weight"),
        call("Tensor.permute"),
        # The copy's source is turned another way.
        call("Tensor.copy_"),
        Answer(r"Data\..*", kinds=("data",)),
    ),
    ("parameter", "input", "semantic"),
    step=0,
    repair=(r"axes 0 and 1 .*transposed", r"dims=\[3, 2, 0, 1\] \(now \[2, 3, 0, 1\]\)"),
)


def checkpoint():
    rng = np.random.default_rng(3)
    shapes = {"stem": (3, 3, 3, 8), "body": (3, 3, 8, 8)}
    return {name: rng.standard_normal(shape, dtype=np.float32) * 0.2 for name, shape in shapes.items()}


def load(model, arrays, variant):
    order = (2, 3, 0, 1) if variant == "target" else (3, 2, 0, 1)
    with torch.no_grad():
        model[0].weight.copy_(torch.from_numpy(arrays["stem"]).permute(3, 2, 0, 1))
        model[2].weight.copy_(torch.from_numpy(arrays["body"]).permute(order))  # origin


@torch.no_grad()
def main(variant):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.Hardswish(), nn.Conv2d(8, 8, 3), nn.Hardswish(), nn.Flatten(), nn.Linear(128, 4)
    ).eval()
    load(model, checkpoint(), variant)
    return model(torch.randn(2, 3, 8, 8)).flatten().tolist()


if __name__ == "__main__":
    run(main)
