"""One weight went through bf16 when the checkpoint was saved."""

import torch

from bench.zoo.models.classic import ClassicGPT
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, extra, parameter

PATH = "blocks.0.mlp.up.weight"
ORIGIN = Truth(
    (parameter(PATH), extra("Tensor.(to|bfloat16|float|copy_)")),
    ("parameter", "precision"),
    step=0,
    repair=(r"before they were rounded to bfloat16",),
)


def main(variant):
    torch.manual_seed(0)
    model = ClassicGPT()
    if variant == "target":
        weight = model.blocks[0].mlp.up.weight
        weight.data = weight.data.to(torch.bfloat16).float()  # origin
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
