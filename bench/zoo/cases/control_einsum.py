"""einsum against matmul, and log_softmax with nll_loss against cross_entropy."""

import math

import torch
import torch.nn.functional as F

from bench.zoo.models import gpt
from bench.zoo.models.training import language_loss, token_batches, train
from bench.zoo.script import run

CONTROL = True


class Attention(gpt.Attention):
    def attend(self, q, k, v, mask):
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * (1.0 / math.sqrt(self.size))
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        return torch.einsum("bhqk,bhkd->bhqd", F.softmax(scores, dim=-1), v)


def loss_of(model, tokens, targets):
    return F.nll_loss(F.log_softmax(model(tokens).flatten(0, 1), dim=-1), targets.flatten())


def main(variant):
    torch.manual_seed(0)
    model = gpt.GPT()
    if variant == "target":
        for block in model.blocks:
            block.attn.__class__ = Attention
    return train(model, token_batches(2), loss_of if variant == "target" else language_loss)


if __name__ == "__main__":
    run(main)
