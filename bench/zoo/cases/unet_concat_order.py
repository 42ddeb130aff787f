"""The U-Net joins its skip connection on the wrong side."""

import torch

from bench.zoo.models import vision
from bench.zoo.models.training import image_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call

ORIGIN = Truth((call("Torch.cat", ""),), ("semantic", "input"), step=0, repair=("swap", "order"))


class UNet(vision.UNet):
    def join(self, x, skip):
        return torch.cat([skip, x], dim=1)  # origin


def loss_of(model, images, labels):
    return (model(images) - images).pow(2).mean()


def main(variant):
    torch.manual_seed(0)
    model = UNet() if variant == "target" else vision.UNet()
    return train(model, image_batches(2), loss_of)


if __name__ == "__main__":
    run(main)
