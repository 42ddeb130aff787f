"""A hook halves the gradient of one weight; the forward is right."""

import torch

from bench.zoo.models.gpt import GPT
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra, module

ORIGIN = Truth(
    (call("Tensor.r?mul"), extra("Tensor.r?mul"), module("blocks.0.mlp.up", "Linear", phase="backward")),
    ("semantic",),
    step=0,
    repair=("factor of 2 ",),
)


def main(variant):
    torch.manual_seed(0)
    model = GPT()
    if variant == "target":
        model.blocks[0].mlp.up.weight.register_hook(lambda gradient: gradient * 0.5)  # origin
    return train(model, token_batches(2), optimizer=torch.optim.SGD(model.parameters(), lr=0.5))


if __name__ == "__main__":
    run(main)
