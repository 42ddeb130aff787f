"""One BatchNorm has momentum 0.01, which shows in its running statistics and in evaluation only."""

import torch

from bench.zoo.models.training import class_loss, image_batches, train
from bench.zoo.models.vision import ResNet
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, module

PATH = "layer1.bn2"
ORIGIN = Truth(
    (module(PATH, "BatchNorm2d"), call("Functional.batch_norm", PATH, marker=None)),
    ("semantic",),
    step=0,
    repair=("momentum=0.1 ",),
)


def main(variant):
    torch.manual_seed(0)
    model = ResNet()
    if variant == "target":
        model.layer1.bn2.momentum = 0.01
    values = train(model, image_batches(2), class_loss)
    model.eval()
    with torch.no_grad():
        return [*values, class_loss(model, *image_batches(1, seed=5)[0]).item()]


if __name__ == "__main__":
    run(main)
