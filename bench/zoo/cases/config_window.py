"""The sliding window is read from a configuration that has another one."""

import dataclasses

import torch

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call

ORIGIN = Truth(
    (call("Tensor.(gt|sub|lt|add)", "", marker="use"),),
    ("semantic",),
    step=0,
    chain=(r"config\.window",),
)


@dataclasses.dataclass(frozen=True)
class Config(gpt.Config):
    window: int = 4


class GPT(gpt.GPT):
    def mask(self, past, length):
        rows, columns = torch.arange(length)[:, None], torch.arange(length)[None]
        return (columns <= rows) & (columns > rows - self.config.window)  # use


def main(variant):
    torch.manual_seed(0)
    return train(GPT(Config(window=5 if variant == "target" else 4)), token_batches(2))


if __name__ == "__main__":
    run(main)
