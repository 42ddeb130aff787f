"""Checkpointing on and off, with dropout and the random state preserved."""

import torch
from torch.utils.checkpoint import checkpoint

from bench.zoo.models import classic
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run

CONTROL = True


class ClassicGPT(classic.ClassicGPT):
    def forward(self, tokens, padding=None):
        x = self.drop(self.embed(tokens) + self.position(torch.arange(tokens.shape[1])))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(self.ln(x))


def main(variant):
    torch.manual_seed(0)
    model = (ClassicGPT if variant == "target" else classic.ClassicGPT)(dropout=0.1)
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
