"""Activations, softmax and norms as formulas against the library's functions: a dict of tensors, no module."""

import math

import torch
import torch.nn.functional as F

from bench.zoo.script import run

CONTROL = True


def gelu(x):
    return 0.5 * x * (1.0 + torch.erf(x / math.sqrt(2.0)))


def layer_norm(x, shape, weight, eps=1e-5):
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + eps) * weight


def group_norm(x, groups, eps=1e-5):
    g = x.unflatten(-1, (groups, -1))
    return ((g - g.mean(-1, keepdim=True)) * torch.rsqrt(g.var(-1, keepdim=True, correction=0) + eps)).flatten(-2)


def softmax(x, dim):
    e = (x - x.amax(dim, keepdim=True)).exp()
    return e / e.sum(dim, keepdim=True)


def softplus(x):
    return torch.logaddexp(x, torch.zeros_like(x))


def main(variant):
    torch.manual_seed(0)
    hand = variant == "target"
    p = {name: torch.randn(16, 16).mul(0.3).requires_grad_() for name in ("a", "b", "c", "d")}
    scale = torch.ones(16, requires_grad=True)
    optimizer = torch.optim.SGD([*p.values(), scale], lr=0.05)
    values = []
    for _ in range(2):
        x = torch.randn(6, 16)
        h = x @ p["a"]
        h = layer_norm(h, (16,), scale) if hand else F.layer_norm(h, (16,), scale)
        h = gelu(h @ p["b"]) if hand else F.gelu(h @ p["b"])
        h = group_norm(h, 4) if hand else F.group_norm(h, 4)
        h = softplus(h @ p["c"]) if hand else F.softplus(h @ p["c"])
        weights = softmax(h @ x.t(), -1) if hand else F.softmax(h @ x.t(), -1)
        loss = ((weights @ x) @ p["d"] - x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
