"""A vector quantiser's commitment loss stops the gradient of the wrong side: all values are right, the gradients not."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra, missing

ORIGIN = Truth(
    (
        call("Functional.mse_loss", "quantiser"),
        call("Tensor.detach", "quantiser"),
        extra("Tensor.detach", "quantiser"),
        missing("Tensor.detach", "quantiser"),
    ),
    ("semantic",),
    step=0,
    repair=(r"Functional\.embedding\.0\.forward\.output\.0 in this place",),
)


class Quantiser(nn.Module):
    def __init__(self, variant, codes=12, size=6):
        super().__init__()
        self.codebook = nn.Parameter(torch.randn(codes, size))
        self.variant = variant

    def forward(self, z):
        nearest = torch.cdist(z, self.codebook).argmin(-1)
        q = F.embedding(nearest, self.codebook)
        codebook_loss = F.mse_loss(q, z.detach())
        if self.variant == "target":
            commitment = F.mse_loss(z.detach(), q)  # origin
        else:
            commitment = F.mse_loss(z, q.detach())  # missing
        return z + (q - z).detach(), codebook_loss + 0.25 * commitment


class Model(nn.Module):
    def __init__(self, variant):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(10, 20), nn.ELU(), nn.Linear(20, 6))
        self.quantiser = Quantiser(variant)
        self.decoder = nn.Sequential(nn.Linear(6, 20), nn.ELU(), nn.Linear(20, 10))

    def forward(self, x):
        q, extra_loss = self.quantiser(self.encoder(x))
        return self.decoder(q), extra_loss


def main(variant):
    torch.manual_seed(0)
    model = Model(variant)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    values = []
    for _ in range(3):
        x = torch.randn(16, 10)
        y, extra_loss = model(x)
        loss = F.mse_loss(y, x) + extra_loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
