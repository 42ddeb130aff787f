"""The embedding is scaled by the square root of the dimension, rounded to bf16 first."""

import math

import torch

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra

ORIGIN = Truth(
    (call("Tensor.mul", ""), extra("Torch.tensor", ""), extra("Tensor.mul", "")),
    ("precision", "semantic"),
    step=0,
    repair=(r"Torch\.tensor\.0\.forward in float32",),
)


class GPT(gpt.GPT):
    variant = "reference"

    def embed_tokens(self, tokens):
        x = self.embed(tokens)
        if self.variant == "target":
            return x * torch.tensor(math.sqrt(self.config.dim), dtype=x.dtype)  # origin
        return x * math.sqrt(self.config.dim)


def main(variant):
    torch.manual_seed(0)
    GPT.variant = variant
    return train(GPT(gpt.Config(dim=48)).to(torch.bfloat16), token_batches(2))


if __name__ == "__main__":
    run(main)
