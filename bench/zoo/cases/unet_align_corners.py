"""The U-Net's upsampling aligns corners."""

import torch
import torch.nn.functional as F

from bench.zoo.models import vision
from bench.zoo.models.training import image_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call

ORIGIN = Truth(
    (call("Functional.interpolate", ""), call("Functional.upsample_bilinear2d", "")),
    ("semantic",),
    step=0,
    repair=("align_corners=False",),
)


class UNet(vision.UNet):
    def upsample(self, x):
        return F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True)  # origin


def loss_of(model, images, labels):
    return (model(images) - images).pow(2).mean()


def main(variant):
    torch.manual_seed(0)
    model = UNet() if variant == "target" else vision.UNet()
    return train(model, image_batches(2), loss_of)


if __name__ == "__main__":
    run(main)
