"""Fine-tuning with a frozen stem: the target forgets to put its BatchNorm in eval mode."""

import torch

from bench.zoo.models.training import class_loss, image_batches, train
from bench.zoo.models.vision import ResNet
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, module

ORIGIN = Truth(
    (module("bn", "BatchNorm2d"), call("Functional.batch_norm", "bn", marker=None)),
    ("semantic",),
    step=0,
    repair=("training=False",),
)


def main(variant):
    torch.manual_seed(0)
    model = ResNet()
    if variant == "reference":
        model.bn.eval()
    return train(model, image_batches(2), class_loss)


if __name__ == "__main__":
    run(main)
