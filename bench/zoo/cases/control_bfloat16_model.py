"""A whole model in bfloat16, its inputs too, against float32: forward and backward, one step."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.script import run

CONTROL = True


class Block(nn.Module):
    def __init__(self, size=32):
        super().__init__()
        self.norm = nn.RMSNorm(size)
        self.attention = nn.MultiheadAttention(size, 4, batch_first=True, bias=False)
        self.feed = nn.Sequential(nn.RMSNorm(size), nn.Linear(size, 64), nn.SiLU(), nn.Linear(64, size))

    def forward(self, x):
        h = self.norm(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.feed(x)


def main(variant):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 32), Block(), Block(), Block(), nn.Linear(32, 5))
    dtype = torch.bfloat16 if variant == "target" else torch.float32
    model.to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    values = []
    for _ in range(2):
        x = torch.randn(4, 7, 12)
        loss = F.cross_entropy(model(x.to(dtype)).float().flatten(0, 1), x[..., :5].argmax(-1).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
