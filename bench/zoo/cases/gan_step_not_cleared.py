"""The generator's step leaves its gradients in the discriminator, which then adds its own to them."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.script import run
from bench.zoo.truth import Answer, Truth, missing, optimizer

ORIGIN = Truth(
    (
        optimizer("Adam"),
        missing("Tensor.zero_"),
        Answer(r".*zero_grad.*", ("missing",), marker=None),
        # The discriminator's first accumulated gradient.
        Answer(r"Module\.\S*\.Linear\.backward\.\d+", phase="backward", marker=None),
        Answer(r"Functional\.linear\.\d+\.backward", phase="backward", marker=None),
        Answer(r".*parameters_grad.*", marker=None),
    ),
    ("input", "semantic"),
)


def main(variant):
    torch.manual_seed(0)
    maker = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6), nn.Tanh())
    judge = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    opt_maker = torch.optim.Adam(maker.parameters(), lr=1e-2)
    opt_judge = torch.optim.Adam(judge.parameters(), lr=1e-2)
    values = []
    for _ in range(3):
        fake = maker(torch.randn(8, 4))
        opt_maker.zero_grad()
        loss_maker = F.softplus(-judge(fake)).mean()
        loss_maker.backward()
        opt_maker.step()
        if variant == "reference":
            opt_judge.zero_grad()  # missing
        real = torch.randn(8, 6).tanh()
        loss_judge = F.softplus(-judge(real)).mean() + F.softplus(judge(fake.detach())).mean()
        loss_judge.backward()
        opt_judge.step()
        if variant == "target":
            opt_judge.zero_grad()
        values += [loss_maker.item(), loss_judge.item()]
    return values


if __name__ == "__main__":
    run(main)
