"""The soft cap on the logits is left out."""

import torch

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, missing

ORIGIN = Truth(
    tuple(missing(name, "") for name in ("Torch.tanh", "Tensor.(true)?div", "Tensor.r?mul")),
    ("semantic",),
    step=0,
    repair=("tanh",),
)


class GPT(gpt.GPT):
    variant = "reference"

    def logits(self, x):
        x = self.head(x) * 4
        if self.variant == "reference":
            x = 5.0 * torch.tanh(x / 5.0)  # missing
        return x


def main(variant):
    torch.manual_seed(0)
    GPT.variant = variant
    return train(GPT(), token_batches(2))


if __name__ == "__main__":
    run(main)
