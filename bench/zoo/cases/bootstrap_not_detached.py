"""Q-learning: the bootstrapped value is part of the graph, so that the target moves with the gradient."""

import torch
from torch import nn

from bench.zoo.script import run
from bench.zoo.truth import Answer, Truth, missing

ORIGIN = Truth(
    (
        missing("Tensor.detach"),
        # The first gradient that should not be there, or the calls that hand it on.
        Answer(r"(Tensor|Torch)\.\w+\.\d+\.backward", ("extra",), marker="chain"),
        Answer(r"(Tensor|Torch)\.\w+\.\d+\.backward", phase="backward", marker="chain"),
    ),
    ("semantic",),
    step=0,
)


def main(variant):
    torch.manual_seed(0)
    q = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.Adam(q.parameters(), lr=1e-2)
    values = []
    for _ in range(3):
        state, after = torch.randn(8, 4), torch.randn(8, 4)
        action, reward = torch.randint(3, (8, 1)), torch.randn(8)
        best = q(after).max(1).values  # chain
        if variant == "reference":
            best = best.detach()  # missing
        goal = reward + 0.9 * best  # chain
        chosen = q(state).gather(1, action).squeeze(1)
        loss = (goal - chosen).square().mean()  # chain
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
