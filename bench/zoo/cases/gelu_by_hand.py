"""A ViT's activation is the tanh approximation written out, where the reference calls F.gelu."""

import math

import torch

from bench.zoo.models import vision
from bench.zoo.models.training import class_loss, image_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra, missing, module

PATH = "blocks.1.act"
ORIGIN = Truth(
    (
        module(PATH, "Act"),
        missing("Functional.gelu", PATH, marker=None),
        call(r"(Torch|Tensor).\w+", PATH),
        extra(r"(Torch|Tensor).\w+", PATH),
    ),
    ("semantic",),
    step=0,
    repair=("approximate='none'", "erf"),
)


class Act(vision.Act):
    def forward(self, x):
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))  # origin


def main(variant):
    torch.manual_seed(0)
    model = vision.ViT()
    if variant == "target":
        model.blocks[1].act.__class__ = Act
    return train(model, image_batches(2), class_loss)


if __name__ == "__main__":
    run(main)
