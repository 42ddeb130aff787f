"""A method's default base is another."""

import torch

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call

ORIGIN = Truth(
    (call("Tensor.(pow|rpow)", "rope", marker="use"),),
    ("semantic",),
    step=0,
    chain=(r"base=.*default",),
)


class Rope(gpt.Rope):
    def frequencies_of(self, base=10000.0):
        return 1.0 / base ** (torch.arange(0, 8, 2).float() / 8)  # use

    def forward(self, positions):
        angles = torch.outer(positions.float(), self.frequencies_of())
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos(), angles.sin()


class Other(Rope):
    def frequencies_of(self, base=1000.0):
        return 1.0 / base ** (torch.arange(0, 8, 2).float() / 8)  # use


def main(variant):
    torch.manual_seed(0)
    model = gpt.GPT()
    model.rope.__class__ = Other if variant == "target" else Rope
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
