"""A hand-written Lion takes the sign of the momentum after its update, not of the interpolation before."""

import torch
from torch import nn

from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra, missing, optimizer

ORIGIN = Truth(
    (
        call("Torch.sign"),
        call("Tensor.(sign|sign_|lerp|lerp_)"),
        optimizer("Lion"),
        extra("Tensor.(sign|lerp_)"),
        missing("Tensor.(lerp|sign_)"),
    ),
    ("semantic",),
    step=0,
)


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1, variant="reference"):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})
        self.variant = variant

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            lr, (beta1, beta2) = group["lr"], group["betas"]
            for p in group["params"]:
                momentum = self.state[p].setdefault("momentum", torch.full_like(p, 0.01))
                p.mul_(1 - lr * group["weight_decay"])
                if self.variant == "target":
                    direction = momentum.lerp_(p.grad, 1 - beta2).sign()  # origin
                else:
                    direction = momentum.lerp(p.grad, 1 - beta1).sign_()  # missing
                    momentum.lerp_(p.grad, 1 - beta2)
                p.add_(direction, alpha=-lr)


def main(variant):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(3, 8, 3), nn.ReLU(), nn.Conv1d(8, 4, 3), nn.Flatten(), nn.Linear(32, 2))
    optimizer_ = Lion(model.parameters(), lr=3e-3, variant=variant)
    values = []
    for _ in range(3):
        x = torch.randn(5, 3, 12)
        loss = nn.functional.cross_entropy(model(x), torch.tensor([0, 1, 1, 0, 1]))
        optimizer_.zero_grad()
        loss.backward()
        optimizer_.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
