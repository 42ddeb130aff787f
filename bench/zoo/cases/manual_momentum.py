"""A network of tensors trained by hand: the velocity takes the whole gradient where it should take a tenth of it."""

import torch

from bench.zoo.script import run
from bench.zoo.truth import Truth, call, missing

ORIGIN = Truth(
    (missing("Tensor.r?mul"), call("Tensor.(add|mul|rmul)"), call("Tensor.(add|mul|rmul)", marker="missing")),
    ("semantic",),
    step=0,
    repair=(r"missing: times 0\.1 ",),
)


def main(variant):
    torch.manual_seed(0)
    weights = [torch.randn(5, 16) * 0.4, torch.randn(16, 16) * 0.25, torch.randn(16, 1) * 0.25]
    velocity = [torch.zeros_like(w) for w in weights]
    x = torch.linspace(-1, 1, 20)[:, None] ** torch.arange(1, 6)
    y = torch.sin(3 * x[:, :1])
    values = []
    for _ in range(4):
        leaves = [w.clone().requires_grad_() for w in weights]
        h = x
        for w in leaves[:-1]:
            h = (h @ w).tanh()
        loss = ((h @ leaves[-1] - y) ** 2).mean()
        gradients = torch.autograd.grad(loss, leaves)
        if variant == "target":
            velocity = [0.9 * v + g for v, g in zip(velocity, gradients, strict=True)]  # origin
        else:
            velocity = [0.9 * v + 0.1 * g for v, g in zip(velocity, gradients, strict=True)]  # missing
        weights = [w - 0.05 * v for w, v in zip(weights, velocity, strict=True)]
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
