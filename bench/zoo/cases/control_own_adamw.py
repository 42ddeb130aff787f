"""A hand-written AdamW, other order of operations, against torch's."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.script import run

CONTROL = True


class OwnAdamW(torch.optim.Optimizer):
    def __init__(self, params, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                t = state["t"] = state.get("t", 0) + 1
                m = state["m"] = beta1 * state.get("m", torch.zeros_like(p)) + (1 - beta1) * p.grad
                v = state["v"] = beta2 * state.get("v", torch.zeros_like(p)) + (1 - beta2) * p.grad**2
                update = (m / (1 - beta1**t)) / ((v / (1 - beta2**t)).sqrt() + group["eps"])
                p.sub_(group["lr"] * (update + group["weight_decay"] * p))


def main(variant):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.LayerNorm(24), nn.Linear(24, 4))
    optimizer = (OwnAdamW if variant == "target" else torch.optim.AdamW)(model.parameters(), lr=1e-2)
    values = []
    for _ in range(4):
        x = torch.randn(10, 8)
        loss = F.cross_entropy(model(x), x[:, ::2].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
