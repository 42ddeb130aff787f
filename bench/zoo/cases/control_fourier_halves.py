"""A Fourier layer by the whole spectrum of complex numbers, and by the half that real numbers need."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.script import run

CONTROL = True


class Spectral(nn.Module):
    def __init__(self, width, modes, whole):
        super().__init__()
        self.modes, self.whole = modes, whole
        self.weight = nn.Parameter(torch.randn(width, width, modes, dtype=torch.cfloat) / width)
        self.skip = nn.Conv1d(width, width, 1)

    def forward(self, x):
        n = x.shape[-1]
        spectrum = torch.fft.fft(x)[..., : n // 2 + 1] if self.whole else torch.fft.rfft(x)
        out = torch.zeros_like(spectrum)
        out[..., : self.modes] = torch.einsum("bim,iom->bom", spectrum[..., : self.modes], self.weight)
        return F.gelu(torch.fft.irfft(out, n=n) + self.skip(x))


class Operator(nn.Module):
    def __init__(self, whole):
        super().__init__()
        self.lift = nn.Conv1d(1, 8, 1)
        self.layers = nn.ModuleList([Spectral(8, 9, whole) for _ in range(3)])
        self.drop = nn.Conv1d(8, 1, 1)

    def forward(self, u):
        h = self.lift(u)
        for layer in self.layers:
            h = layer(h)
        return self.drop(h)


def main(variant):
    torch.manual_seed(0)
    model = Operator(whole=variant == "target")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    values = []
    for _ in range(2):
        u = torch.randn(3, 1, 240).cumsum(-1)
        loss = F.mse_loss(model(u), u.roll(1, -1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
