"""Each parameter's gradient is clipped by its own norm instead of all by the norm of all."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import clip_grad_norm_

from bench.zoo.script import run
from bench.zoo.truth import Answer, Truth

# Whatever call of the clipping is named, it is named at the line that clips.
ORIGIN = Truth(
    (
        Answer(r"(Torch|Tensor|Functional)\.\w+\.\d+\.forward"),
        Answer(r"(Torch|Tensor|Functional)\.\w+\.\d+\.forward", ("extra",)),
        Answer(r"(Torch|Tensor|Functional)\.\w+\.\d+\.forward", ("missing",), marker="missing"),
    ),
    ("semantic", "input"),
    step=0,
)


def main(variant):
    torch.manual_seed(0)
    net = nn.GRU(5, 9, num_layers=2, batch_first=True)
    head = nn.Linear(9, 3)
    both = [*net.parameters(), *head.parameters()]
    opt = torch.optim.SGD(both, lr=0.5)
    values = []
    for _ in range(2):
        x, y = torch.randn(4, 6, 5) * 3, torch.randint(3, (4,))
        loss = F.cross_entropy(head(net(x)[0][:, -1]), y)
        opt.zero_grad()
        loss.backward()
        if variant == "target":
            for p in both:
                clip_grad_norm_(p, 0.1)  # origin
        else:
            clip_grad_norm_(both, 0.1)  # missing
        opt.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
