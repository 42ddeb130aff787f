"""One linear layer for query, key and value against three slices of its weight."""

import torch
import torch.nn.functional as F

from bench.zoo.models import classic
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run

CONTROL = True


class Attention(classic.Attention):
    def forward(self, x, padding=None):
        batch, length, dim = x.shape
        parts = zip(self.qkv.weight.chunk(3), self.qkv.bias.chunk(3), strict=True)
        q, k, v = (
            F.linear(x, weight, bias).view(batch, length, self.heads, -1).transpose(1, 2) for weight, bias in parts
        )
        return self.proj(self.attend(q, k, v, padding).transpose(1, 2).reshape(batch, length, dim))


def main(variant):
    torch.manual_seed(0)
    model = classic.ClassicGPT()
    if variant == "target":
        for block in model.blocks:
            block.attn.__class__ = Attention
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
