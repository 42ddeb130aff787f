"""float32 against float64."""

import torch

from bench.zoo.models.training import class_loss, image_batches, train
from bench.zoo.models.vision import ViT
from bench.zoo.script import run

CONTROL = True


def main(variant):
    torch.manual_seed(0)
    model, batches = ViT(), image_batches(2)
    if variant == "reference":
        model, batches = model.double(), [(images.double(), labels) for images, labels in batches]
    return train(model, batches, class_loss)


if __name__ == "__main__":
    run(main)
