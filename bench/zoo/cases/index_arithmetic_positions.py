"""Positions are counted by arithmetic of numbers, one of which is taken twice."""

import torch

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra

ORIGIN = Truth(
    (call("Tensor.(add|sub|floordiv)"), extra("Tensor.(add|sub|floordiv)"), call("Torch.arange")),
    ("semantic",),
    step=0,
)


class GPT(gpt.GPT):
    variant = "reference"

    def positions(self, past, length):
        seen = torch.tensor(past)
        end = seen + length
        if self.variant == "target":
            return torch.arange(length) + (end - seen) // 4  # origin
        offset = end - length
        return torch.arange(length) + offset * 1


def main(variant):
    torch.manual_seed(0)
    model = GPT()
    model.variant = variant
    tokens, targets = token_batches(1)[0]
    with torch.no_grad():
        model.embed.weight.mul_(1.0)
    return train(_Absolute(model), [(tokens, targets)] * 2)


class _Absolute(torch.nn.Module):
    """Absolute positions beside the rotary ones, for which an offset matters."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.places = torch.nn.Embedding(64, 32)
        embed = model.embed
        model.embed_tokens = lambda tokens: embed(tokens) + self.places(model.positions(0, tokens.shape[1]))

    def forward(self, tokens):
        return self.model(tokens)


if __name__ == "__main__":
    run(main)
