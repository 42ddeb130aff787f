"""A compiled model against the same model run eagerly."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.script import run

CONTROL = True


class Mixer(nn.Module):
    def __init__(self, tokens=6, width=12):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.mix = nn.Sequential(nn.Linear(tokens, 16), nn.GELU(), nn.Linear(16, tokens))
        self.feed = nn.Sequential(nn.Linear(width, 24), nn.GELU(), nn.Linear(24, width))

    def forward(self, x):
        x = x + self.mix(self.norms[0](x).mT).mT
        return x + self.feed(self.norms[1](x))


def main(variant):
    torch.manual_seed(0)
    model = nn.Sequential(Mixer(), nn.Flatten(), nn.Linear(72, 5))
    step = torch.compile(model, backend="eager") if variant == "target" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    values = []
    for _ in range(2):
        x, y = torch.randn(4, 6, 12), torch.randint(5, (4,))
        loss = F.cross_entropy(step(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
