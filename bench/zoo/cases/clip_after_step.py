"""The gradients are clipped when the optimizer has already used them."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import clip_grad_value_

from bench.zoo.script import run
from bench.zoo.truth import Answer, Truth, missing, optimizer

ORIGIN = Truth(
    (
        optimizer("SGD"),
        missing(r"Torch.\w+"),
        missing(r"Tensor.\w+"),
        Answer(r"(Torch|Tensor)\.\w+\.\d+\.forward", ("extra",)),
    ),
    ("input", "semantic"),
    step=0,
    repair=(r"missing: Torch\._foreach_clamp_min_\.0\.forward \(-0\.02\)",),
)


def main(variant):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(9, 20), nn.PReLU(), nn.Linear(20, 5))
    sgd = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.5)
    values = []
    for _ in range(3):
        x = torch.randn(6, 9) * 4
        loss = F.multi_margin_loss(net(x), torch.tensor([0, 1, 2, 3, 4, 0]))
        sgd.zero_grad()
        loss.backward()
        if variant == "reference":
            clip_grad_value_(net.parameters(), 0.02)  # missing
        sgd.step()
        if variant == "target":
            clip_grad_value_(net.parameters(), 0.02)  # origin
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
