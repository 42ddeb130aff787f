"""The target draws a random number for its log, which shifts all later draws."""

import torch

from bench.zoo.models.sequence import VAE, vae_loss
from bench.zoo.models.training import parameter_norm
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra

ORIGIN = Truth((extra("Torch.rand"), call("Torch.randn_like", "", marker=None)), ("input", "unknown"), step=0)


def main(variant):
    torch.manual_seed(0)
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x = torch.randn(8, 48, generator=torch.Generator().manual_seed(1))
    values = []
    for _ in range(2):
        if variant == "target":
            torch.rand(1)  # origin
        optimizer.zero_grad()
        loss = vae_loss(model, x)
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return [*values, parameter_norm(model)]


if __name__ == "__main__":
    run(main)
