"""The norm has one group for two, and the way up is by nearest neighbours."""

import torch
import torch.nn.functional as F

from bench.zoo.models import vision
from bench.zoo.models.training import image_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, module

ORIGIN = Truth(
    (module("norm", "GroupNorm"), call("Functional.group_norm", "norm", marker=None)),
    ("semantic",),
    step=0,
    second=(call("Functional.interpolate", "", marker="up"),),
)


class UNet(vision.UNet):
    mode = "bilinear"

    def upsample(self, x):
        aligned = {"align_corners": False} if self.mode == "bilinear" else {}
        return F.interpolate(x, scale_factor=2, mode=self.mode, **aligned)  # up


def loss_of(model, images, labels):
    return F.mse_loss(model(images), images)


def main(variant):
    torch.manual_seed(0)
    model = UNet()
    if variant == "target":
        model.norm.num_groups = 1
        model.mode = "nearest"
    return train(model, image_batches(2), loss_of)


if __name__ == "__main__":
    run(main)
