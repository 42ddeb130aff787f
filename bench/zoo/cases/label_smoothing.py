"""The target's loss smooths the labels."""

import torch
import torch.nn.functional as F

from bench.zoo.models.training import image_batches, train
from bench.zoo.models.vision import ViT
from bench.zoo.script import run
from bench.zoo.truth import Truth, call

ORIGIN = Truth((call("Functional.cross_entropy"),), ("semantic",), step=0, repair=("label_smoothing=0 ",))


def smoothed(model, images, labels):
    return F.cross_entropy(model(images), labels, label_smoothing=0.1)  # origin


def plain(model, images, labels):
    return F.cross_entropy(model(images), labels)


def main(variant):
    torch.manual_seed(0)
    return train(ViT(), image_batches(2), smoothed if variant == "target" else plain)


if __name__ == "__main__":
    run(main)
