"""A ResNet in channels_last."""

import torch

from bench.zoo.models.training import class_loss, image_batches, train
from bench.zoo.models.vision import ResNet
from bench.zoo.script import run

CONTROL = True


def main(variant):
    torch.manual_seed(0)
    model, batches = ResNet(), image_batches(2)
    if variant == "target":
        model = model.to(memory_format=torch.channels_last)
        batches = [(images.contiguous(memory_format=torch.channels_last), labels) for images, labels in batches]
    return train(model, batches, class_loss)


if __name__ == "__main__":
    run(main)
