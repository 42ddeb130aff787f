"""Decoding calls the fused attention with is_causal=True, which aligns one query with the first key."""

import torch
import torch.nn.functional as F

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches
from bench.zoo.script import run
from bench.zoo.truth import Truth, call

ORIGIN = Truth(
    (call("(Functional|Torch).scaled_dot_product_attention", "blocks.0.attn"),),
    ("semantic",),
    repair=("is_causal=False",),
)


class Attention(gpt.Attention):
    variant = "reference"

    def attend(self, q, k, v, mask):
        if self.variant == "target":
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)  # origin
        return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1)


def main(variant):
    torch.manual_seed(0)
    model = gpt.GPT().eval()
    Attention.variant = variant
    for block in model.blocks:
        block.attn.__class__ = Attention
    return gpt.generate(model, token_batches(1)[0][0], 4)[1]


if __name__ == "__main__":
    run(main)
