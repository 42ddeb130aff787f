"""Experts run one by one on their tokens against all experts on all tokens, weighted by zero where not chosen."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.script import run

CONTROL = True


class Experts(nn.Module):
    def __init__(self, dense, count=4, size=12, hidden=16):
        super().__init__()
        self.dense = dense
        self.router = nn.Linear(size, count, bias=False)
        self.up = nn.Parameter(torch.randn(count, size, hidden) * 0.3)
        self.down = nn.Parameter(torch.randn(count, hidden, size) * 0.3)

    def forward(self, x):
        weights, chosen = self.router(x).softmax(-1).topk(2)
        if self.dense:
            gates = torch.zeros(len(x), len(self.up)).scatter(1, chosen, weights)
            h = F.silu(torch.einsum("td,edh->eth", x, self.up))
            return torch.einsum("eth,ehd,te->td", h, self.down, gates)
        out = torch.zeros_like(x)
        for expert in range(len(self.up)):
            token, place = torch.where(chosen == expert)
            y = F.silu(x[token] @ self.up[expert]) @ self.down[expert]
            out.index_add_(0, token, y * weights[token, place, None])
        return out


class Model(nn.Module):
    def __init__(self, dense):
        super().__init__()
        self.enter, self.moe, self.leave = nn.Linear(6, 12), Experts(dense), nn.Linear(12, 3)

    def forward(self, x):
        x = self.enter(x)
        return self.leave(x + self.moe(x))


def main(variant):
    torch.manual_seed(0)
    model = Model(dense=variant == "target")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    values = []
    for _ in range(2):
        x = torch.randn(10, 6)
        loss = F.cross_entropy(model(x), x[:, :3].argmax(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
