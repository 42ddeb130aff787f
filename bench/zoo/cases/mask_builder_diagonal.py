"""The additive mask hides the diagonal's neighbour as well."""

import torch
import torch.nn.functional as F

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call

ORIGIN = Truth((call("(Torch|Tensor).triu", ""),), ("semantic",), step=0)


class Attention(gpt.Attention):
    def attend(self, q, k, v, mask):
        return F.softmax((q @ k.transpose(-2, -1)) * self.size**-0.5 + mask, dim=-1) @ v


class GPT(gpt.GPT):
    diagonal = 1

    def mask(self, past, length):
        full = torch.full((length, length), torch.finfo(torch.float32).min)
        return torch.triu(full, diagonal=self.diagonal)  # origin


def main(variant):
    torch.manual_seed(0)
    model = GPT()
    model.diagonal = 2 if variant == "target" else 1
    for block in model.blocks:
        block.attn.__class__ = Attention
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
