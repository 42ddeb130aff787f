"""Convolutions without oneDNN."""

import torch

from bench.zoo.models.training import image_batches, train
from bench.zoo.models.vision import UNet
from bench.zoo.script import run

CONTROL = True


def loss_of(model, images, labels):
    return (model(images) - images).pow(2).mean()


def main(variant):
    torch.backends.mkldnn.enabled = variant == "reference"
    torch.manual_seed(0)
    return train(UNet(), image_batches(2), loss_of)


if __name__ == "__main__":
    run(main)
