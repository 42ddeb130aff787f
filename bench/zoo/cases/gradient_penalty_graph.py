"""The critic's gradient penalty has no graph of its own: its value is right and teaches nothing."""

import torch
from torch import nn

from bench.zoo.script import run
from bench.zoo.truth import Answer, Truth, missing

# The penalty's first backward call is not there; its calls and autograd.grad stand on marked lines.
ORIGIN = Truth(
    (
        Answer(r"(Torch|Tensor|Autograd)\.\w+\.\d+\.\w+"),
        Answer(r"(Torch|Tensor|Autograd)\.\w+\.\d+\.\w+", ("extra", "missing")),
        # What the penalty should have added to the critic's gradients, by the line of its call.
        Answer(r"Module\.\S+\.Linear\.backward\.\d+"),
        missing(r"Tensor.\w+"),
        missing(r"Torch.\w+"),
    ),
    ("semantic",),
    step=0,
)


def penalty(critic, real, fake, variant):
    mix = torch.lerp(real, fake, torch.rand(len(real), 1)).requires_grad_()
    keep = variant == "reference"
    (gradient,) = torch.autograd.grad(critic(mix).sum(), mix, create_graph=keep)  # origin
    return (gradient.norm(dim=1) - 1).square().mean()  # origin # missing


def main(variant):
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(6, 24), nn.Softplus(), nn.Linear(24, 24), nn.Softplus(), nn.Linear(24, 1))
    generator = nn.Sequential(nn.Linear(3, 16), nn.LeakyReLU(0.2), nn.Linear(16, 6))
    adam = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.0, 0.9))
    values = []
    for _ in range(2):
        real, fake = torch.randn(8, 6), generator(torch.randn(8, 3)).detach()
        loss = critic(fake).mean() - critic(real).mean() + 10 * penalty(critic, real, fake, variant)
        adam.zero_grad()
        loss.backward()
        adam.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
