"""The deviation is exp(log variance), without the half."""

import torch

from bench.zoo.models import sequence
from bench.zoo.models.training import parameter_norm
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, missing

ORIGIN = Truth((missing("Tensor.r?mul", ""), call("Torch.exp", "")), ("semantic",), step=0, repair=("times 0.5",))


class VAE(sequence.VAE):
    variant = "reference"

    def draw(self, mean, log_variance):
        if self.variant == "target":
            deviation = torch.exp(log_variance)  # origin
        else:
            deviation = torch.exp(0.5 * log_variance)  # missing
        return mean + deviation * torch.randn_like(deviation)


def main(variant):
    torch.manual_seed(0)
    VAE.variant = variant
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x = torch.randn(8, 48, generator=torch.Generator().manual_seed(1))
    values = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = sequence.vae_loss(model, x)
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return [*values, parameter_norm(model)]


if __name__ == "__main__":
    run(main)
