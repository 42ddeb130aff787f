"""Convolutions by unfold and matmul, pooling by reshape and mean, upsampling by repeat: no module at all."""

import torch
import torch.nn.functional as F

from bench.zoo.script import run

CONTROL = True


def convolve(x, weight, bias, by_hand):
    if not by_hand:
        return F.conv2d(x, weight, bias, padding=1)
    columns = F.unfold(x, 3, padding=1)
    return (weight.flatten(1) @ columns + bias[:, None]).view(len(x), -1, *x.shape[2:])


def halve(x, by_hand):
    if not by_hand:
        return F.avg_pool2d(x, 2)
    b, c, h, w = x.shape
    return x.reshape(b, c, h // 2, 2, w // 2, 2).mean((3, 5))


def double(x, by_hand):
    if not by_hand:
        return F.interpolate(x, scale_factor=2, mode="nearest")
    return x.repeat_interleave(2, 2).repeat_interleave(2, 3)


def main(variant):
    by_hand = variant == "target"
    torch.manual_seed(0)
    w1, w2, w3 = (torch.randn(o, i, 3, 3) / (9 * i) ** 0.5 for o, i in ((8, 3), (16, 8), (3, 24)))
    b1, b2, b3 = torch.zeros(8), torch.zeros(16), torch.zeros(3)
    leaves = [t.requires_grad_() for t in (w1, w2, w3, b1, b2, b3)]
    optimizer = torch.optim.SGD(leaves, lr=0.1)
    values = []
    for _ in range(2):
        x = torch.randn(2, 3, 8, 8)
        first = F.silu(convolve(x, w1, b1, by_hand))
        second = F.silu(convolve(halve(first, by_hand), w2, b2, by_hand))
        y = convolve(torch.cat([double(second, by_hand), first], 1), w3, b3, by_hand)
        loss = (y - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
