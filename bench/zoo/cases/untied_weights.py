"""The head's weight is a copy of the embedding's, not the same parameter."""

import torch
from torch import nn

from bench.zoo.models import classic
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Answer, Truth, extra, module, optimizer, parameter

ORIGIN = Truth(
    (
        parameter("head.weight"),
        extra("Tensor.(clone|detach)"),
        parameter("embed.weight"),
        module("embed", "Embedding", phase="backward"),
        Answer(r".*parameters_grad\.(embed|head)\.weight", marker=None),
        optimizer("AdamW"),
    ),
    ("parameter", "semantic"),
    step=0,
    repair=("tied to",),
)


class ClassicGPT(classic.ClassicGPT):
    def tie(self):
        super().tie()
        self.head.weight = nn.Parameter(self.embed.weight.detach().clone())  # origin


def main(variant):
    torch.manual_seed(0)
    model = ClassicGPT() if variant == "target" else classic.ClassicGPT()
    return train(model, token_batches(2))


if __name__ == "__main__":
    run(main)
