"""RoPE turns neighbours instead of halves."""

import torch

from bench.zoo.models import gpt
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra, missing

PATH = "blocks.0.attn"
NAMES = ("Tensor.getitem", "Torch.stack", "Tensor.flatten", "Tensor.neg")
ORIGIN = Truth(
    (
        *(extra(name, PATH) for name in NAMES),
        *(call(name, PATH) for name in NAMES),
        missing("(Tensor.chunk|Torch.cat)", PATH, marker=None),
    ),
    ("semantic",),
    step=0,
    repair=("RoPE", "interleave", "halves"),
)


def rotate_pairs(x):
    first, second = x[..., ::2], x[..., 1::2]  # origin
    return torch.stack([-second, first], dim=-1).flatten(-2)  # origin


def main(variant):
    torch.manual_seed(0)
    model = gpt.GPT()
    if variant == "target":
        gpt.rotate_half = rotate_pairs
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
