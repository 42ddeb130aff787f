"""Gradients by torch.func over a functional call against loss.backward()."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad_and_value

from bench.zoo.script import run

CONTROL = True


def main(variant):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 18), nn.SELU(), nn.Linear(18, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def objective(parameters, x, y):
        return F.cross_entropy(functional_call(model, parameters, (x,)), y)

    values = []
    for _ in range(2):
        x, y = torch.randn(7, 6), torch.randint(4, (7,))
        optimizer.zero_grad()
        if variant == "target":
            gradients, loss = grad_and_value(objective)(dict(model.named_parameters()), x, y)
            for name, parameter in model.named_parameters():
                parameter.grad = gradients[name]
        else:
            loss = F.cross_entropy(model(x), y)
            loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
