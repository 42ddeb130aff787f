"""A Fourier layer goes back with another normalisation than it came with."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.script import run
from bench.zoo.truth import Truth, call

ORIGIN = Truth((call("Fft.irfft", "layers.1"),), ("semantic",), step=0, repair=("ortho",))


class Spectral(nn.Module):
    def __init__(self, width, modes, back):
        super().__init__()
        self.modes, self.back = modes, back
        self.weight = nn.Parameter(torch.randn(width, width, modes, dtype=torch.cfloat) / width)
        self.skip = nn.Conv1d(width, width, 1)

    def forward(self, x):
        spectrum = torch.fft.rfft(x, norm="ortho")
        out = torch.zeros_like(spectrum)
        out[..., : self.modes] = torch.einsum("bim,iom->bom", spectrum[..., : self.modes], self.weight)
        return F.gelu(torch.fft.irfft(out, n=x.shape[-1], norm=self.back) + self.skip(x))  # origin


class Operator(nn.Module):
    def __init__(self, back):
        super().__init__()
        self.lift = nn.Conv1d(1, 8, 1)
        self.layers = nn.ModuleList([Spectral(8, 5, "ortho"), Spectral(8, 5, back)])
        self.drop = nn.Conv1d(8, 1, 1)

    def forward(self, u):
        h = self.lift(u)
        for layer in self.layers:
            h = layer(h)
        return self.drop(h)


def main(variant):
    torch.manual_seed(0)
    model = Operator("backward" if variant == "target" else "ortho")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    values = []
    for _ in range(2):
        u = torch.randn(3, 1, 16).cumsum(-1)
        loss = F.mse_loss(model(u), u.roll(1, -1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
