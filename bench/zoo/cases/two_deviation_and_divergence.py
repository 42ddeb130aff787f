"""The deviation is the variance, and the divergence counts ten times in the loss."""

import torch
import torch.nn.functional as F

from bench.zoo.models import sequence
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, missing

ORIGIN = Truth(
    (
        missing("Tensor.mul", "", marker="deviation"),
        missing("Tensor.rmul", "", marker="deviation"),
        call("Torch.exp", "", marker="deviation"),
    ),
    ("semantic",),
    step=0,
    second=(call("Tensor.(mul|rmul)", "", marker="weight"),),
)


class VAE(sequence.VAE):
    variant = "reference"

    def draw(self, mean, log_variance):
        if self.variant == "target":
            deviation = torch.exp(log_variance)  # deviation
        else:
            deviation = torch.exp(0.5 * log_variance)  # deviation
        return mean + deviation * torch.randn_like(deviation)


def main(variant):
    torch.manual_seed(0)
    model = VAE()
    model.variant = variant
    weight = 0.1 if variant == "target" else 0.01
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.randn(2, 16, 48, generator=torch.Generator().manual_seed(1))
    losses = []
    for x in data:
        optimizer.zero_grad()
        made, mean, log_variance = model(x)
        divergence = sequence.divergence(mean, log_variance)
        loss = F.mse_loss(made, x) + weight * divergence  # weight
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    run(main)
