"""The loss is summed row by row from the end, and a residual's operands change places."""

import torch
import torch.nn.functional as F

from bench.zoo.models import gpt
from bench.zoo.models.training import language_loss, token_batches, train
from bench.zoo.script import run

CONTROL = True


class Block(gpt.Block):
    def forward(self, x, cosine, sine, mask, cache=None):
        x = self.attn(self.norm1(x), cosine, sine, mask, cache) + x
        return self.mlp(self.norm2(x)) + x


def loss_of(model, tokens, targets):
    logits = model(tokens)
    rows = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return rows.flip(0).sum() / rows.numel()


def main(variant):
    torch.manual_seed(0)
    model = gpt.GPT()
    if variant == "target":
        for block in model.blocks:
            block.__class__ = Block
    return train(model, token_batches(2), loss_of if variant == "target" else language_loss)


if __name__ == "__main__":
    run(main)
