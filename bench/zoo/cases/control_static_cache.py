"""Decoding with a cache of fixed size and a mask against one that grows: functions and a dict of tensors."""

import torch
import torch.nn.functional as F

from bench.zoo.script import run

CONTROL = True
LENGTH = 16


class Growing:
    def __init__(self):
        self.k = self.v = None

    def update(self, k, v, position):
        self.k = k if self.k is None else torch.cat([self.k, k], 2)
        self.v = v if self.v is None else torch.cat([self.v, v], 2)
        return self.k, self.v, torch.arange(self.k.shape[2]) <= position[:, None]


class Static:
    def __init__(self):
        self.k = torch.zeros(2, 2, LENGTH, 8)
        self.v = torch.zeros(2, 2, LENGTH, 8)

    def update(self, k, v, position):
        self.k[:, :, position] = k
        self.v[:, :, position] = v
        return self.k, self.v, torch.arange(LENGTH) <= position[:, None]


def layer(p, x, cache, position):
    q, k, v = F.linear(F.rms_norm(x, (16,)), p["qkv"]).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
    k, v, mask = cache.update(k, v, position)
    x = x + F.linear(F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2), p["o"])
    return x + F.linear(F.silu(F.linear(F.rms_norm(x, (16,)), p["up"])), p["down"])


@torch.inference_mode()
def main(variant):
    torch.manual_seed(0)
    shapes = {"qkv": (48, 16), "o": (16, 16), "up": (32, 16), "down": (16, 32)}
    layers = [{name: torch.randn(shape) * 0.2 for name, shape in shapes.items()} for _ in range(2)]
    table = torch.randn(40, 16)
    caches = [Static() if variant == "target" else Growing() for _ in layers]
    tokens, position, values = torch.randint(40, (2, 5)), torch.arange(5), []
    for _ in range(6):
        x = table[tokens]
        for p, cache in zip(layers, caches, strict=True):
            x = layer(p, x, cache, position)
        logits = x[:, -1] @ table.T
        tokens, position = logits.argmax(-1, keepdim=True), position[-1:] + 1
        values.append(logits.norm().item())
    return values


if __name__ == "__main__":
    run(main)
