"""The encoder's strided convolution pads on all sides, where the weights come from one that pads right and below."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.script import run
from bench.zoo.truth import Answer, Truth, call, missing, module

PATH = "encoder.1"
ORIGIN = Truth(
    (
        call("Functional.conv2d", PATH, marker=None),
        module(PATH, "Conv2d"),
        call("Functional.conv2d", f"{PATH}.conv", marker=None),
        module(f"{PATH}.conv", "Conv2d"),
        module(PATH, "Downsample"),
        missing("Functional.pad", PATH),
        Answer(rf"Module\.{PATH}\.conv\.Conv2d\.forward\.\d+", marker=None),
    ),
    ("semantic",),
    step=0,
    repair=(r"missing: Functional\.pad",),
)


class Downsample(nn.Module):
    def __init__(self, width, padding):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, 2, padding)

    def forward(self, x):
        if self.conv.padding == (0, 0):
            x = F.pad(x, (0, 1, 0, 1))  # missing
        return self.conv(x)


class AutoEncoder(nn.Module):
    def __init__(self, padding, width=8):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), Downsample(width, padding), nn.SiLU(), nn.Conv2d(width, 4, 1)
        )
        self.decoder = nn.Sequential(
            nn.Conv2d(2, width, 1), nn.SiLU(), nn.ConvTranspose2d(width, width, 4, 2, 1), nn.Conv2d(width, 1, 1)
        )

    def encode(self, x):
        return self.encoder(x).chunk(2, dim=1)

    def forward(self, x, noise):
        mean, log_variance = self.encode(x)
        z = mean + noise * (0.5 * log_variance).exp()
        kl = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).sum((1, 2, 3)).mean()
        return self.decoder(z), kl


def main(variant):
    torch.manual_seed(0)
    model = AutoEncoder(padding=1 if variant == "target" else 0)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.5, 0.9))
    values = []
    for _ in range(2):
        x, noise = torch.rand(3, 1, 8, 8), torch.randn(3, 2, 4, 4)
        y, kl = model(x, noise)
        loss = (y - x).abs().mean() + 1e-3 * kl
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
