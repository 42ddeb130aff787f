"""The mask and the positions are computed by other index arithmetic, to the same end."""

import torch

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run

CONTROL = True


class GPT(gpt.GPT):
    def positions(self, past, length):
        seen = torch.zeros((), dtype=torch.long) + past
        end = seen + length - 8
        return torch.arange(length) + (end + 8 - length)

    def mask(self, past, length):
        places = torch.arange(length)
        apart = places.view(1, -1) - places.view(-1, 1)
        return ~(apart > 0).expand(length, length) | torch.eye(length, dtype=torch.bool)


def main(variant):
    torch.manual_seed(0)
    model = gpt.GPT()
    if variant == "target":
        model.__class__ = GPT
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
