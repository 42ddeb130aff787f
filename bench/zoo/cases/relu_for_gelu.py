"""One activation of the ViT is a ReLU."""

import torch
import torch.nn.functional as F

from bench.zoo.models import vision
from bench.zoo.models.training import class_loss, image_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra, missing, module

PATH = "blocks.0.act"
ORIGIN = Truth(
    (
        call("Functional.relu", PATH),
        extra("Functional.relu", PATH),
        missing("Functional.gelu", PATH, marker=None),
        module(PATH, "Act"),
    ),
    ("semantic",),
    step=0,
    repair=(r"gelu in place of relu",),
)


class Act(vision.Act):
    def forward(self, x):
        return F.relu(x)  # origin


def main(variant):
    torch.manual_seed(0)
    model = vision.ViT()
    if variant == "target":
        model.blocks[0].act.__class__ = Act
    return train(model, image_batches(2), class_loss)


if __name__ == "__main__":
    run(main)
