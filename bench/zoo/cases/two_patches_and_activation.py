"""Rows and columns of a patch change places, and the second block has another activation."""

import torch
import torch.nn.functional as F

from bench.zoo.models import vision
from bench.zoo.models.training import class_loss, image_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra, missing

ORIGIN = Truth(
    (call("Tensor.permute", "", marker="patch"), call("Tensor.reshape", "", marker="patch")),
    ("semantic",),
    step=0,
    second=(
        call("Functional.(silu|gelu)", "blocks.1.act", marker="act"),
        extra("Functional.silu", "blocks.1.act", marker="act"),
        missing("Functional.gelu", "blocks.1.act", marker="act"),
    ),
)


class ViT(vision.ViT):
    variant = "reference"

    def patches(self, images):
        batch, channels, height, width = images.shape
        x = images.view(batch, channels, height // 4, 4, width // 4, 4)
        order = (0, 2, 4, 1, 5, 3) if self.variant == "target" else (0, 2, 4, 1, 3, 5)
        return x.permute(*order).reshape(batch, -1, channels * 16)  # patch


class Act(vision.Act):
    variant = "reference"

    def forward(self, x):
        return F.silu(x) if self.variant == "target" else F.gelu(x)  # act


def main(variant):
    torch.manual_seed(0)
    model = ViT()
    model.variant = variant
    model.blocks[1].act = Act()
    model.blocks[1].act.variant = variant
    return train(model, image_batches(2), class_loss)


if __name__ == "__main__":
    run(main)
