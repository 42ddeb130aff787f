"""Rotary positions by complex multiplication of neighbours against cosines and sines of the same pairs."""

import torch
import torch.nn.functional as F

from bench.zoo.script import run

CONTROL = True


def rotate_complex(x, positions, base=10000.0):
    size = x.shape[-1]
    angles = torch.outer(positions, base ** (-torch.arange(0, size, 2) / size))
    turned = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * torch.polar(torch.ones(()), angles)
    return torch.view_as_real(turned).flatten(-2)


def rotate_real(x, positions, base=10000.0):
    size = x.shape[-1]
    angles = positions[:, None] / base ** (torch.arange(0, size, 2) / size)[None]
    cosine, sine = angles.cos(), angles.sin()
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cosine - odd * sine, even * sine + odd * cosine], -1).flatten(-2)


def main(variant):
    torch.manual_seed(0)
    rotate = rotate_complex if variant == "target" else rotate_real
    weights = {"q": torch.randn(16, 16), "k": torch.randn(16, 16), "v": torch.randn(16, 16)}
    weights = {name: w.mul_(0.25).requires_grad_() for name, w in weights.items()}
    optimizer = torch.optim.AdamW(weights.values(), lr=1e-3)
    values = []
    for _ in range(2):
        x = torch.randn(2, 9, 16)
        positions = torch.arange(9.0)
        q, k = rotate(x @ weights["q"], positions), rotate(x @ weights["k"], positions)
        y = F.scaled_dot_product_attention(q, k, x @ weights["v"], is_causal=True)
        loss = (y - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
