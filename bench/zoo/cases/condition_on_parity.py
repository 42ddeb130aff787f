"""A window is laid on the odd layers; the reference lays it on the even ones."""

import torch

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, missing

ORIGIN = Truth(
    (
        missing("Torch.ones_like", "blocks.0.attn", marker="window"),
        missing("Torch.tril", "blocks.0.attn", marker="window"),
        missing("Tensor.(bitwise_not|invert)", "blocks.0.attn", marker="window"),
        missing("Tensor.and", "blocks.0.attn", marker="window"),
    ),
    ("semantic",),
    step=0,
    chain=(r"self\.is_windowed=False \(True", r"@parity"),
)


class Attention(gpt.Attention):
    def attend(self, q, k, v, mask):
        if self.is_windowed:
            mask = mask & ~torch.tril(torch.ones_like(mask), diagonal=-3)  # window
        return super().attend(q, k, v, mask)


class Odd(Attention):
    def __init__(self, config, number):
        super().__init__(config)
        self.is_windowed = bool(number % 2)  # parity


class Even(Attention):
    def __init__(self, config, number):
        super().__init__(config)
        self.is_windowed = not number % 2  # parity


class Model(gpt.GPT):
    def __init__(self, kind):
        super().__init__()
        for number, block in enumerate(self.blocks):
            block.attn = kind(self.config, number)


def main(variant):
    torch.manual_seed(0)
    return train(Model(Odd if variant == "target" else Even), token_batches(2))


if __name__ == "__main__":
    run(main)
