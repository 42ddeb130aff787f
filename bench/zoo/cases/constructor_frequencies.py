"""The constructor computes the rotary frequencies from another base, and keeps them as a buffer."""

import torch

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, parameter

ORIGIN = Truth(
    (parameter("rope.frequencies"), call("Tensor.(pow|rpow)", marker="pow")),
    ("parameter", "semantic"),
    step=0,
    chain=("base=500", "@script"),
)


class Rope(gpt.Rope):
    def __init__(self, dim, base):
        super().__init__(dim)
        frequencies = 1.0 / base ** (torch.arange(0, dim, 2).float() / dim)  # pow
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.base = base


def main(variant):
    torch.manual_seed(0)
    model = gpt.GPT()
    model.rope = Rope(8, 500.0 if variant == "target" else 10000.0)  # script
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
