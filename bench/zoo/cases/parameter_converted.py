"""A checkpoint is converted with two rows of one weight exchanged."""

import torch

from bench.zoo.models.gpt import GPT
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, extra, parameter

ORIGIN = Truth(
    (parameter("blocks.0.attn.k.weight"), extra("Tensor.(getitem|setitem)")),
    ("parameter",),
    step=0,
    repair=(r"axis 0 of it permuted, as 0-2, 4, 3",),
)


def main(variant):
    torch.manual_seed(0)
    model = GPT()
    if variant == "target":
        weight = model.blocks[0].attn.k.weight
        with torch.no_grad():
            weight[[3, 4]] = weight[[4, 3]]  # origin
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
