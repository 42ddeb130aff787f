"""A checkpoint does not restore the random state: its recomputation draws another dropout mask."""

import torch
from torch.utils.checkpoint import checkpoint

from bench.zoo.models import classic
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, module

PATH = "blocks.1.drop"
ORIGIN = Truth((call("Functional.dropout", PATH, marker=None), module(PATH, "Dropout")), ("input", "unknown"), step=0)


class ClassicGPT(classic.ClassicGPT):
    preserve = True

    def forward(self, tokens, padding=None):
        x = self.embed(tokens) + self.position(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=self.preserve)
        return self.head(self.ln(x))


def main(variant):
    torch.manual_seed(0)
    ClassicGPT.preserve = variant == "reference"
    return train(ClassicGPT(dropout=0.2), token_batches(2))


if __name__ == "__main__":
    run(main)
