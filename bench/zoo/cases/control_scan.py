"""A linear recurrence step by step against its closed form with cumulative sums, in double precision inside."""

import torch
import torch.nn.functional as F

from bench.zoo.script import run

CONTROL = True


def recurrence(x, decay):
    state, out = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        state = decay[:, t] * state + x[:, t]
        out.append(state)
    return torch.stack(out, 1)


def closed_form(x, decay):
    total = decay.double().log().cumsum(1)
    weights = (total[:, :, None] - total[:, None]).exp()
    causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()[None, :, :, None]
    return torch.einsum("btsd,bsd->btd", weights.where(causal, 0.0), x.double()).float()


def main(variant):
    torch.manual_seed(0)
    scan = closed_form if variant == "target" else recurrence
    weights = {name: torch.randn(12, 12).mul(0.3).requires_grad_() for name in ("value", "gate", "out")}
    optimizer = torch.optim.SGD(weights.values(), lr=0.1)
    values = []
    for _ in range(2):
        x = torch.randn(2, 6, 12)
        decay = torch.sigmoid(x @ weights["gate"] + 2)
        y = F.silu(scan(x @ weights["value"], decay)) @ weights["out"]
        loss = (y - x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
