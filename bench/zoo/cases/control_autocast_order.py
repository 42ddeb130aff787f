"""bf16 autocast on both sides, one of which sums a linear layer in two parts."""

import torch
import torch.nn.functional as F

from bench.zoo.models import gpt
from bench.zoo.models.training import language_loss, token_batches, train
from bench.zoo.script import run

CONTROL = True


class SwiGLU(gpt.SwiGLU):
    def forward(self, x):
        h = F.silu(self.gate(x)) * self.up(x)
        half = h.shape[-1] // 2
        weight = self.down.weight
        return F.linear(h[..., :half], weight[:, :half]) + F.linear(h[..., half:], weight[:, half:])


def loss_of(model, tokens, targets):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return language_loss(model, tokens, targets)


def main(variant):
    torch.manual_seed(0)
    model = gpt.GPT()
    if variant == "target":
        for block in model.blocks:
            block.mlp.__class__ = SwiGLU
    return train(model, token_batches(2), loss_of)


if __name__ == "__main__":
    run(main)
