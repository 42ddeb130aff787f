"""The sliding window lets one key too many in: `<=` for `<`."""

import torch

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra, missing

ORIGIN = Truth(
    (call("Tensor.le", ""), extra("Tensor.le", ""), missing("Tensor.lt", "")),
    ("semantic",),
    step=0,
    repair=("< in place of <=",),
)


class GPT(gpt.GPT):
    variant = "reference"

    def mask(self, past, length):
        causal = super().mask(past, length)
        distance = torch.arange(length).unsqueeze(1) - torch.arange(length)
        if self.variant == "target":
            near = distance <= 4  # origin
        else:
            near = distance < 4  # missing
        return causal & near


def main(variant):
    torch.manual_seed(0)
    GPT.variant = variant
    return train(GPT(), token_batches(2))


if __name__ == "__main__":
    run(main)
