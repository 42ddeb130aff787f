"""One norm has another eps, and the optimizer another rate."""

import torch

from bench.zoo.models.gpt import GPT
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, optimizer

ORIGIN = Truth(
    (call("Tensor.add", "blocks.1.norm2", marker=None),),
    ("semantic",),
    step=0,
    second=(optimizer("AdamW"),),
)


def main(variant):
    torch.manual_seed(0)
    model = GPT()
    if variant == "target":
        model.blocks[1].norm2.eps = 1e-2
    rate = 2e-3 if variant == "target" else 1e-3
    return train(model, token_batches(2), optimizer=torch.optim.AdamW(model.parameters(), lr=rate))


if __name__ == "__main__":
    run(main)
