"""A chunked mask is built from index arithmetic, and inverted where the chunks are compared."""

import torch

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra, missing

ORIGIN = Truth(
    (call("Tensor.(eq|ne|and)", ""), extra("Tensor.ne", ""), missing("Tensor.eq", "")),
    ("semantic",),
    step=0,
)


class GPT(gpt.GPT):
    variant = "reference"

    def mask(self, past, length):
        if self.variant == "target":
            here = torch.arange(past, past + length)
            first, last = here[0], here[-1] + 1
            columns = torch.arange(first.item(), last.item())
            blocks = torch.abs(columns.unsqueeze(0) // 4 - columns.unsqueeze(1) // 4)
            causal = columns.unsqueeze(0) <= columns.unsqueeze(1)
            return (blocks != 0).to(causal.device) & causal | torch.eye(length, dtype=torch.bool)  # origin
        columns = torch.arange(past, past + length)
        causal = columns[None] <= columns[:, None]
        same = columns[None] // 4 == columns[:, None] // 4  # missing
        return same & causal | torch.eye(length, dtype=torch.bool)


def main(variant):
    torch.manual_seed(0)
    model = GPT()
    model.variant = variant
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
