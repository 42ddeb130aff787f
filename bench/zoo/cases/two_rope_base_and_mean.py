"""The rotary base is another, and the loss is averaged over the vocabulary besides."""

import torch
import torch.nn.functional as F

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra

ORIGIN = Truth(
    (call("Tensor.(pow|rpow)", "rope", marker="use"),),
    ("semantic",),
    step=0,
    second=(extra("Tensor.(div|truediv)", marker="mean"),),
)


class Rope(gpt.Rope):
    base = 10000.0

    def forward(self, positions):
        frequencies = 1.0 / self.base ** (torch.arange(0, 8, 2).float() / 8)  # use
        angles = torch.outer(positions.float(), frequencies)
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos(), angles.sin()


def loss_of(model, tokens, targets):
    loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
    if model.rope.base != 10000.0:
        loss = loss / 1.5  # mean
    return loss


def main(variant):
    torch.manual_seed(0)
    model = gpt.GPT()
    model.rope.__class__ = Rope
    if variant == "target":
        model.rope.base = 500.0
    return train(model, token_batches(2), loss_of)


if __name__ == "__main__":
    run(main)
