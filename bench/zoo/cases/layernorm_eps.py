"""One LayerNorm has eps 1e-5, where the reference has 1e-12, on small activations."""

import torch
from torch import nn

from bench.zoo.models.classic import ClassicGPT
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, module

PATH = "blocks.1.ln2"
ORIGIN = Truth(
    (module(PATH, "LayerNorm"), call("Functional.layer_norm", PATH, marker=None)),
    ("semantic",),
    step=0,
    repair=("eps=1e-12",),
)


def main(variant):
    torch.manual_seed(0)
    model = ClassicGPT()
    for weight in (model.embed.weight, model.position.weight):
        nn.init.normal_(weight, std=0.002)
    for block in model.blocks:
        block.ln1.eps = block.ln2.eps = 1e-12
        for linear in (block.attn.proj, block.mlp.down):
            nn.init.normal_(linear.weight, std=0.002)
            nn.init.zeros_(linear.bias)
    if variant == "target":
        model.blocks[1].ln2.eps = 1e-5
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
