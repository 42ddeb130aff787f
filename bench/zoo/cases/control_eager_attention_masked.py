"""Grouped attention written out against the fused kernel, with a mask of the lowest numbers."""

import torch
import torch.nn.functional as F

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run

CONTROL = True


class Attention(gpt.Attention):
    fused = False

    def spread(self, x):
        if self.fused:
            return super().spread(x)
        batch, heads, length, size = x.shape
        x = x[:, :, None].expand(batch, heads, self.heads // heads, length, size)
        return x.reshape(batch, -1, length, size)

    def attend(self, q, k, v, mask):
        added = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
        if self.fused:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=added)
        scores = torch.matmul(q, k.transpose(2, 3)) * self.size**-0.5 + added
        return torch.matmul(F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype), v)


def main(variant):
    torch.manual_seed(0)
    model = gpt.GPT()
    for block in model.blocks:
        block.attn.__class__ = Attention
        block.attn.fused = variant == "target"
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
