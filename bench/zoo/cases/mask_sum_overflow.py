"""Two bf16 masks are added: the smallest number twice is -inf, and rows of padding attend elsewhere."""

import math

import torch
import torch.nn.functional as F

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra, missing

ORIGIN = Truth(
    (
        call("Tensor.add", ""),
        call("(Torch|Tensor).minimum", ""),
        extra("Tensor.add", ""),
        missing("Torch.minimum", ""),
    ),
    ("semantic", "precision"),
    step=0,
    repair=(r"minimum in place of add",),
)


class Attention(gpt.Attention):
    def attend(self, q, k, v, mask):
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(self.size)) + mask
        return F.softmax(scores, dim=-1) @ v


class GPT(gpt.GPT):
    variant = "reference"

    def mask(self, past, length):
        smallest = torch.finfo(torch.bfloat16).min
        causal = torch.zeros(length, length, dtype=torch.bfloat16).masked_fill(~super().mask(past, length), smallest)
        padding = torch.zeros(length, length, dtype=torch.bfloat16).masked_fill(torch.arange(length) < 2, smallest)
        if self.variant == "target":
            return causal + padding  # origin
        return torch.minimum(causal, padding)  # missing


def main(variant):
    torch.manual_seed(0)
    GPT.variant = variant
    model = GPT().to(torch.bfloat16)
    for block in model.blocks:
        block.attn.__class__ = Attention
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
