"""The U-Net's GroupNorm has another eps, in bf16."""

import torch

from bench.zoo.models.training import image_batches, train
from bench.zoo.models.vision import UNet
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, module

ORIGIN = Truth(
    (module("norm", "GroupNorm"), call("Functional.group_norm", "norm", marker=None)),
    ("semantic",),
    step=0,
    repair=("eps=1e-05",),
)


def loss_of(model, images, labels):
    return (model(images) - images).pow(2).mean()


def main(variant):
    torch.manual_seed(0)
    model = UNet().to(torch.bfloat16)
    model.norm.eps = 1e-2 if variant == "target" else 1e-5
    batches = [(images.to(torch.bfloat16), labels) for images, labels in image_batches(2)]
    return train(model, batches, loss_of)


if __name__ == "__main__":
    run(main)
