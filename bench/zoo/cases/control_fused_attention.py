"""The fused attention against the one written out."""

import torch
import torch.nn.functional as F

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run

CONTROL = True


class Attention(gpt.Attention):
    def attend(self, q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def main(variant):
    torch.manual_seed(0)
    model = gpt.GPT()
    if variant == "target":
        for block in model.blocks:
            block.attn.__class__ = Attention
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
