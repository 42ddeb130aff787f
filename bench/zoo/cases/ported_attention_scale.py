"""Attention was rewritten with one fused projection and sdpa; its scale is that of the whole width, not of a head."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra

NAME = "Functional.scaled_dot_product_attention"
ORIGIN = Truth((call(NAME), extra(NAME)), ("semantic",), step=0)


class Manual(nn.Module):
    def __init__(self, size=24, heads=3):
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(size, size) for _ in range(3))
        self.o_proj = nn.Linear(size, size)

    def forward(self, x):
        q, k, v = (
            p(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        weights = torch.softmax(scores.masked_fill(mask, float("-inf")), -1)
        return self.o_proj((weights @ v).transpose(1, 2).flatten(2))


class Fused(nn.Module):
    def __init__(self, old):
        super().__init__()
        self.heads = old.heads
        self.c_attn, self.c_proj = nn.Linear(24, 72), old.o_proj
        with torch.no_grad():
            parts = (old.q_proj, old.k_proj, old.v_proj)
            self.c_attn.weight.copy_(torch.cat([p.weight for p in parts]))
            self.c_attn.bias.copy_(torch.cat([p.bias for p in parts]))

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.c_attn(x).split(24, -1))
        scale = x.shape[-1] ** -0.5
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)  # origin
        return self.c_proj(y.transpose(1, 2).reshape_as(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln, self.attn = nn.LayerNorm(24), Manual()

    def forward(self, x):
        return x + self.attn(self.ln(x))


def main(variant):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(32, 24), Layer(), Layer(), nn.Linear(24, 32))
    if variant == "target":
        model[1].attn = Fused(model[1].attn)
        model[2].attn = Fused(model[2].attn)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens = torch.randint(32, (2, 11), generator=torch.Generator().manual_seed(1))
    values = []
    for _ in range(2):
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
