"""The ViT's patches are read column by column."""

import torch

from bench.zoo.models import vision
from bench.zoo.models.training import class_loss, image_batches, train
from bench.zoo.script import run
from bench.zoo.truth import Truth, call

ORIGIN = Truth((call("Tensor.permute", ""),), ("semantic",), step=0, repair=(r"\[0, 2, 4, 1, 3, 5\]",))


class ViT(vision.ViT):
    def patches(self, images):
        batch, channels, height, width = images.shape
        x = images.view(batch, channels, height // 4, 4, width // 4, 4)
        x = x.permute(0, 4, 2, 1, 3, 5)  # origin
        return x.reshape(batch, -1, channels * 16)


def main(variant):
    torch.manual_seed(0)
    model = ViT() if variant == "target" else vision.ViT()
    return train(model, image_batches(2), class_loss)


if __name__ == "__main__":
    run(main)
